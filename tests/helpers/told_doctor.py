"""A doctor that says what a test wants: told_planner.py stands for the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankdeck.base.phrases import phrase
from rankdeck.doctor.lines import CheckLine, DoctorLine, Verdict, announced, encode, row, summed_up
from tests.helpers.told_plan import TOLD

NAMES = ("driver", "shm", "files", "gloo", "clock")


def told_rows() -> list[CheckLine]:
    """One of each verdict, and a second good one."""
    return [
        row("driver", Verdict.NOT_TRIED, phrase("There is no driver here, and no card that is seen.")),
        row("shm", Verdict.GOOD, phrase("{free} are free for loader workers.", free="23.5 GiB"), "/dev/shm"),
        row("files", Verdict.GOOD, phrase("A process may open {count} files.", count=20000)),
        row(
            "gloo",
            Verdict.BROKEN,
            phrase("No two ranks can start: torch is not imported."),
            "/opt/" + "averylongfolder" * 20 + "/python",
            fix=phrase("See Python and torch."),
            command="export GLOO_SOCKET_IFNAME=lo",
        ),
        row(
            "clock",
            Verdict.LOOK,
            phrase("Nothing keeps it right: times of several hosts will differ."),
            phrase("adjtimex: not synchronised"),
            fix=phrase("Let something keep it right (chrony, systemd-timesyncd)."),
            command="timedatectl set-ntp true",
        ),
    ]


def whole_look() -> bytes:
    """All lines of a look, encoded."""
    rows = told_rows()
    lines: list[DoctorLine] = [announced(NAMES), *rows, summed_up(rows, 4.2)]
    return b"".join(map(encode, lines))


class ToldDoctor:
    """`python` is the engine's; what it tells is given by `tell`."""

    python = str(TOLD)

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        patch.setenv("TOLD_LOG", str(folder / "log"))
        self.tell(whole_look())

    def tell(self, lines: bytes, then: str = "") -> None:
        """`then` as told_planner.py has it."""
        file = self._folder / "lines"
        file.write_bytes(lines)
        self._patch.setenv("TOLD_LINES", str(file))
        self._patch.setenv("TOLD_THEN", then)

    @property
    def pids(self) -> list[int]:
        """Of all looks that were begun."""
        return [one["pid"] for one in self._starts()]

    @property
    def arguments(self) -> list[str]:
        """Of the newest."""
        return list(self._starts()[-1]["arguments"])

    def _starts(self) -> list[dict]:  # type: ignore[type-arg]
        log = self._folder / "log"
        starts = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [one for one in starts if "doctor" in one["arguments"]]
