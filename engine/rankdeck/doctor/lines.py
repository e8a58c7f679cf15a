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

from rankdeck.base.parsing import decoded
from rankdeck.base.phrases import Telling, marked


class Verdict(StrEnum):
    """From the best to the worst; what could not be tried is no fault."""

    GOOD = "good"
    NOT_TRIED = "not-tried"
    LOOK = "look"
    BROKEN = "broken"


VERDICT_WORDS = {
    Verdict.GOOD: marked("good"),
    Verdict.NOT_TRIED: marked("not tried"),
    Verdict.LOOK: marked("worth a look"),
    Verdict.BROKEN: marked("broken"),
}
TITLES = {
    "driver": marked("NVIDIA driver"),
    "gpus": marked("GPUs"),
    "vram": marked("Who holds VRAM"),
    "order": marked("Order of GPUs"),
    "peers": marked("Peer to peer"),
    "python": marked("Python and torch"),
    "own-python": marked("Rankdeck's own Python"),
    "gloo": marked("Two ranks by gloo"),
    "nccl": marked("Two ranks by NCCL"),
    "loopback": marked("Ports and loopback"),
    "hostname": marked("Hostname"),
    "interface": marked("Network interface"),
    "runs": marked("Folder of runs"),
    "state": marked("Folder of leases"),
    "shm": marked("Shared memory"),
    "memory": marked("Memory"),
    "files": marked("Open files"),
    "processes": marked("Processes"),
    "threads": marked("Threads"),
    "clock": marked("Clock"),
    "logout": marked("After logging out"),
}
"""Every row by its name, in the order in which they are listed."""
TITLES_OF_HOSTS = {
    "ssh": marked("Connection by ssh"),
    "reach": marked("Each reaches the others"),
    "interfaces": marked("Network interfaces"),
    "alike": marked("The same versions"),
    "clocks": marked("Clocks"),
    "free": marked("Free devices"),
    "disks": marked("Folders of runs"),
    "together": marked("Two ranks by gloo"),
}
"""The same of several hosts."""


def title_of_row(name: str) -> str:
    """As it is listed."""
    return TITLES[name] if name in TITLES else TITLES_OF_HOSTS[name]


class DoctorLine(Telling, tag_field="kind", kw_only=True):
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


def row(
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
        title=title_of_row(name),
        verdict=verdict,
        finding=finding,
        evidence=list(evidence),
        fix=fix,
        command=command,
    )


def not_tried(names: Iterable[str], why: str, *evidence: str) -> list[CheckLine]:
    """A row for each name that could not be looked at, for one reason."""
    return [row(name, Verdict.NOT_TRIED, why, *evidence) for name in names]


def announced(names: Sequence[str]) -> ChecksLine:
    """The first line."""
    return ChecksLine(rows=[AnnouncedRow(name=name, title=title_of_row(name)) for name in names])


def summed_up(rows: Sequence[CheckLine], seconds: float) -> DoneLine:
    """The last line."""
    names = {verdict: [line.name for line in rows if line.verdict is verdict] for verdict in Verdict}
    return DoneLine(
        broken=names[Verdict.BROKEN],
        look=names[Verdict.LOOK],
        not_tried=names[Verdict.NOT_TRIED],
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
        return decoded(_decoder.decode, line)
    except msgspec.DecodeError:
        return None
