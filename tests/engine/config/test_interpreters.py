"""Which Python runs a script: each place in its turn, and refusals in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config.environments import OWN_PYTHON_TEXT
from rankdeck.config.interpreters import choose_python
from tests.engine.config.test_environments import python_at


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "scripts").mkdir(parents=True)
    return tmp_path / "project"


def choose_for(
    project: Path, python: str | None = None, from_file: str | None = None, **environ: str
) -> tuple[Path, str]:
    folders = [project, project / "scripts"]
    choice = choose_python(python, folders=folders, environ={"PATH": "", **environ}, from_file=from_file)
    return choice.python, choice.source


def test_interpreters_are_searched_in_order(project: Path, tmp_path: Path) -> None:
    assert choose_for(project) == (Path(sys.executable), OWN_PYTHON_TEXT)
    beside_script = python_at(project / "scripts" / ".venv")
    assert choose_for(project) == (beside_script, ".venv")
    here = python_at(project / ".venv")
    assert choose_for(project) == (here, ".venv")
    conda, active = python_at(tmp_path / "conda"), python_at(tmp_path / "active")
    assert choose_for(project, CONDA_PREFIX=str(tmp_path / "conda")) == (conda, "CONDA_PREFIX")
    both = {"CONDA_PREFIX": str(tmp_path / "conda"), "VIRTUAL_ENV": str(tmp_path / "active")}
    assert choose_for(project, **both) == (active, "VIRTUAL_ENV")
    named = python_at(project / "named", "python3")
    assert choose_for(project, from_file="named", **both) == (named, "rankdeck.toml")
    python = python_at(tmp_path / "given", "python3.12")
    assert choose_for(project, str(python), "named", **both) == (python, "--python")


def test_the_environment_of_rankdeck_is_not_the_project_environment(project: Path) -> None:
    here = python_at(project / ".venv")
    assert choose_for(project, VIRTUAL_ENV=sys.prefix) == (here, ".venv")


def test_a_missing_active_environment_is_skipped_with_a_note(project: Path) -> None:
    choice = choose_python(None, folders=[project], environ={"VIRTUAL_ENV": "/gone"})
    assert choice.source == OWN_PYTHON_TEXT
    assert choice.notes == (
        "VIRTUAL_ENV is ignored: the folder that it points to, /gone, contains no Python.",
    )


def test_a_python_is_named_by_path_folder_or_command(project: Path, tmp_path: Path) -> None:
    python = python_at(project / "env", "python3.12")
    (project / "env" / "bin" / "python").symlink_to("python3.12")
    as_link = project / "env" / "bin" / "python"
    assert choose_for(project, "env") == (as_link, "--python")
    assert choose_for(project, "env/bin/python") == (as_link, "--python")
    assert choose_for(project, "python3.12", PATH=str(python.parent)) == (python, "--python")


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("nowhere/bin/python", "there is no Python at nowhere/bin/python"),
        ("scripts", "scripts is a folder without bin/python"),
        ("notes.txt", "notes.txt cannot be executed"),
        ("~nobody-of-this-name/x", "there is no Python at"),
        ("", "does not specify an interpreter"),
    ],
)
def test_an_invalid_interpreter_is_refused(project: Path, python: str, message: str) -> None:
    (project / "notes.txt").touch()
    with pytest.raises(ConfigError, match=message) as refused:
        choose_for(project, python)
    assert refused.value.problem.path == "script.python" and refused.value.advice


def test_a_misspelt_interpreter_gets_a_suggestion(project: Path) -> None:
    near = python_at(project / ".venv")
    (project / ".venv" / "pyvenv.cfg").touch()
    with pytest.raises(ConfigError) as refused:
        choose_for(project, f"{near}3")
    assert str(near) in str(refused.value.advice)
