"""Chooses the Python that runs a script, without starting any interpreter.

The candidates are tried in this order: --python, the folder's rankdeck.toml, the active environment
(VIRTUAL_ENV or CONDA_PREFIX, unless it is Rankdeck's own), .venv, and Rankdeck's own, which is last because
the app and a project are often in different environments. Read environments.py for how interpreters are
described, and folder_file.py for rankdeck.toml.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankdeck.base.errors import ConfigError, did_you_mean
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import phrase
from rankdeck.config import environments
from rankdeck.config.environments import OWN_PYTHON_TEXT
from rankdeck.config.folder_file import FOLDER_FILE

# In this order, because conda's base environment often stays active below a virtual environment.
ACTIVE_ENV_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")
PYTHON_OPTION = "script.python"
"""Name of the interpreter option in errors, as spelled in config.toml."""
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class ChosenPython:
    """The interpreter to start, with a description of where it was found. `notes` are warnings."""

    python: Path
    source: str
    notes: tuple[str, ...] = ()

    def describe(self, environ: Mapping[str, str]) -> str:
        """Return text such as '/p/.venv/bin/python (.venv), Python 3.11.7, torch 2.13.0'."""
        info = environments.describe_interpreter(self.python, environ)
        return f"{self.python} ({self.source}), {info.format_versions()}"


def choose_python(
    named_python: str | None,
    *,
    folders: Sequence[Path],
    environ: Mapping[str, str],
    from_file: str | None = None,
    from_file_folder: Path | None = None,
) -> ChosenPython:
    """Choose the interpreter for a script.

    `named_python` is the value of --python. `from_file` is the value in rankdeck.toml, relative to
    `from_file_folder`. `folders` are searched for a .venv: the current folder and the script's. If `folders`
    is empty, no interpreter from a folder is chosen.

    Raises:
        ConfigError: the named interpreter does not exist.
    """
    folder = folders[0] if folders else Path.cwd()
    if named_python is not None:
        return ChosenPython(
            find_named_python(named_python, folder=folder, environ=environ, source="--python"), "--python"
        )
    if from_file is not None:
        base = from_file_folder or folder
        return ChosenPython(
            find_named_python(from_file, folder=base, environ=environ, source=FOLDER_FILE), FOLDER_FILE
        )
    notes: list[str] = []
    for variable in ACTIVE_ENV_VARIABLES:
        prefix = environ.get(variable)
        # The app is often started from its own environment, while the project has another one.
        if not prefix or environments.is_rankdeck_environment(Path(prefix)):
            continue
        if (python := environments.find_python(Path(prefix).absolute())) is not None:
            return ChosenPython(python, variable, tuple(notes))
        notes.append(
            phrase(
                "{variable} is ignored: the folder that it points to, {folder}, contains no Python.",
                variable=variable,
                folder=prefix,
            )
        )
    for search_folder in folders:
        if (python := environments.find_python(search_folder.absolute() / ".venv")) is not None:
            return ChosenPython(python, ".venv", tuple(notes))
    return ChosenPython(environments.rankdeck_python(), OWN_PYTHON_TEXT, tuple(notes))


def find_named_python(text: str, *, folder: Path, environ: Mapping[str, str], source: str) -> Path:
    """Return the interpreter for a path, an environment's folder, or a command on PATH.

    Symlinks are not resolved, since the Python of an environment is usually a symlink. Errors name `source`
    as the origin of the text.

    Raises:
        ConfigError: there is no such interpreter.
    """
    if not text.strip():
        message = phrase("{where} does not specify an interpreter.", where=source)
        raise _no_python_error(
            message, phrase("Specify an interpreter, or the folder of a Python environment.")
        )
    path = (folder / expand_home(text)).absolute()
    if path.is_dir():
        if (python := environments.find_python(path)) is not None:
            return python
        message = phrase("{where}: {text} is a folder without bin/python.", where=source, text=text)
        raise _no_python_error(message, phrase("Specify the folder of a Python environment."))
    if environments.is_executable(path):
        return path
    if "/" not in text and (command_path := shutil.which(text, path=environ.get("PATH"))):
        return Path(command_path).absolute()
    if path.exists():
        message = phrase("{where}: {text} cannot be executed.", where=source, text=text)
        raise _no_python_error(message, phrase("Specify the interpreter's executable."))
    python_paths = [str(item.python) for item in environments.find_interpreters(folder, environ)]
    advice = did_you_mean(text, python_paths) or phrase(
        "Specify an interpreter, or the folder of a Python environment."
    )
    raise _no_python_error(phrase("{where}: there is no Python at {text}.", where=source, text=text), advice)


def check_is_python(chosen: ChosenPython) -> None:
    """Start the chosen interpreter to check that it is Python. Skip this if its file name starts with python
    or pypy.

    Raises: ConfigError if it is not Python.
    """
    if re.match(r"python|pypy", chosen.python.name):
        return
    try:
        done = subprocess.run(
            [chosen.python, "-c", "print(6 * 7)"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        # Any program may exit with status 0; only Python prints the product.
        if done.stdout.strip() == b"42":
            return
    except (OSError, subprocess.TimeoutExpired):
        pass
    message = phrase(
        "{source}: {python} is not a Python interpreter.", source=chosen.source, python=chosen.python
    )
    raise _no_python_error(message, phrase("Specify an interpreter, or the folder of a Python environment."))


def _no_python_error(message: str, advice: str) -> ConfigError:
    return ConfigError(message, code="no-python", path=PYTHON_OPTION, advice=advice)
