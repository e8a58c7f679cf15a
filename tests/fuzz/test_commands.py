"""Commands of damaged runs, each in a process of its own; a share of what `make fuzz` does."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings

from tests.fuzz.commands import check_command, command_cases
from tests.fuzz.damage import Foreign
from tests.fuzz.example import BOUNDED, Case, Place
from tests.fuzz.readers import OUTSIDE_COMMANDS

NUM_EXAMPLES = 3


def test_no_command_breaks(tmp_path: Path) -> None:
    workspace = Place(tmp_path)

    @settings(BOUNDED, max_examples=NUM_EXAMPLES, derandomize=True)
    @given(command_cases())
    def check(case: Case) -> None:
        check_command(workspace, case)

    check()


def test_code_that_a_run_names_is_not_run(tmp_path: Path) -> None:
    """Nobody has agreed to it."""
    resume = next(at for at, command in enumerate(OUTSIDE_COMMANDS) if command[0] == "resume")
    check_command(Place(tmp_path), Case(0, (Foreign("model", "canary.py:x"),), (resume,)))
