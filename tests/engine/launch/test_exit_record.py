"""What a guard says can be said in another language, as what everybody else says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdeck.base import phrases
from rankdeck.base.errors import Problem
from rankdeck.launch import exit_record
from rankdeck.launch.exit_record import ExitRecorder, killed_message
from rankdeck.run_dir import create_run_dir
from tests.helpers.launching import read_problems, small_config


def phrase_parts(phrase: Callable[..., Any]) -> tuple[Any, Any]:
    inner = phrase("after step {step}", step=3)
    return phrase("{cause} It goes on {where}.", cause="Killed.", where=inner), phrase("Use {a} as it is.")


def test_a_guard_problem_keeps_its_translatable_parts(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "runs", small_config(tmp_path), {})
    message, advice = phrase_parts(exit_record.phrase)
    word, folder = ExitRecorder(0), os.open(run.path, os.O_DIRECTORY)
    word.reserve(folder)
    word.report_problem("x", message, advice)
    word.report_problem("y", message, severity="warning")
    message, advice = phrase_parts(phrases.phrase)
    assert message == "Killed. It goes on after step 3." and advice == "Use {a} as it is."
    assert read_problems(run) == [Problem("x", message, advice=advice)]
    assert read_problems(run, "warning") == [Problem("y", message, severity="warning")]
    os.close(folder)


def test_only_the_guard_writes_the_exit_record(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "runs", small_config(tmp_path), {})
    word, folder = ExitRecorder(0), os.open(run.path, os.O_RDONLY)
    try:
        word.reserve(folder)
        (run.path / "end.json").write_text('{"outcome": "completed", "exit_code": 0, "ended": 1.0}')
        assert run.exit_record() is None
        word.write("failed", 1, "It raised.")
    finally:
        os.close(folder)
    end = run.exit_record()
    assert end is not None and (end.outcome, end.exit_code) == ("failed", 1)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (63, "signal 63")])
def test_the_signal_that_ended_a_supervisor_is_named(number: int, name: str) -> None:
    message = killed_message(number)
    assert f"was killed by {name}, which" in message and message.arguments[""] == {"signal": name}
    assert (".signal" in message.templates) == (name == "signal 63")
