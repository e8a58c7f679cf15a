"""A person's own script as a run keeps it: the `[script]` table of its config.toml.

    name = "train.py"
    [script]
    run = "train.py"
    args = ["--lr", "0.1"]
    folder = "/home/me/project"
    python = "/home/me/project/.venv/bin/python"
    ranks = 2

Everything that is needed to run it again, and nothing of what it does: that is seen while it runs. Read
interpreters.py for how `python` is found.
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

OBSERVE_LEVELS = ("none", "light", "full")


class ScriptTable(Table):
    """What is started, how often, and how it is watched."""

    run: str
    """The file, module or program, as it was typed."""
    kind: Literal["file", "module", "program"] = "file"
    """python FILE, python -m MODULE, or a PROGRAM as it is (--no-python)."""
    args: list[str] = Field(default_factory=list)
    folder: str
    """Where it was started (absolute)."""
    python: str
    """The interpreter's path, as it is started: a link of an environment stays one."""
    python_source: str = ""
    """Where the interpreter was found, in words."""
    ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that are started, as torchrun's --nproc-per-node."""
    plain: bool = False
    """The one process finds what `python` would show it: none of torchrun's variables, by which many a script
    tells whether its ranks are started for it or are its own business."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that were given for this run alone."""
    observe: Literal["none", "light", "full"] = "light"
    max_restarts: Count = 0
    master_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """A free one where it is not given."""
    log_folder: str | None = None
    """Where a copy of each rank's output goes as well (torchrun's --log-dir)."""


class ScriptConfig(Table):
    """A run of a person's own script, whole and validated."""

    name: str
    script: ScriptTable
    devices: str | None = None
    """As typed; None where the environment decides (CUDA_VISIBLE_DEVICES, or every GPU)."""

    @property
    def selection(self) -> DeviceSelection | None:
        return None if self.devices is None else parse_devices(self.devices)

    @property
    def script_file(self) -> Path | None:
        """The script's file (absolute); None for a module or a program."""
        return Path(self.script.folder, self.script.run) if self.script.kind == "file" else None

    def code_folders(self) -> list[Path]:
        """Whose code runs: where it was started, if the script is in there, else the script's folder."""
        folder, script = Path(self.script.folder), self.script_file
        return [folder if script is None or script.is_relative_to(folder) else script.parent]

    def command(self) -> list[str]:
        """What each rank executes, as torchrun starts it."""
        table = self.script
        if table.kind == "program":
            return [table.run, *table.args]
        # A file's name is no option of Python's.
        run = f"./{table.run}" if table.kind == "file" and table.run.startswith("-") else table.run
        return [table.python, "-u", *(["-m"] if table.kind == "module" else []), run, *table.args]

    def to_dict(self) -> TomlTable:
        return self.model_dump(exclude_none=True)

    def to_toml(self) -> str:
        return tomlkit.dumps(self.to_dict())


def num_ranks_of(devices: str | None, ranks: int | None) -> int:
    """How many processes are started: `ranks` where it is given, N of "cpu:N", else 1 as under torchrun.

    Raises:
        DeviceError: devices is no choice of devices.
        ConfigError: the two contradict each other.
    """
    selection = None if devices is None else parse_devices(devices)
    if selection is None or selection.kind != "cpu" or not selection.count:
        return ranks or 1
    if ranks is not None and ranks != selection.count:
        raise ConfigError(
            plural_phrase(
                tr_noop("{devices} means 1 rank, and {ranks} are asked for."),
                tr_noop("{devices} means {n} ranks, and {ranks} are asked for."),
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
    """The script that a run's config.toml keeps; None where it is a configuration.

    Raises:
        ConfigError: the file cannot be read, or is no longer what was written.
    """
    try:
        tables = parse_toml(files.read_text(path, files.MAX_TOML_BYTES))
    except OSError as error:
        why = error.strerror or phrase("it is no regular file")
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
        place = ".".join(map(str, first["loc"]))
        message = phrase("{file}: {place}: {why}.", file=path, place=place, why=first["msg"])
        raise ConfigError(message, code="wrong-type", path=str(path)) from None


# The scripts of a folder that look as if they train, found by reading them: nothing is executed.
#
# What imports torch or a library above it counts; the likeliest come first. Hidden folders, environments
# and links are left out, and a folder that is too large is searched in part.

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
_TRAINING_SIGNS = (  # (what is in the text, how much likelier that makes it)
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
    """A script and the libraries that it imports. `name` is its path in the folder."""

    path: Path
    name: str
    libraries: tuple[str, ...]
    likelihood: int


def find_scripts(folder: Path) -> list[ScriptCandidate]:
    """The likeliest first, then by name; at most 200."""
    found = [script for path in _python_files(folder) if (script := _inspect_file(path, folder)) is not None]
    return sorted(found, key=lambda script: (-script.likelihood, script.name))[:_MAX_SCRIPTS]


def _python_files(folder: Path) -> Iterator[Path]:
    """Breadth first, so that of a folder that is too large the near part is seen."""
    waiting, seen = deque([(folder, 0)]), 0
    while waiting:
        place, depth = waiting.popleft()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MAX_ENTRIES:
                return
            if entry.name.startswith("."):
                continue
            if entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            elif depth < _MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                inner = Path(entry.path)
                if entry.name not in _SKIPPED_FOLDERS and not is_environment(inner):
                    waiting.append((inner, depth + 1))


def _inspect_file(path: Path, folder: Path) -> ScriptCandidate | None:
    """None where it imports none of the libraries."""
    try:
        text = files.read_at(path, 0, _READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    libraries = {found[1] or found[2] for found in _IMPORT.finditer(text)}
    if not libraries:
        return None
    name = path.relative_to(folder).as_posix()
    likelihood = sum(points for sign, points in _TRAINING_SIGNS if sign.search(text)) - name.count("/")
    likelihood += 3 * bool(_GOOD_NAME.search(path.name)) - 4 * bool(_BAD_NAME.search(path.name))
    likelihood -= 4 * bool({"tests", "test"} & set(path.relative_to(folder).parts[:-1]))
    return ScriptCandidate(path, name, tuple(sorted(libraries)), likelihood)
