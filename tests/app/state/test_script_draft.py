"""The script's form: what it means as a command, what is wrong with it, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.base.errors import Problem
from rankdeck.config.folder_file import ScriptEntry
from rankdeck_app.state.script_draft import ScriptDraft
from tests.helpers.own_scripts import project


@pytest.fixture
def script(qtbot: QtBot, tmp_path: Path) -> Iterator[ScriptDraft]:
    script = ScriptDraft(tmp_path / "script.json", project(tmp_path / "project"))
    yield script
    script.close()


def test_the_form_becomes_a_command_line(script: ScriptDraft, tmp_path: Path) -> None:
    script.set_fields(
        run="train.py", arguments="--name 'two words' -v", environment="A=1\n\nB=x=y", devices="cpu:3"
    )
    assert not script.problems and script.ranks == 3
    command = script.build_command("/env/bin/python", tmp_path / "runs")
    assert command == [
        *("run", "--detach", "--json", "--runs", str(tmp_path / "runs"), "--python", "/env/bin/python"),
        *("--devices", "cpu:3", "--nproc-per-node", "3", "--observe", "light"),
        *("--env", "A=1", "--env", "B=x=y", "--", "train.py", "--name", "two words", "-v"),
    ]
    script.set_fields(run="-m package.train", devices="gpu:0,1", ranks=2, arguments="")
    assert not script.problems and script.name == "package.train"
    assert script.build_command("p", tmp_path)[-2:] == ["-m", "package.train"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("run", "", "No script is chosen"),
        ("run", "trian.py", "trian.py does not exist"),
        ("run", "models", "is a folder"),
        ("arguments", "--name 'open", "a quotation mark is not closed"),
        (
            "environment",
            "A=1\n2B=3",
            'Line 2 of the environment variables, "2B=3", is not in the form NAME=value',
        ),
        ("devices", "gpu:", "No GPU is chosen"),
        ("devices", "gpu:x", "neither a GPU index"),
    ],
)
def test_problems_name_their_field(script: ScriptDraft, field: str, value: str, message: str) -> None:
    script.set_fields(run="train.py")
    script.set_fields(**{field: value})
    problem = script.find_problem(field)
    assert problem is not None and message in problem.message and problem.advice
    assert script.problems == [problem]


def test_an_engine_problem_stays_until_the_form_changes(script: ScriptDraft) -> None:
    script.set_fields(run="train.py")
    script.set_engine_problems([Problem("no-python", "There is no Python.", path="script.python")])
    assert script.find_problem("python") is not None
    script.set_fields(arguments="-v")
    assert script.find_problem("python") is None


def test_an_entry_round_trips_through_the_form(script: ScriptDraft) -> None:
    entry = ScriptEntry(
        run="train.py", args=["--name", "two words"], devices="gpu:0,1", ranks=2,
        environment={"A": "1"}, python=".venv", observe="full",
    )  # fmt: skip
    script.load_entry("big", entry)
    assert script.form.arguments == "--name 'two words'" and script.form.entry == "big"
    assert script.to_entry() == entry


def test_the_form_of_each_folder_is_restored(script: ScriptDraft, tmp_path: Path) -> None:
    folder = script.folder
    script.set_fields(run="train.py", arguments="-v")
    script.set_folder(tmp_path)
    assert script.form.run == ""
    script.set_file(tmp_path / "project" / "train.py")
    assert script.form.run == "project/train.py"
    script.set_chosen(True)
    script.close()
    again = ScriptDraft(tmp_path / "script.json", folder)
    assert again.form.arguments == "-v" and again.is_chosen
    (tmp_path / "script.json").write_text('{"folders": 3}')
    assert not ScriptDraft(tmp_path / "script.json", folder).is_chosen
