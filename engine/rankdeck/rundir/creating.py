"""A run's directory is made, and the files of one more attempt in it. Read directory.py before."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankdeck.base.errors import ConfigError
from rankdeck.base.masking import mask_arguments, mask_table
from rankdeck.base.parsing import JsonObject
from rankdeck.base.phrases import phrase
from rankdeck.rundir.directory import PRIVATE, RunDir, slug
from rankdeck.rundir.unbegun import HIDDEN, remove_abandoned, removed_unless_begun

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.config.script import ScriptConfig


def add_attempt(
    run: RunDir, config: RunConfig | ScriptConfig, environment: JsonObject, least: int = 0
) -> tuple[int, list[Path]]:
    """The files of the next attempt: its number, `least` or more, and what to remove if it never begins.

    Raises:
        ConfigError: they cannot be written, or another command is just doing the same.
    """
    attempt = max(least, run.next_attempt())
    contents = _texts(run.path, f".{attempt}", config, environment)
    try:
        for path, text in contents.items():
            _write_new(path, text)
    except FileExistsError:
        raise ConfigError(
            phrase("{run} is being resumed by another command.", run=run.name),
            code="running",
            advice=phrase("Wait for that one."),
        ) from None
    except OSError as error:
        for path in contents:
            path.unlink(missing_ok=True)
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=run.path, why=error.strerror),
            code="run-folder",
            advice=phrase("Free space on the disk, or mend the folder's permissions."),
        ) from None
    return attempt, list(contents)


def create(
    runs: Path, config: RunConfig | ScriptConfig, environment: JsonObject, name: str | None = None
) -> RunDir:
    """A new run's directory under a hidden name; the guard gives it its final one once its lock is held.
    Without a `name` both are made of the environment's "title", what the run is called.

    Raises:
        ConfigError: the folder of runs cannot be written.
    """
    if name is None:
        title = slug(environment.get("title") or config.name)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{title}-{secrets.token_hex(2)}"
    final = runs.absolute() / name
    hidden = final.with_name(HIDDEN + final.name)
    remove_abandoned(hidden.parent)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        hidden.mkdir(mode=0o700)
        with removed_unless_begun(hidden):
            for folder in (hidden / "events", hidden / "logs"):
                folder.mkdir(mode=0o700)
            for path, text in _texts(hidden, "", config, environment).items():
                _write_new(path, text)
    except OSError as error:
        raise _no_runs_there(runs, error) from None
    return RunDir(hidden)


def check_can_hold_runs(runs: Path) -> None:
    """Whether a run's directory could be made there; nothing is made, for who has something to do before.

    Raises:
        ConfigError: the folder of runs cannot be written.
    """
    try:
        tempfile.TemporaryFile(dir=_nearest_above(runs.absolute())).close()
    except OSError as error:
        raise _no_runs_there(runs, error) from None


def _nearest_above(path: Path) -> Path:
    """The path itself, else the first above it that is there. Raises: OSError."""
    for there in (path, *path.parents):
        try:
            there.lstat()
            return there
        except FileNotFoundError:
            continue
    return path


def _no_runs_there(runs: Path, error: OSError) -> ConfigError:
    return ConfigError(
        phrase("{folder} cannot hold runs: {why}.", folder=runs, why=error.strerror),
        code="runs-folder",
        advice=phrase("Name another folder with --runs."),
    )


def _texts(
    folder: Path, suffix: str, config: RunConfig | ScriptConfig, environment: Mapping[str, Any]
) -> dict[Path, str]:
    """What an attempt is kept as: its files by their paths, secrets in one of them alone."""
    import tomlkit

    tables = config.to_dict()
    masked = mask_table(tables)
    environment = dict(environment)
    if isinstance(words := environment.get("command_line"), list):
        environment["command_line"] = mask_arguments(list(map(str, words)))
    shown = folder / f"config{suffix}.toml"
    has_secrets = masked != tables
    texts = {
        shown: tomlkit.dumps(masked) if has_secrets else config.to_toml(),
        folder / f"environment{suffix}.json": json.dumps(environment, indent=2) + "\n",
    }
    return texts | ({shown.with_name(PRIVATE + shown.name): config.to_toml()} if has_secrets else {})


def _write_new(path: Path, text: str) -> None:
    """Raises: OSError, among them FileExistsError."""
    mode = 0o600 if path.name.startswith(PRIVATE) else 0o666
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
