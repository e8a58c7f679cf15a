"""Starting runs from Python: what `rankdeck train` and `rankdeck run` do, and a Run instead of an exit code.

Whatever a command would refuse is raised as a RankdeckError with the same words.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomlkit

from rankdeck import rundir
from rankdeck.adopt.writing import in_one_line
from rankdeck.api.run_object import Run
from rankdeck.base.errors import RankdeckError
from rankdeck.cli import console
from rankdeck.cli.options import load_config
from rankdeck.cli.run_options import RunOptions, script_config
from rankdeck.config import RunConfig, from_text
from rankdeck.launch import start

Config = str | Path | Mapping[str, Any] | RunConfig


def train(
    config: Config,
    *,
    devices: str | None = None,
    strategy: str | None = None,
    overrides: Mapping[str, Any] | Iterable[str] | None = None,
    name: str | None = None,
    runs: str | Path | None = None,
    wait: bool = True,
    progress: bool = True,
) -> Run:
    """Train as a configuration says: a TOML file, a preset's name, nested tables, or a RunConfig.

    `overrides` changes options, as in {"train.steps": 50}. With `wait` this returns once the run has ended,
    whatever its outcome (`run.check()` raises for one that failed), shows its `progress`, and Ctrl-C stops
    it. Without, it returns at once, and the run goes on by itself, even when this process ends.

    Raises:
        RankdeckError: what was asked for cannot be run.
    """
    with _told_whole():
        chosen = _config(config, strategy, devices, name, _as_words(overrides))
        started = start.start(
            chosen,
            runs=_folder(runs),
            detach=not wait,
            command_line=_command_line(),
            started=time.time(),
        )
    return _left_or_waited_for(started, wait=wait, progress=progress)


def run(
    script: str | Path,
    *args: object,
    devices: str | None = None,
    ranks: int | None = None,
    python: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    observe: str | None = None,
    module: bool = False,
    max_restarts: int | None = None,
    name: str | None = None,
    runs: str | Path | None = None,
    wait: bool = True,
    progress: bool = True,
) -> Run:
    """Run a training script as it is, with its own arguments. Its output goes to the run's logs.

    `ranks` processes, as torchrun's --nproc-per-node; `devices` as "gpu:0,2" or "cpu:2". `python` is the
    interpreter, or its environment's folder; else it is found as `rankdeck run` finds it. `env` are variables
    for the script. `observe` is none, light or full. `wait` and `progress` as for `train`.

    Raises:
        RankdeckError: what was asked for cannot be run.
    """
    options = RunOptions(
        words=[str(script), *map(str, args)],
        module=module,
        nproc_per_node=None if ranks is None else str(ranks),
        devices=devices,
        python=None if python is None else str(python),
        observe=observe,
        environment=[f"{key}={value}" for key, value in (env or {}).items()],
        name=name,
        max_restarts=max_restarts,
    )
    with _told_whole():
        config, chosen = script_config(options, folder=Path.cwd(), environ=os.environ)
        for note in chosen.notes:
            console.err().print(note, soft_wrap=True)
        started = start.start_script(
            config,
            runs=_folder(runs),
            detach=not wait,
            command_line=_command_line(),
            started=time.time(),
        )
    return _left_or_waited_for(started, wait=wait, progress=progress)


def open_run(path_or_name: str | Path, *, runs: str | Path | None = None) -> Run:
    """A run that is there already: its directory, its name, or "last". Waiting for it never stops it.

    Raises:
        RunNotFoundError: none, or several, are called so.
    """
    with _told_whole():
        return Run(rundir.find_run(str(path_or_name), _folder(runs)).path)


@contextlib.contextmanager
def _told_whole() -> Iterator[None]:
    """An error's other problems and its advice stand below it in a traceback."""
    try:
        yield
    except RankdeckError as error:
        for problem in error.problems:
            words = [problem.headline(error.file), problem.advice]
            error.add_note("\n".join(word for word in words if word and word != str(error)))
        raise


def _left_or_waited_for(started: rundir.RunDir, *, wait: bool, progress: bool) -> Run:
    made = Run(started.path, stops_with_ctrl_c=True)
    return made.wait(progress=progress) if wait else made


def _folder(runs: str | Path | None) -> Path:
    return rundir.default_runs_folder() if runs is None else Path(runs).expanduser().absolute()


def _command_line() -> list[str]:
    return [sys.executable, *sys.argv]


def _config(
    config: Config,
    strategy: str | None,
    devices: str | None,
    name: str | None,
    overrides: list[str],
) -> RunConfig:
    """Raises: ConfigError, with every problem at once."""
    if isinstance(config, str | Path):
        return load_config(str(config), strategy=strategy, devices=devices, name=name, overrides=overrides)
    tables = config.to_dict() if isinstance(config, RunConfig) else config
    return from_text(
        tomlkit.dumps(_plain(tables)),
        folder=Path.cwd(),
        strategy=strategy,
        devices=devices,
        name=name,
        overrides=overrides,
    )


def _as_words(overrides: Mapping[str, Any] | Iterable[str] | None) -> list[str]:
    """Each as a command line has it: train.steps=50."""
    if isinstance(overrides, Mapping):
        return [f"{key}={in_one_line(_plain(value))}" for key, value in overrides.items()]
    return list(overrides or ())


def _plain(value: Any) -> Any:
    """What TOML can say: without what is None, paths as text, numpy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value
