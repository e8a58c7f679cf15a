"""What the doctor says: one JSON line per row, as soon as it is known.

First one line names every row that will come, the last one sums up. Each row between has a verdict, a finding
in a sentence, the evidence (figures, and where each was read) and what to do, in words and as a command where
one would do.

An example (wrapped here; `phrases`, what the sentences were made of, is left out):

    {"kind": "check", "name": "files", "title": "Open files", "verdict": "good",
     "finding": "A process may open 20000 files.", "evidence": ["RLIMIT_NOFILE: 20000 of at most 20000"],
     "seconds": 0.01}
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from rankdeck.base.parsing import decode_json
from rankdeck.base.phrases import TranslatableStruct, tr_noop


class Verdict(StrEnum):
    """From the best to the worst; what could not be tried is no fault."""

    OK = "good"
    SKIPPED = "not-tried"
    WARNING = "look"
    FAILED = "broken"


VERDICT_TEXTS = {
    Verdict.OK: tr_noop("good"),
    Verdict.SKIPPED: tr_noop("not tried"),
    Verdict.WARNING: tr_noop("worth a look"),
    Verdict.FAILED: tr_noop("broken"),
}
ROW_TITLES = {
    "driver": tr_noop("NVIDIA driver"),
    "gpus": tr_noop("GPUs"),
    "vram": tr_noop("Who holds VRAM"),
    "order": tr_noop("Order of GPUs"),
    "peers": tr_noop("Peer to peer"),
    "python": tr_noop("Python and torch"),
    "own-python": tr_noop("Rankdeck's own Python"),
    "gloo": tr_noop("Two ranks by gloo"),
    "nccl": tr_noop("Two ranks by NCCL"),
    "loopback": tr_noop("Ports and loopback"),
    "hostname": tr_noop("Hostname"),
    "interface": tr_noop("Network interface"),
    "runs": tr_noop("Folder of runs"),
    "state": tr_noop("Folder of leases"),
    "shm": tr_noop("Shared memory"),
    "memory": tr_noop("Memory"),
    "files": tr_noop("Open files"),
    "processes": tr_noop("Processes"),
    "threads": tr_noop("Threads"),
    "clock": tr_noop("Clock"),
    "logout": tr_noop("After logging out"),
}
"""Every row by its name, in the order in which they are listed."""
HOST_ROW_TITLES = {
    "ssh": tr_noop("Connection by ssh"),
    "reach": tr_noop("Each reaches the others"),
    "interfaces": tr_noop("Network interfaces"),
    "alike": tr_noop("The same versions"),
    "clocks": tr_noop("Clocks"),
    "free": tr_noop("Free devices"),
    "disks": tr_noop("Folders of runs"),
    "together": tr_noop("Two ranks by gloo"),
}
"""The same of several hosts."""


def row_title(name: str) -> str:
    """As it is listed."""
    return ROW_TITLES[name] if name in ROW_TITLES else HOST_ROW_TITLES[name]


class DoctorLine(TranslatableStruct, tag_field="kind", kw_only=True):
    """What every line has: `t` is Unix time in seconds, `v` the version of this page."""

    t: float = msgspec.field(default_factory=time.time)
    v: int = 1


class AnnouncedRow(msgspec.Struct, kw_only=True):
    """A row that will come."""

    name: str
    title: str


class ChecksLine(DoctorLine, tag="checks"):
    """All rows of this look, before the first of them is known."""

    rows: list[AnnouncedRow]


class CheckLine(DoctorLine, tag="check"):
    """One row. `seconds`: how long after the start of its check it was known."""

    name: str
    title: str
    verdict: Verdict
    finding: str
    evidence: list[str] = msgspec.field(default_factory=list)
    fix: str | None = None
    command: str | None = None
    seconds: float = 0.0


class DoneLine(DoctorLine, tag="done"):
    """The end: names of rows by how they went."""

    broken: list[str] = msgspec.field(default_factory=list)
    look: list[str] = msgspec.field(default_factory=list)
    not_tried: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0


AnyDoctorLine = ChecksLine | CheckLine | DoneLine


def make_row(
    name: str,
    verdict: Verdict,
    finding: str,
    *evidence: str,
    fix: str | None = None,
    command: str | None = None,
) -> CheckLine:
    """A row with its title."""
    return CheckLine(
        name=name,
        title=row_title(name),
        verdict=verdict,
        finding=finding,
        evidence=list(evidence),
        fix=fix,
        command=command,
    )


def skipped_rows(names: Iterable[str], why: str, *evidence: str) -> list[CheckLine]:
    """A row for each name that could not be looked at, for one reason."""
    return [make_row(name, Verdict.SKIPPED, why, *evidence) for name in names]


def announce_rows(names: Sequence[str]) -> ChecksLine:
    """The first line."""
    return ChecksLine(rows=[AnnouncedRow(name=name, title=row_title(name)) for name in names])


def summarize_rows(rows: Sequence[CheckLine], seconds: float) -> DoneLine:
    """The last line."""
    names = {verdict: [line.name for line in rows if line.verdict is verdict] for verdict in Verdict}
    return DoneLine(
        broken=names[Verdict.FAILED],
        look=names[Verdict.WARNING],
        not_tried=names[Verdict.SKIPPED],
        seconds=seconds,
    )


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyDoctorLine] = msgspec.json.Decoder(AnyDoctorLine)


def encode(line: DoctorLine) -> bytes:
    """One JSON line with its line feed."""
    return _encoder.encode(line) + b"\n"


def decode(line: bytes) -> AnyDoctorLine | None:
    """The line, or None for one that this version does not know or that is none at all (a command's problems
    come as one object on one line)."""
    try:
        return decode_json(_decoder.decode, line)
    except msgspec.DecodeError:
        return None
