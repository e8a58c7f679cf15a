"""A user's script as a run stores it: the `[script]` table of its config.toml.

    name = "train.py"
    [script]
    run = "train.py"
    args = ["--lr", "0.1"]
    folder = "/home/me/project"
    python = "/home/me/project/.venv/bin/python"
    ranks = 2

The table has everything needed to run the script again; what the script does is observed at run time. Read
interpreters.py for how `python` is chosen.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tomlkit
from pydantic import Field, ValidationError

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.parsing import TomlTable, parse_toml
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.config.devices import DeviceSelection, parse_devices
from rankdeck.config.environments import is_environment
from rankdeck.config.schema import Count, Table

OBSERVE_LEVELS = ("none", "light", "full", "check")


class ScriptTable(Table):
    """The command of a user's script, the number of ranks, and how the script is observed."""

    run: str
    """The file, module or program, as typed."""
    kind: Literal["file", "module", "program"] = "file"
    """Form of the command: python FILE, python -m MODULE, or PROGRAM directly (--no-python)."""
    args: list[str] = Field(default_factory=list)
    folder: str
    """Absolute path of the working directory."""
    python: str
    """Path of the interpreter as it is started; an environment's symlink is not resolved."""
    python_source: str = ""
    """Text that describes where the interpreter was found."""
    ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of processes to start, like torchrun's --nproc-per-node."""
    plain: bool = False
    """Start one process as plain `python` would, without torchrun's variables. Many scripts check these
    variables to decide whether to start ranks themselves."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables set for this run only."""
    observe: Literal["none", "light", "full", "check"] = "light"
    max_restarts: Count = 0
    master_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the rendezvous; a free port if it is not set."""
    log_folder: str | None = None
    """Folder for a copy of each rank's output (torchrun's --log-dir)."""


class ScriptConfig(Table):
    """A complete, validated configuration of a run of a user's script."""

    name: str
    script: ScriptTable
    devices: str | None = None
    """Device selection as typed; None if the environment decides (CUDA_VISIBLE_DEVICES, or every GPU)."""

    @property
    def selection(self) -> DeviceSelection | None:
        return None if self.devices is None else parse_devices(self.devices)

    @property
    def script_file(self) -> Path | None:
        """Absolute path of the script's file; None for a module or a program."""
        return Path(self.script.folder, self.script.run) if self.script.kind == "file" else None

    def code_folders(self) -> list[Path]:
        """Return the folder whose code runs: the working directory, or the script's folder if the script is
        outside the working directory."""
        folder, script = Path(self.script.folder), self.script_file
        return [folder if script is None or script.is_relative_to(folder) else script.parent]

    def command(self) -> list[str]:
        """Return the command that starts each rank, as torchrun would run it."""
        table = self.script
        if table.kind == "program":
            return [table.run, *table.args]
        # Python would read a file name with a leading dash as an option.
        run = f"./{table.run}" if table.kind == "file" and table.run.startswith("-") else table.run
        # Unbuffered (-u), as under torchrun.
        return [table.python, "-u", *(["-m"] if table.kind == "module" else []), run, *table.args]

    def to_dict(self) -> TomlTable:
        return self.model_dump(exclude_none=True)

    def to_toml(self) -> str:
        return tomlkit.dumps(self.to_dict())


def num_ranks_of(devices: str | None, ranks: int | None) -> int:
    """Return the number of processes to start: `ranks`, else N of "cpu:N", else 1 as with torchrun.

    Raises:
        DeviceError: `devices` is not a device selection.
        ConfigError: `devices` and `ranks` contradict each other.
    """
    selection = None if devices is None else parse_devices(devices)
    if selection is None or selection.kind != "cpu" or not selection.count:
        return ranks or 1
    if ranks is not None and ranks != selection.count:
        raise ConfigError(
            plural_phrase(
                tr_noop("{devices} means 1 rank, but {ranks} ranks were requested."),
                tr_noop("{devices} means {n} ranks, but the requested number of ranks is {ranks}."),
                selection.count,
                devices=devices,
                ranks=ranks,
            ),
            code="ranks",
            path="script.ranks",
            advice=phrase("Leave the number of ranks out, or write cpu:{ranks}.", ranks=ranks),
        )
    return selection.count


def load_script(path: Path) -> ScriptConfig | None:
    """Load a script's configuration from a run's config.toml; None if the file configures a training run.

    Raises:
        ConfigError: the file cannot be read, or is invalid.
    """
    try:
        tables = parse_toml(files.read_text(path, files.MAX_TOML_BYTES))
    except OSError as error:
        why = error.strerror or phrase("it is not a regular file")
        message = phrase("{file} cannot be read: {why}.", file=path, why=why)
        raise ConfigError(message, code="unreadable", path=str(path)) from None
    except ValueError as error:
        message = phrase("{file} is not TOML: {why}.", file=path, why=error)
        raise ConfigError(message, code="toml", path=str(path)) from None
    if "script" not in tables:
        return None
    try:
        return ScriptConfig.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        key_path = ".".join(map(str, first["loc"]))
        message = phrase("{file}: {place}: {why}.", file=path, place=key_path, why=first["msg"])
        raise ConfigError(message, code="wrong-type", path=str(path)) from None


# Finds scripts in a folder that look like training scripts, by reading them: nothing is executed. Scripts
# that import torch or a library on top of it count; the likeliest come first. Hidden folders, environments
# and symlinks are skipped, and a folder that is too large is searched in part.

LIBRARIES = (
    "torch",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "fairseq",
    "timm",
    "ignite",
    "composer",
    "fastai",
    "trl",
    "diffusers",
    "torchvision",
    "monai",
    "ultralytics",
)
_READ_BYTES = 64 << 10
_MAX_DEPTH = 4
_MAX_ENTRIES = 20_000
_MAX_SCRIPTS = 200
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "node_modules", "__pycache__", "build", "dist", "runs"}

_LIBRARY_PATTERN = "|".join(LIBRARIES)
_OTHER_IMPORTS = r"(?:[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*)*"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_LIBRARY_PATTERN})\b|import[ \t]+{_OTHER_IMPORTS}({_LIBRARY_PATTERN})\b)",
    re.MULTILINE,
)
_TRAINING_SIGNS = (  # (pattern in the text, points)
    (re.compile(r"^if __name__\s*==", re.MULTILINE), 3),
    (re.compile(r"\.backward\(|\.fit\(|\.train\(\)|Trainer\("), 3),
    (re.compile(r"\boptim(?:izer)?s?\b"), 2),
    (re.compile(r"ArgumentParser|@click\.|typer\.|@hydra\.main|HfArgumentParser"), 1),
)
_GOOD_NAME = re.compile(r"train|finetune|fine_tune|pretrain|^main|^run|^sft|^fit")
_BAD_NAME = re.compile(
    r"^test_|_test\.py$|^conftest|^setup\.py$|^__init__|^eval|^(?:sample|infer|predict|export)"
)


@dataclass(frozen=True)
class ScriptCandidate:
    """A script that looks like a training script, with the libraries that it imports.

    `name` is its path relative to the searched folder.
    """

    path: Path
    name: str
    libraries: tuple[str, ...]
    likelihood: int


def find_scripts(folder: Path) -> list[ScriptCandidate]:
    """Return at most 200 scripts that look like training scripts, the most likely first."""
    scripts = [
        script for path in _python_files(folder) if (script := _inspect_file(path, folder)) is not None
    ]
    return sorted(scripts, key=lambda script: (-script.likelihood, script.name))[:_MAX_SCRIPTS]


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield Python files breadth first, so that a search that hits its limit covers the upper levels."""
    waiting, num_entries = deque([(folder, 0)]), 0
    while waiting:
        current, depth = waiting.popleft()
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            num_entries += 1
            if num_entries > _MAX_ENTRIES:
                return
            if entry.name.startswith("."):
                continue
            if entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            elif depth < _MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                inner = Path(entry.path)
                # Environments hold thousands of files that are not the user's.
                if entry.name not in _SKIPPED_FOLDERS and not is_environment(inner):
                    waiting.append((inner, depth + 1))


def _inspect_file(path: Path, folder: Path) -> ScriptCandidate | None:
    """Return the file with a rating of how likely it is to be a training script; None if it imports no
    library that training scripts use."""
    try:
        text = files.read_at(path, 0, _READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    libraries = {match[1] or match[2] for match in _IMPORT.finditer(text)}
    if not libraries:
        return None
    name = path.relative_to(folder).as_posix()
    likelihood = sum(points for sign, points in _TRAINING_SIGNS if sign.search(text)) - name.count("/")
    likelihood += 3 * bool(_GOOD_NAME.search(path.name)) - 4 * bool(_BAD_NAME.search(path.name))
    likelihood -= 4 * bool({"tests", "test"} & set(path.relative_to(folder).parts[:-1]))
    return ScriptCandidate(path, name, tuple(sorted(libraries)), likelihood)
