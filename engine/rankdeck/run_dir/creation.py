"""Create a run's directory, and the files of each further attempt in it.

Read directory.py first.
"""

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
from rankdeck.run_dir.directory import PRIVATE_PREFIX, RunDir, slug
from rankdeck.run_dir.pending_run import HIDDEN_PREFIX, remove_abandoned, remove_unless_started

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.config.script import ScriptConfig


def add_attempt(
    run: RunDir, config: RunConfig | ScriptConfig, environment: JsonObject, min_attempt: int = 0
) -> tuple[int, list[Path]]:
    """Write the files of the next attempt and return its number and the files' paths.

    The number is at least `min_attempt`. The caller removes the files if the attempt never starts.

    Raises:
        ConfigError: the files cannot be written, or another command is resuming the run.
    """
    attempt = max(min_attempt, run.next_attempt())
    contents = _attempt_files(run.path, f".{attempt}", config, environment)
    try:
        for path, text in contents.items():
            _write_new(path, text)
    except FileExistsError:
        raise ConfigError(
            phrase("{run} is being resumed by another command.", run=run.name),
            code="running",
            advice=phrase("Wait until the other command has ended."),
        ) from None
    except OSError as error:
        for path in contents:
            path.unlink(missing_ok=True)
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=run.path, why=error.strerror),
            code="run-folder",
            advice=phrase("Free some disk space, or fix the folder's permissions."),
        ) from None
    return attempt, list(contents)


def create_run_dir(
    runs: Path, config: RunConfig | ScriptConfig, environment: JsonObject, name: str | None = None
) -> RunDir:
    """Create a new run's directory under a hidden name, which the guard changes once it holds the run's lock.

    If `name` is None, the directory is named after the time and the environment's "title".

    Raises:
        ConfigError: the folder of runs cannot be written to.
    """
    if name is None:
        title = slug(environment.get("title") or config.name)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{title}-{secrets.token_hex(2)}"
    final = runs.absolute() / name
    hidden = final.with_name(HIDDEN_PREFIX + final.name)
    remove_abandoned(hidden.parent)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        hidden.mkdir(mode=0o700)
        with remove_unless_started(hidden):
            for folder in (hidden / "events", hidden / "logs"):
                folder.mkdir(mode=0o700)
            for path, text in _attempt_files(hidden, "", config, environment).items():
                _write_new(path, text)
    except OSError as error:
        raise _unwritable_error(runs, error) from None
    return RunDir(hidden)


def check_can_hold_runs(runs: Path) -> None:
    """Check that run directories can be created in `runs`, but create none.

    Raises:
        ConfigError: the folder of runs cannot be written to.
    """
    try:
        tempfile.TemporaryFile(dir=_nearest_existing(runs.absolute())).close()
    except OSError as error:
        raise _unwritable_error(runs, error) from None


def _nearest_existing(path: Path) -> Path:
    """Return `path`, or its nearest parent that exists.

    Raises:
        OSError: a path cannot be read.
    """
    for there in (path, *path.parents):
        try:
            there.lstat()
            return there
        except FileNotFoundError:
            continue
    return path


def _unwritable_error(runs: Path, error: OSError) -> ConfigError:
    return ConfigError(
        phrase("Runs cannot be stored in {folder}: {why}.", folder=runs, why=error.strerror),
        code="runs-folder",
        advice=phrase("Choose another folder with --runs."),
    )


def _attempt_files(
    folder: Path, suffix: str, config: RunConfig | ScriptConfig, environment: Mapping[str, Any]
) -> dict[Path, str]:
    """Return the text of each file of an attempt, by path. Only the private configuration has secrets."""
    import tomlkit

    tables = config.to_dict()
    masked = mask_table(tables)
    environment = dict(environment)
    if isinstance(command_line := environment.get("command_line"), list):
        environment["command_line"] = mask_arguments(list(map(str, command_line)))
    public_file = folder / f"config{suffix}.toml"
    has_secrets = masked != tables
    texts = {
        public_file: tomlkit.dumps(masked) if has_secrets else config.to_toml(),
        folder / f"environment{suffix}.json": json.dumps(environment, indent=2) + "\n",
    }
    return texts | (
        {public_file.with_name(PRIVATE_PREFIX + public_file.name): config.to_toml()} if has_secrets else {}
    )


def _write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet.

    Raises:
        FileExistsError: the file exists.
        OSError: the file cannot be written.
    """
    mode = 0o600 if path.name.startswith(PRIVATE_PREFIX) else 0o666
    # O_EXCL: of two commands that resume the same run, only one creates the files.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
