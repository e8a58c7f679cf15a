"""Defines the doctor's output: one JSON line per row, written as soon as the row is known.

The first line names all rows to come, and the last one sums them up. Each line in between is a row with a
verdict, a finding in one sentence, the evidence (values and their sources) and, if a fix is known, its text
and sometimes a command.

An example (wrapped here, and without `phrases`, the translatable parts of the texts):

    {"kind": "check", "name": "files", "title": "Open files", "verdict": "good",
     "finding": "A process can open 20000 files.", "evidence": ["RLIMIT_NOFILE: 20000 (hard limit 20000)"],
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
    """A row's verdict; members are listed from best to worst. A skipped check does not count as a fault."""

    # The values and the keys of DoneLine are public JSON since a release: the members' names may change,
    # these may not.
    OK = "good"
    SKIPPED = "not-tried"
    WARNING = "look"
    FAILED = "broken"


VERDICT_TEXTS = {
    Verdict.OK: tr_noop("good"),
    Verdict.SKIPPED: tr_noop("skipped"),
    Verdict.WARNING: tr_noop("worth a look"),
    Verdict.FAILED: tr_noop("broken"),
}
ROW_TITLES = {
    "driver": tr_noop("NVIDIA driver"),
    "gpus": tr_noop("GPUs"),
    "vram": tr_noop("VRAM users"),
    "order": tr_noop("GPU order"),
    "peers": tr_noop("Peer to peer"),
    "python": tr_noop("Python and torch"),
    "own-python": tr_noop("Rankdeck's own Python"),
    "gloo": tr_noop("Two ranks with gloo"),
    "nccl": tr_noop("Two ranks with NCCL"),
    "loopback": tr_noop("Ports and loopback"),
    "hostname": tr_noop("Hostname"),
    "interface": tr_noop("Network interface"),
    "runs": tr_noop("Runs folder"),
    "state": tr_noop("Leases folder"),
    "shm": tr_noop("Shared memory"),
    "memory": tr_noop("Memory"),
    "files": tr_noop("Open files"),
    "processes": tr_noop("Processes"),
    "threads": tr_noop("Threads"),
    "clock": tr_noop("Clock"),
    "logout": tr_noop("After logout"),
}
"""Titles, by row name, of the rows about one machine, in the order in which the rows are listed."""
HOST_ROW_TITLES = {
    "ssh": tr_noop("SSH connection"),
    "reach": tr_noop("Connectivity"),
    "interfaces": tr_noop("Network interfaces"),
    "alike": tr_noop("Matching versions"),
    "clocks": tr_noop("Clocks"),
    "free": tr_noop("Free devices"),
    "disks": tr_noop("Runs folders"),
    "together": tr_noop("Two ranks with gloo"),
}
"""Titles of the rows about several hosts."""


def row_title(name: str) -> str:
    """Return the title of a row."""
    return ROW_TITLES[name] if name in ROW_TITLES else HOST_ROW_TITLES[name]


class DoctorLine(TranslatableStruct, tag_field="kind", kw_only=True):
    """Common fields of all lines: `t` is Unix time in seconds, `v` the version of the format."""

    t: float = msgspec.field(default_factory=time.time)
    v: int = 1


class AnnouncedRow(msgspec.Struct, kw_only=True):
    """A row that will follow."""

    name: str
    title: str


class ChecksLine(DoctorLine, tag="checks"):
    """The first line, which announces all rows."""

    rows: list[AnnouncedRow]


class CheckLine(DoctorLine, tag="check"):
    """One row. `seconds` is the time from the start of the row's check until the row was known."""

    name: str
    title: str
    verdict: Verdict
    finding: str
    evidence: list[str] = msgspec.field(default_factory=list)
    fix: str | None = None
    command: str | None = None
    seconds: float = 0.0


class DoneLine(DoctorLine, tag="done"):
    """The last line, with the names of rows by verdict."""

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
    """Create the row `name`, adding its title."""
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
    """Create a row for each name, stating that its check was skipped for the reason `why`."""
    return [make_row(name, Verdict.SKIPPED, why, *evidence) for name in names]


def announce_rows(names: Sequence[str]) -> ChecksLine:
    """Create the first line."""
    return ChecksLine(rows=[AnnouncedRow(name=name, title=row_title(name)) for name in names])


def summarize_rows(rows: Sequence[CheckLine], seconds: float) -> DoneLine:
    """Create the last line."""
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
    """Encode a line as JSON with a line feed."""
    return _encoder.encode(line) + b"\n"


def decode(line: bytes) -> AnyDoctorLine | None:
    """Decode a line; None if it is not one of the doctor's lines or this version does not know its kind.

    For example, the line with which a command reports its problems is not one of the doctor's lines.
    """
    try:
        return decode_json(_decoder.decode, line)
    except msgspec.DecodeError:
        return None
