"""What a guard says can be said in another language, as what everybody else says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdeck.base import phrases
from rankdeck.base.errors import Problem
from rankdeck.launch import last_word
from rankdeck.launch.last_word import LastWord, how_it_was_killed
from rankdeck.rundir import create
from tests.helpers.launching import problems, small_config


def said_with(phrase: Callable[..., Any]) -> tuple[Any, Any]:
    inner = phrase("after step {step}", step=3)
    return phrase("{cause} It goes on {where}.", cause="Killed.", where=inner), phrase("Use {a} as it is.")


def test_a_guards_problem_keeps_what_every_part_of_it_was_made_of(tmp_path: Path) -> None:
    run = create(tmp_path / "runs", small_config(tmp_path), {})
    message, advice = said_with(last_word.phrase)
    word, folder = LastWord(0), os.open(run.path, os.O_DIRECTORY)
    word.reserve(folder)
    word.tell_problem("x", message, advice)
    word.tell_problem("y", message, severity="warning")
    message, advice = said_with(phrases.phrase)
    assert message == "Killed. It goes on after step 3." and advice == "Use {a} as it is."
    assert problems(run) == [Problem("x", message, advice=advice)]
    assert problems(run, "warning") == [Problem("y", message, severity="warning")]
    os.close(folder)


def test_nobody_else_says_how_a_run_ended(tmp_path: Path) -> None:
    run = create(tmp_path / "runs", small_config(tmp_path), {})
    word, folder = LastWord(0), os.open(run.path, os.O_RDONLY)
    try:
        word.reserve(folder)
        (run.path / "end.json").write_text('{"outcome": "completed", "exit_code": 0, "ended": 1.0}')
        assert run.end() is None
        word.write("failed", 1, "It raised.")
    finally:
        os.close(folder)
    end = run.end()
    assert end is not None and (end.outcome, end.exit_code) == ("failed", 1)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (63, "signal 63")])
def test_the_signal_that_ended_a_supervisor_is_named(number: int, name: str) -> None:
    said = how_it_was_killed(number)
    assert f"was ended by {name}, which" in said and said.arguments[""] == {"signal": name}
    assert (".signal" in said.templates) == (name == "signal 63")
