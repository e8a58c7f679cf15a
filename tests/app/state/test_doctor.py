"""The doctor as the app asks it: lines are taken as they come, an early end is said, no process is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck.doctor.lines import Verdict, announced, encode, row
from rankdeck_app.settings import Settings
from rankdeck_app.state import doctor as state
from rankdeck_app.state.doctor import Doctor, in_window_words
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.workspace import Workspace
from tests.helpers.told_doctor import NAMES, ToldDoctor, told_rows, whole_look
from tests.helpers.waiting import wait_until

WAIT_MS = 10_000


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldDoctor:
    return ToldDoctor(tmp_path, monkeypatch)


@pytest.fixture
def doctor(qtbot: QtBot, told: ToldDoctor, tmp_path: Path) -> Iterator[Doctor]:
    parent = QObject()
    engine = Engine(tmp_path / "launch", parent)
    engine.python = told.python
    settings = Settings(tmp_path / "s.toml")
    made = Doctor(engine, Workspace(tmp_path / "ws.json", settings, folder=tmp_path, parent=parent), parent)
    yield made
    made.stop()
    engine.close()


def ended(qtbot: QtBot, doctor: Doctor) -> None:
    qtbot.waitUntil(lambda: not doctor.is_looking, timeout=WAIT_MS)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_look_tells_every_row_and_is_done(qtbot: QtBot, doctor: Doctor, told: ToldDoctor) -> None:
    assert not doctor.was_asked
    doctor.look()
    doctor.look()  # the same one
    ended(qtbot, doctor)
    assert list(doctor.lines) == list(NAMES) and doctor.problem == ""
    assert [doctor.count(verdict) for verdict in state.WORST_FIRST] == [1, 1, 2, 1]
    assert doctor.done is not None and doctor.done.seconds == 4.2
    assert len(told.pids) == 1 and told.arguments[:3] == ["-P", "-m", "rankdeck"]
    assert told.arguments[5:] == ["doctor", "--json", "--runs", os.environ["RANKDECK_RUNS"]]


@pytest.mark.parametrize(
    ("then", "why"),
    [("die", "It ended with signal 9 before all was looked at."), ("refuse", "There is no GPU 7. Use 0.")],
)
def test_an_early_end_is_said_in_words(
    qtbot: QtBot, doctor: Doctor, told: ToldDoctor, then: str, why: str
) -> None:
    told.tell(encode(announced(NAMES)) + encode(told_rows()[0]), then)
    doctor.look()
    ended(qtbot, doctor)
    assert doctor.problem == why and doctor.done is None
    told.tell(whole_look())
    doctor.look()
    ended(qtbot, doctor)
    assert doctor.problem == "" and len(doctor.lines) == len(NAMES)


def test_an_end_without_a_last_line_is_early_too(qtbot: QtBot, doctor: Doctor, told: ToldDoctor) -> None:
    told.tell(encode(announced(NAMES)))
    doctor.look()
    ended(qtbot, doctor)
    assert doctor.problem == "It ended with exit code 0 before all was looked at."


def test_a_python_that_is_none_is_said(qtbot: QtBot, doctor: Doctor, tmp_path: Path) -> None:
    doctor._engine.python = str(tmp_path / "no-python")
    doctor.look()
    ended(qtbot, doctor)
    assert doctor.problem.startswith("The doctor could not be started: ") and "no-python" in doctor.problem


def test_lines_that_are_none_are_passed_over(qtbot: QtBot, doctor: Doctor, told: ToldDoctor) -> None:
    stray = encode(row("memory", Verdict.GOOD, "of no row that was announced"))
    bad = b'\xff\xfe\n{"kind": "check"}\n[[[\n\n{"kind": "new"}\n' + b"[" * 5000 + b"\n"
    told.tell(
        bad + encode(announced(NAMES)) + stray + bad + b"".join(map(encode, told_rows())) + whole_look()
    )
    doctor.look()
    ended(qtbot, doctor)
    assert list(doctor.lines) == list(NAMES) and doctor.problem == ""


def test_what_is_enormous_is_cut_or_refused(qtbot: QtBot, doctor: Doctor, told: ToldDoctor) -> None:
    long = row("shm", Verdict.GOOD, "x" * 100_000, *["y" * 5000] * 100)
    told.tell(encode(announced(NAMES)) + encode(long) + whole_look().splitlines(keepends=True)[-1])
    doctor.look()
    ended(qtbot, doctor)
    said = in_window_words(doctor.lines["shm"])
    assert len(said.finding) <= 1001 and len("".join(said.evidence)) < 40_000
    told.tell(b"x" * (state.MOST_BYTES + 1_000_000), "hang")
    doctor.look()
    ended(qtbot, doctor)
    assert doctor.problem == "It said more than is read."
    wait_until(lambda: not is_alive(told.pids[-1]), deadline_s=10, what="its end")


def test_a_look_that_is_stopped_leaves_no_process(qtbot: QtBot, doctor: Doctor, told: ToldDoctor) -> None:
    told.tell(encode(announced(NAMES)), "hang")
    doctor.look()
    qtbot.waitUntil(lambda: bool(doctor.rows), timeout=WAIT_MS)
    (pid,) = told.pids
    assert is_alive(pid)
    doctor.stop()
    assert not is_alive(pid) and not doctor.is_looking and doctor.problem == "It was stopped."


def test_what_was_found_before_stays_until_it_is_known_anew(
    qtbot: QtBot, doctor: Doctor, told: ToldDoctor
) -> None:
    doctor.look()
    ended(qtbot, doctor)
    told.tell(encode(announced(NAMES[1:])) + encode(told_rows()[1]), "hang")
    doctor.look()
    qtbot.waitUntil(lambda: bool(doctor.lines), timeout=WAIT_MS)
    assert list(doctor.lines) == ["shm"] and set(doctor.earlier) == set(NAMES[1:])
    doctor.stop()
    assert not doctor.earlier


def test_the_report_has_the_worst_first_and_all_of_it(qtbot: QtBot, doctor: Doctor, made_up: None) -> None:
    doctor.look()
    ended(qtbot, doctor)
    report = doctor.report()
    heads = [line.split(":")[0] for line in report.splitlines()[1:] if line and not line.startswith(" ")]
    assert heads == ["broken", "worth a look", "good", "good", "not tried"]
    assert "\nbroken: Two ranks by gloo: No two ranks can start: torch is not imported.\n    /opt/" in report
    assert "    export GLOO_SOCKET_IFNAME=lo\n" in report and doctor.python in report
    assert in_window_words(doctor.lines["clock"]).finding != doctor.lines["clock"].finding, "it is translated"
