"""Starting runs from Python: what `rankdeck train` and `rankdeck run` do, and a Run instead of an exit code.

Whatever a command would refuse is raised as a RankdeckError; arguments.py says it in a caller's words.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

from rankdeck import run_dir
from rankdeck.api.arguments import (
    argument_error,
    check_numbers,
    check_texts,
    environment_pairs,
    override_arguments,
    script_command,
    to_toml_tables,
    translate_errors,
)
from rankdeck.api.run_object import Run
from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase, tr_noop
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
    whatever its outcome (`run.check()` raises for one that failed), and shows its `progress`; Ctrl-C stops
    it and is raised. Without, it returns at once, and the run goes on by itself, even when this process ends.

    Raises:
        RankdeckError: what was asked for cannot be run.
    """
    with translate_errors():
        check_texts(devices=devices, strategy=strategy, name=name, runs=runs)
        chosen = resolve_config(config, strategy, devices, name, override_arguments(overrides))
        started = start.start_run(
            chosen,
            runs=run_dir.runs_folder(runs),
            detach=not wait,
            command_line=_command_line(),
            started=time.time(),
        )
    return _open_started_run(started, wait=wait, progress=progress)


def run(
    script: str | Path,
    *args: object,
    devices: str | None = None,
    ranks: int | str | None = None,
    python: str | Path | None = None,
    env: Mapping[str, object] | None = None,
    observe: str | None = None,
    plain: bool = False,
    module: bool = False,
    max_restarts: int | None = None,
    name: str | None = None,
    runs: str | Path | None = None,
    wait: bool = True,
    progress: bool = True,
) -> Run:
    """Run a training script as it is, with its own arguments. Its output goes to the run's logs.

    `ranks` processes (a number, or gpu, cpu or auto), as torchrun starts them; `devices` as "gpu:0,2" or
    "cpu:2". `python` is the interpreter, or its environment's folder; else it is found as by `rankdeck run`.
    `env` are the script's variables; `observe` is none, light or full; `plain` starts one process as python
    does, without torchrun's variables; `wait` and `progress` as for `train`.

    Raises:
        RankdeckError: what was asked for cannot be run.
    """
    with translate_errors():
        check_texts(devices=devices, python=python, name=name, runs=runs)
        check_numbers(ranks, max_restarts, observe)
        options = RunOptions(
            command=script_command(script, args),
            module=module,
            nproc_per_node=None if ranks is None else str(ranks),
            devices=devices,
            python=None if python is None else str(python),
            observe=observe,
            plain=plain,
            environment=environment_pairs(env),
            name=name,
            max_restarts=max_restarts,
        )
        config, chosen = script_config(options, folder=Path.cwd(), environ=os.environ)
        for note in chosen.notes:
            console.err().print(note, soft_wrap=True)
        started = start.start_script(
            config,
            runs=run_dir.runs_folder(runs),
            detach=not wait,
            command_line=_command_line(),
            started=time.time(),
        )
    return _open_started_run(started, wait=wait, progress=progress)


def open_run(path_or_name: str | Path, *, runs: str | Path | None = None) -> Run:
    """A run that is there already: its directory, its name, or "last". Waiting for it never stops it.

    Raises:
        RunNotFoundError: none, or several, are called so.
    """
    with translate_errors():
        check_texts(path_or_name=path_or_name, runs=runs)
        return Run(run_dir.find_run(str(path_or_name), run_dir.runs_folder(runs)).path)


def _open_started_run(started: run_dir.RunDir, *, wait: bool, progress: bool) -> Run:
    made = Run(started.path, stops_with_ctrl_c=True)
    return made.wait(progress=progress) if wait else made


def _command_line() -> list[str]:
    return [sys.executable, *sys.argv]


def resolve_config(
    config: Config,
    strategy: str | None,
    devices: str | None,
    name: str | None,
    overrides: list[str],
) -> RunConfig:
    """The configuration that an argument says. Raises: ConfigError, with every problem at once."""
    if isinstance(config, str | Path):
        return load_config(str(config), strategy=strategy, devices=devices, name=name, overrides=overrides)
    tables = config.to_dict() if isinstance(config, RunConfig) else config
    if not isinstance(tables, Mapping) or not tables:
        nothing = tr_noop("{name} = {value} is nothing that trains.")
        other = tr_noop("{name} = {value} is no configuration.")
        advice = phrase('Name a TOML file or a preset, or say what trains, as in {"model": {"use": "mlp"}}.')
        raise argument_error("config", tables, nothing if isinstance(tables, Mapping) else other, advice)
    try:
        return from_text(
            tomlkit.dumps(to_toml_tables(tables)),
            folder=Path.cwd(),
            strategy=strategy,
            devices=devices,
            name=name,
            overrides=overrides,
        )
    except ConfigError as error:
        # The caller has no lines.
        error.problems = [msgspec.structs.replace(problem, line=None) for problem in error.problems]
        raise
