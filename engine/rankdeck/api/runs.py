"""Start runs from Python: the counterparts of `rankdeck train` and `rankdeck run`, which return a Run.

Requests that a command would refuse raise a RankdeckError, which arguments.py rewords for Python callers.
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
    """Train from a configuration: a TOML file, a preset's name, nested tables, or a RunConfig.

    `overrides` changes options, as in {"train.steps": 50}. If `wait` is True, return once the run has ended,
    whatever its outcome (`run.check()` raises for a failed run); until then, the run's progress is shown if
    `progress` is True, and Ctrl-C stops the run and raises KeyboardInterrupt. If `wait` is False, return at
    once; the run continues even after this process has ended.

    Raises:
        RankdeckError: the configuration cannot be run.
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
    """Run an unchanged training script with its own arguments; its output goes to the run's logs.

    `ranks` is the number of processes (or gpu, cpu or auto), as in torchrun. `devices` is text such as
    "gpu:0,2" or "cpu:2". `python` is an interpreter or an environment's folder; the default is the
    interpreter that `rankdeck run` would use. `env` maps environment variables to their values. `observe` is
    none, light, full or check. If `plain` is True, start a single process like the python command, without
    torchrun's variables. If `module` is True, `script` is a module, as with python -m. `wait` and `progress`
    work as in `train`.

    Raises:
        RankdeckError: the script cannot be run.
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
    """Open an existing run by its directory, its name, or "last".

    Ctrl-C during `Run.wait` does not stop a run that was opened in this way.

    Raises:
        RunNotFoundError: no run, or more than one, matches.
    """
    with translate_errors():
        check_texts(path_or_name=path_or_name, runs=runs)
        return Run(run_dir.find_run(str(path_or_name), run_dir.runs_folder(runs)).path)


def _open_started_run(started: run_dir.RunDir, *, wait: bool, progress: bool) -> Run:
    run_object = Run(started.path, stops_with_ctrl_c=True)
    return run_object.wait(progress=progress) if wait else run_object


def _command_line() -> list[str]:
    return [sys.executable, *sys.argv]


def resolve_config(
    config: Config,
    strategy: str | None,
    devices: str | None,
    name: str | None,
    overrides: list[str],
) -> RunConfig:
    """Convert a `config` argument of any kind to a RunConfig, and apply the other arguments to it.

    Raises:
        ConfigError: the configuration is invalid; all problems are reported at once.
    """
    if isinstance(config, str | Path):
        return load_config(str(config), strategy=strategy, devices=devices, name=name, overrides=overrides)
    tables = config.to_dict() if isinstance(config, RunConfig) else config
    if not isinstance(tables, Mapping) or not tables:
        nothing = tr_noop("{name} = {value} defines nothing to train.")
        other = tr_noop("{name} = {value} is not a configuration.")
        advice = phrase(
            'Pass the name of a TOML file or a preset, or a dictionary, as in {"model": {"use": "mlp"}}.'
        )
        raise argument_error("config", tables, nothing if isinstance(tables, Mapping) else other, advice)
    try:
        # Tables go through TOML text, so they meet the same rules and messages as a file.
        return from_text(
            tomlkit.dumps(to_toml_tables(tables)),
            folder=Path.cwd(),
            strategy=strategy,
            devices=devices,
            name=name,
            overrides=overrides,
        )
    except ConfigError as error:
        # Line numbers are those of the generated TOML, which the caller never sees.
        error.problems = [msgspec.structs.replace(problem, line=None) for problem in error.problems]
        raise
