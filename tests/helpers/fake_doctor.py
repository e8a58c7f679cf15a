"""A doctor that says what a test wants: fake_planner.py stands for the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankdeck.base.phrases import phrase
from rankdeck.doctor.lines import (
    CheckLine,
    DoctorLine,
    Verdict,
    announce_rows,
    encode,
    make_row,
    summarize_rows,
)
from tests.helpers.fake_plan import FAKE_PLANNER

NAMES = ("driver", "shm", "files", "gloo", "clock")


def check_rows() -> list[CheckLine]:
    """One of each verdict, and a second good one."""
    return [
        make_row("driver", Verdict.SKIPPED, phrase("No NVIDIA driver and no NVIDIA card were found.")),
        make_row(
            "shm", Verdict.OK, phrase("{free} is free for loader workers.", free="23.5 GiB"), "/dev/shm"
        ),
        make_row("files", Verdict.OK, phrase("A process can open {count} files.", count=20000)),
        make_row(
            "gloo",
            Verdict.FAILED,
            phrase("Ranks cannot start: torch cannot be imported."),
            "/opt/" + "averylongfolder" * 20 + "/python",
            fix=phrase("See the result for Python and torch."),
            command="export GLOO_SOCKET_IFNAME=lo",
        ),
        make_row(
            "clock",
            Verdict.WARNING,
            phrase("The clock is not synchronised: times on several hosts will differ."),
            phrase("adjtimex: not synchronised"),
            fix=phrase("Synchronise the clock with a time service (chrony, systemd-timesyncd)."),
            command="timedatectl set-ntp true",
        ),
    ]


def encoded_checks() -> bytes:
    """All lines of a look, encoded."""
    rows = check_rows()
    lines: list[DoctorLine] = [announce_rows(NAMES), *rows, summarize_rows(rows, 4.2)]
    return b"".join(map(encode, lines))


class FakeDoctor:
    """`python` is the engine's; what it tells is given by `set_output`."""

    python = str(FAKE_PLANNER)

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        patch.setenv("FAKE_LOG", str(folder / "log"))
        self.set_output(encoded_checks())

    def set_output(self, lines: bytes, then: str = "") -> None:
        """`then` as fake_planner.py has it."""
        file = self._folder / "lines"
        file.write_bytes(lines)
        self._patch.setenv("FAKE_LINES", str(file))
        self._patch.setenv("FAKE_THEN", then)

    @property
    def pids(self) -> list[int]:
        """Of all looks that were begun."""
        return [start["pid"] for start in self._starts()]

    @property
    def arguments(self) -> list[str]:
        """Of the newest."""
        return list(self._starts()[-1]["arguments"])

    def _starts(self) -> list[dict]:  # type: ignore[type-arg]
        log = self._folder / "log"
        starts = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [start for start in starts if "doctor" in start["arguments"]]
