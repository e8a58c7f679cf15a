"""Which Python runs a script: each place in its turn, and refusals in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config.environments import OWN
from rankdeck.config.interpreters import choose
from tests.engine.config.test_environments import python_at


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "scripts").mkdir(parents=True)
    return tmp_path / "project"


def chosen(
    project: Path, given: str | None = None, from_file: str | None = None, **environ: str
) -> tuple[Path, str]:
    folders = [project, project / "scripts"]
    found = choose(given, folders=folders, environ={"PATH": "", **environ}, from_file=from_file)
    return found.python, found.source


def test_each_place_is_looked_at_in_its_turn(project: Path, tmp_path: Path) -> None:
    assert chosen(project) == (Path(sys.executable), OWN)
    beside_script = python_at(project / "scripts" / ".venv")
    assert chosen(project) == (beside_script, ".venv")
    here = python_at(project / ".venv")
    assert chosen(project) == (here, ".venv")
    conda, active = python_at(tmp_path / "conda"), python_at(tmp_path / "active")
    assert chosen(project, CONDA_PREFIX=str(tmp_path / "conda")) == (conda, "CONDA_PREFIX")
    both = {"CONDA_PREFIX": str(tmp_path / "conda"), "VIRTUAL_ENV": str(tmp_path / "active")}
    assert chosen(project, **both) == (active, "VIRTUAL_ENV")
    named = python_at(project / "named", "python3")
    assert chosen(project, from_file="named", **both) == (named, "rankdeck.toml")
    given = python_at(tmp_path / "given", "python3.12")
    assert chosen(project, str(given), "named", **both) == (given, "--python")


def test_rankdeck_s_own_environment_is_not_taken_for_the_project_s(project: Path) -> None:
    here = python_at(project / ".venv")
    assert chosen(project, VIRTUAL_ENV=sys.prefix) == (here, ".venv")


def test_an_active_environment_that_is_gone_is_passed_over_and_told(project: Path) -> None:
    found = choose(None, folders=[project], environ={"VIRTUAL_ENV": "/gone"})
    assert found.source == OWN
    assert found.notes == ("VIRTUAL_ENV names /gone, which has no Python; it is passed over.",)


def test_a_python_is_named_by_path_folder_or_command(project: Path, tmp_path: Path) -> None:
    python = python_at(project / "env", "python3.12")
    (project / "env" / "bin" / "python").symlink_to("python3.12")
    as_link = project / "env" / "bin" / "python"
    assert chosen(project, "env") == (as_link, "--python")
    assert chosen(project, "env/bin/python") == (as_link, "--python")
    assert chosen(project, "python3.12", PATH=str(python.parent)) == (python, "--python")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere/bin/python", "there is no Python at nowhere/bin/python"),
        ("scripts", "scripts is a folder without bin/python"),
        ("notes.txt", "notes.txt cannot be executed"),
        ("~nobody-of-this-name/x", "there is no Python at"),
        ("", "names no interpreter"),
    ],
)
def test_what_is_no_python_is_refused_in_words(project: Path, given: str, said: str) -> None:
    (project / "notes.txt").touch()
    with pytest.raises(ConfigError, match=said) as refused:
        chosen(project, given)
    assert refused.value.problem.path == "script.python" and refused.value.advice


def test_a_misspelt_python_is_told_the_nearest_one(project: Path) -> None:
    near = python_at(project / ".venv")
    (project / ".venv" / "pyvenv.cfg").touch()
    with pytest.raises(ConfigError) as refused:
        chosen(project, f"{near}3")
    assert str(near) in str(refused.value.advice)
