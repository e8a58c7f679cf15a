"""Turn the arguments of `rankdeck queue add` into an entry: what it runs, and the devices that it needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.phrases import phrase
from rankdeck.base.units import parse_bytes
from rankdeck.cli.options import load_config
from rankdeck.config import RunConfig
from rankdeck.queue.needs import need_of
from rankdeck.telemetry.listing import list_gpus

if TYPE_CHECKING:
    from rankdeck.config.script import ScriptConfig
    from rankdeck.queue.entry import Need

COMMANDS = ("run", "train")
_TIME_FORMATS = ("%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
_REFUSED_PARAMETERS = ("hosts", "listen", "join", "detach", "as_json")


def config_of(
    context: typer.Context, words: Sequence[str], overrides: Sequence[str] | None, name: str | None
) -> tuple[RunConfig | ScriptConfig, Path | None]:
    """Return the configuration of the requested run, and the folder for its directory."""
    kind, arguments = (words[0], words[1:]) if words[0] in COMMANDS else ("train", words)
    commands: Any = context.find_root().command
    command = commands.commands[kind]
    parameters = command.make_context(kind, [*arguments], parent=context.find_root()).params
    if refused := [key for key in _REFUSED_PARAMETERS if parameters.get(key)]:
        option = "--json" if refused[0] == "as_json" else f"--{refused[0]}"
        raise ConfigError(
            phrase("A run in the queue cannot have the option {option}.", option=option),
            code="usage",
            advice=phrase("Leave it out."),
        )
    if kind == "train":
        changes = [*(parameters["overrides"] or ()), *(overrides or ())]
        return (
            load_config(
                parameters["config"],
                strategy=parameters["strategy"],
                devices=parameters["devices"],
                name=name or parameters["name"],
                overrides=changes,
            ),
            parameters["runs"],
        )
    if overrides:
        raise ConfigError(
            phrase("--set changes a configuration, and a script has none."),
            code="usage",
            advice=phrase("Pass arguments to the script itself."),
        )
    return _script_config(parameters, name), parameters["runs"]


def _script_config(parameters: dict[str, Any], name: str | None) -> ScriptConfig:
    from rankdeck.cli.run_options import RunOptions, script_config
    from rankdeck.launch.start import check_script

    observe = parameters["observe"]
    options = RunOptions(
        command=parameters["words"] or (),
        observe=None if observe is None else getattr(observe, "value", observe),
        environment=parameters["env"] or (),
        name=name or parameters["name"],
        **{
            key: parameters[key]
            for key in (
                *("entry", "module", "no_python", "plain", "nproc_per_node", "devices", "python"),
                *("max_restarts", "master_port", "log_dir"),
            )
        },
    )
    config, _ = script_config(options, folder=Path.cwd(), environ=os.environ)
    check_script(config)
    return config


def is_training(config: RunConfig | ScriptConfig) -> bool:
    """Return whether the run trains a configured model, and does not run a user's script."""
    return isinstance(config, RunConfig)


def parse_memory(text: str) -> int:
    """Return the number of bytes that --memory means.

    Raises:
        ConfigError: the text is not a size.
    """
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(phrase("{why}.", why=error), code="usage", path="--memory") from None


def name_of(config: Any, need: Need) -> str:
    """Return the name of an entry, which is also its run's name unless another run has it."""
    from rankdeck.config.naming import title_of

    return str(title_of(config, need.num_devices or None) if is_training(config) else config.name)


def folder_of(config: RunConfig | ScriptConfig) -> str | None:
    """Return the folder whose code the run executes; None if it executes no code of the user's."""
    if isinstance(config, RunConfig):
        return config.folder if config.user_code() else None
    return config.script.folder


def find_need(config: Any, devices: str | None, free_bytes: int | None) -> Need:
    """Return the devices that a run needs.

    Raises:
        DeviceError: the machine can never offer them.
    """
    try:
        num_gpus = sum(gpu.is_in_gpu_all for gpu in list_gpus())
    except MachineError:
        num_gpus = 0
    if is_training(config):
        need = need_of(devices or config.devices.use, num_gpus=num_gpus)
        if config.strategy_spec.one_device:
            need.num_devices, need.gpus = 1, need.gpus[:1]
    else:
        ranks = config.script.ranks
        need = need_of(devices or config.devices or "auto", num_gpus=num_gpus, default_count=ranks)
    if free_bytes is not None:
        need.free_bytes = free_bytes
    return need


def parse_time(text: str, now: datetime) -> float:
    """Return the Unix time that a user means; a time of day means its next occurrence after `now`.

    Raises:
        ConfigError: the text is not a time.
    """
    for form in _TIME_FORMATS:
        try:
            parsed = datetime.strptime(text.strip(), form)
        except ValueError:
            continue
        if form == "%H:%M":
            parsed = now.replace(hour=parsed.hour, minute=parsed.minute, second=0, microsecond=0)
            parsed += timedelta(days=1) if parsed <= now else timedelta(0)
        return parsed.timestamp()
    raise ConfigError(
        phrase('"{text}" is not a time.', text=text),
        code="usage",
        advice=phrase('For example: --not-before 22:30, or --not-before "2026-12-31 08:00"'),
    )
