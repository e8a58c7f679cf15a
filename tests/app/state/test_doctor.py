"""The doctor as the app asks it: lines are taken as they come, an early end is said, no process is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck.doctor.lines import Verdict, announce_rows, encode, make_row
from rankdeck_app.settings import Settings
from rankdeck_app.state import doctor as state
from rankdeck_app.state.doctor import Doctor, translate_check
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.workspace import Workspace
from tests.helpers.fake_doctor import NAMES, FakeDoctor, check_rows, encoded_checks
from tests.helpers.waiting import wait_until

WAIT_MS = 10_000


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDoctor:
    return FakeDoctor(tmp_path, monkeypatch)


@pytest.fixture
def doctor(qtbot: QtBot, command: FakeDoctor, tmp_path: Path) -> Iterator[Doctor]:
    parent = QObject()
    engine = Engine(tmp_path / "launch", parent)
    engine.python = command.python
    settings = Settings(tmp_path / "s.toml")
    new_doctor = Doctor(
        engine, Workspace(tmp_path / "ws.json", settings, folder=tmp_path, parent=parent), parent
    )
    yield new_doctor
    new_doctor.stop()
    engine.close()


def wait_until_finished(qtbot: QtBot, doctor: Doctor) -> None:
    qtbot.waitUntil(lambda: not doctor.is_running, timeout=WAIT_MS)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_doctor_reports_every_row(qtbot: QtBot, doctor: Doctor, command: FakeDoctor) -> None:
    assert not doctor.has_results
    doctor.start()
    doctor.start()  # the same one
    wait_until_finished(qtbot, doctor)
    assert list(doctor.lines) == list(NAMES) and doctor.problem == ""
    assert [doctor.count(verdict) for verdict in state.SEVERITY_ORDER] == [1, 1, 2, 1]
    assert doctor.done is not None and doctor.done.seconds == 4.2
    assert len(command.pids) == 1 and command.arguments[:3] == ["-P", "-m", "rankdeck"]
    assert command.arguments[5:] == ["doctor", "--json", "--runs", os.environ["RANKDECK_RUNS"]]


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("die", "The doctor ended with signal 9 before all checks were done."),
        ("refuse", "There is no GPU 7. Use 0."),
    ],
)
def test_an_early_exit_is_explained(
    qtbot: QtBot, doctor: Doctor, command: FakeDoctor, then: str, why: str
) -> None:
    command.set_output(encode(announce_rows(NAMES)) + encode(check_rows()[0]), then)
    doctor.start()
    wait_until_finished(qtbot, doctor)
    assert doctor.problem == why and doctor.done is None
    command.set_output(encoded_checks())
    doctor.start()
    wait_until_finished(qtbot, doctor)
    assert doctor.problem == "" and len(doctor.lines) == len(NAMES)


def test_an_exit_without_the_last_line_counts_as_early(
    qtbot: QtBot, doctor: Doctor, command: FakeDoctor
) -> None:
    command.set_output(encode(announce_rows(NAMES)))
    doctor.start()
    wait_until_finished(qtbot, doctor)
    assert doctor.problem == "The doctor ended with exit code 0 before all checks were done."


def test_a_missing_python_is_reported(qtbot: QtBot, doctor: Doctor, tmp_path: Path) -> None:
    doctor._engine.python = str(tmp_path / "no-python")
    doctor.start()
    wait_until_finished(qtbot, doctor)
    assert doctor.problem.startswith("The doctor could not be started: ") and "no-python" in doctor.problem


def test_invalid_lines_are_skipped(qtbot: QtBot, doctor: Doctor, command: FakeDoctor) -> None:
    stray = encode(make_row("memory", Verdict.OK, "of no row that was announced"))
    bad = b'\xff\xfe\n{"kind": "check"}\n[[[\n\n{"kind": "new"}\n' + b"[" * 5000 + b"\n"
    command.set_output(
        bad
        + encode(announce_rows(NAMES))
        + stray
        + bad
        + b"".join(map(encode, check_rows()))
        + encoded_checks()
    )
    doctor.start()
    wait_until_finished(qtbot, doctor)
    assert list(doctor.lines) == list(NAMES) and doctor.problem == ""


def test_oversized_output_is_truncated_or_refused(qtbot: QtBot, doctor: Doctor, command: FakeDoctor) -> None:
    long = make_row("shm", Verdict.OK, "x" * 100_000, *["y" * 5000] * 100)
    command.set_output(
        encode(announce_rows(NAMES)) + encode(long) + encoded_checks().splitlines(keepends=True)[-1]
    )
    doctor.start()
    wait_until_finished(qtbot, doctor)
    check = translate_check(doctor.lines["shm"])
    assert len(check.finding) <= 1001 and len("".join(check.evidence)) < 40_000
    command.set_output(b"x" * (state.MAX_OUTPUT_BYTES + 1_000_000), "hang")
    doctor.start()
    wait_until_finished(qtbot, doctor)
    assert doctor.problem == "The doctor printed too much output and was stopped."
    wait_until(lambda: not is_alive(command.pids[-1]), deadline_s=10, what="its end")


def test_stopping_leaves_no_process(qtbot: QtBot, doctor: Doctor, command: FakeDoctor) -> None:
    command.set_output(encode(announce_rows(NAMES)), "hang")
    doctor.start()
    qtbot.waitUntil(lambda: bool(doctor.rows), timeout=WAIT_MS)
    (pid,) = command.pids
    assert is_alive(pid)
    doctor.stop()
    assert not is_alive(pid) and not doctor.is_running and doctor.problem == "The doctor was stopped."


def test_previous_results_stay_until_replaced(qtbot: QtBot, doctor: Doctor, command: FakeDoctor) -> None:
    doctor.start()
    wait_until_finished(qtbot, doctor)
    command.set_output(encode(announce_rows(NAMES[1:])) + encode(check_rows()[1]), "hang")
    doctor.start()
    qtbot.waitUntil(lambda: bool(doctor.lines), timeout=WAIT_MS)
    assert list(doctor.lines) == ["shm"] and set(doctor.previous_lines) == set(NAMES[1:])
    doctor.stop()
    assert not doctor.previous_lines


def test_the_report_lists_everything_by_severity(qtbot: QtBot, doctor: Doctor, made_up: None) -> None:
    doctor.start()
    wait_until_finished(qtbot, doctor)
    report = doctor.report()
    heads = [line.split(":")[0] for line in report.splitlines()[1:] if line and not line.startswith(" ")]
    assert heads == ["broken", "worth a look", "good", "good", "skipped"]
    assert "\nbroken: Two ranks with gloo: Ranks cannot start: torch cannot be imported.\n    /opt/" in report
    assert "    export GLOO_SOCKET_IFNAME=lo\n" in report and doctor.python in report
    assert translate_check(doctor.lines["clock"]).finding != doctor.lines["clock"].finding, "it is translated"
