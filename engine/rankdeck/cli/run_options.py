"""Convert the arguments of `rankdeck run` to a ScriptConfig: entry, interpreter, devices and ranks.

The command line overrides the entry in rankdeck.toml, which overrides the defaults. Nothing is started here.
Read run.py next.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rankdeck.base.errors import ConfigError
from rankdeck.base.home import expand_home
from rankdeck.base.names import MAX_NAME_LENGTH, validate_name
from rankdeck.base.phrases import phrase
from rankdeck.cli.torchrun import parse_num_ranks
from rankdeck.config import folder_file, interpreters
from rankdeck.config.devices import parse_devices
from rankdeck.config.folder_file import FOLDER_FILE, FolderFile, ScriptEntry
from rankdeck.config.interpreters import ChosenPython
from rankdeck.config.script import ScriptConfig, ScriptTable, num_ranks_of
from rankdeck.launch.torchrun import RANK_VARIABLES

_PYTHON_PROGRAM = re.compile(r"python[\d.]*|torchrun")
_LAUNCHERS = ("accelerate", "deepspeed", "lightning", "make")
_SHELL_SUFFIXES = (".sh", ".bash", ".zsh")


@dataclass(frozen=True)
class RunOptions:
    """Arguments of `rankdeck run`.

    `command` is the script with its arguments or, if `entry` is set, only extra arguments for the entry's
    script.
    """

    command: Sequence[str]
    entry: str | None = None
    module: bool = False
    no_python: bool = False
    plain: bool = False
    nproc_per_node: str | None = None
    devices: str | None = None
    python: str | None = None
    observe: str | None = None
    environment: Sequence[str] = ()
    name: str | None = None
    max_restarts: int | None = None
    master_port: int | None = None
    log_dir: Path | None = None


def script_config(
    options: RunOptions, *, folder: Path, environ: Mapping[str, str]
) -> tuple[ScriptConfig, ChosenPython]:
    """Return the configuration of the requested run in `folder`, and the interpreter chosen for it.

    Raises:
        ConfigError, DeviceError, MachineError: the run cannot be started as requested.
    """
    file = folder_file.read_folder_file(folder) if options.entry is not None else None
    entry = _resolve_entry(options, file)
    devices = options.devices if options.devices is not None else entry.devices
    ranks = num_ranks_of(devices, _resolve_num_ranks(options, entry, devices))
    # Before the interpreter is chosen and perhaps started: with a wrong script name nothing is started.
    _check_script_exists(entry, folder)
    chosen = _choose_python(options, entry, folder, file, environ)
    observe = options.observe if options.observe is not None else entry.observe
    restarts = options.max_restarts if options.max_restarts is not None else entry.max_restarts
    table: dict[str, object] = {
        "run": entry.run,
        "kind": entry.kind,
        "args": entry.args,
        "folder": str(folder),
        "python": str(chosen.python),
        "python_source": chosen.source,
        "ranks": ranks,
        "plain": _resolve_plain(options, entry, ranks),
        "environment": _merge_environment(options, entry, devices),
        "observe": observe or "light",
        "max_restarts": restarts or 0,
        "master_port": options.master_port,
        "log_folder": None if options.log_dir is None else str(folder / expand_home(options.log_dir)),
    }
    # Python decodes other bytes of the command line to surrogates, which no file of the run could hold.
    _check_utf8({**table, "name": options.name})
    name = (
        validate_name(options.name or "") or options.entry or _default_name(entry, folder)[:MAX_NAME_LENGTH]
    )
    try:
        config = ScriptConfig(name=name, script=ScriptTable.model_validate(table), devices=devices)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(
            phrase("script.{place}: {message}.", place=key, message=first["msg"]), path=f"script.{key}"
        ) from None
    return config, chosen


def _resolve_entry(options: RunOptions, file: FolderFile | None) -> ScriptEntry:
    """Return the named entry with the command line's arguments appended, or an entry made of the script and
    arguments on the command line.

    Raises:
        ConfigError: no script is named, or options contradict each other.
    """
    if options.module and options.no_python:
        raise ConfigError(
            phrase("The options -m and --no-python cannot be combined."),
            code="usage",
            advice=phrase("Leave one of the options out."),
        )
    if file is not None:
        if options.module or options.no_python:
            raise ConfigError(
                phrase(
                    "The entry chosen with --entry already specifies whether to run a file, a module or "
                    "a program."
                ),
                code="usage",
                advice=phrase(
                    'Leave -m and --no-python out, and set the key "kind" in {file} instead.',
                    file=FOLDER_FILE,
                ),
            )
        entry = file.entry(options.entry or "")
        return entry.model_copy(update={"args": [*entry.args, *options.command]})
    if not options.command or not options.command[0]:
        raise ConfigError(
            phrase("rankdeck run needs a script."),
            code="usage",
            path="script.run",
            advice=phrase(
                "For example: rankdeck run train.py --lr 0.1. Rankdeck's options come before the script."
            ),
        )
    run, *args = options.command
    if run == "-" and not options.module and not options.no_python:
        raise ConfigError(
            phrase("rankdeck run does not read the script from stdin, which is the script's own input."),
            code="usage",
            path="script.run",
            advice=phrase("Save the script to a file and run that file, as in: rankdeck run train.py"),
        )
    if options.module:
        return ScriptEntry(run=run, kind="module", args=args)
    return ScriptEntry(run=run, kind="program" if options.no_python else "file", args=args)


def _resolve_num_ranks(options: RunOptions, entry: ScriptEntry, devices: str | None) -> int | None:
    if options.nproc_per_node is None:
        # --devices cpu:N on the command line also sets the number of ranks, and overrides the entry's.
        return None if options.devices is not None and options.devices.startswith("cpu") else entry.ranks
    selection = None if devices is None else parse_devices(devices)
    if selection is not None and selection.kind == "cpu" and not options.nproc_per_node.isdecimal():
        return selection.count
    return parse_num_ranks(options.nproc_per_node, selection.gpus if selection is not None else None)


def _resolve_plain(options: RunOptions, entry: ScriptEntry, ranks: int) -> bool:
    """Return whether to start one process without torchrun's variables.

    Raises:
        ConfigError: --plain is used with several ranks, which need torchrun's variables.
    """
    if options.plain and ranks > 1:
        raise ConfigError(
            phrase("The option --plain starts one process, but {ranks} ranks were requested.", ranks=ranks),
            code="usage",
            path="script.plain",
            advice=phrase("Leave --plain out, or request one rank."),
        )
    return ranks == 1 and (options.plain or entry.plain)


def _check_utf8(table: Mapping[str, Any]) -> None:
    """Check that every string in `table`, a script's configuration, can be saved.

    Raises:
        ConfigError: a name or an argument is not UTF-8.
    """
    variables = [text for pair in table["environment"].items() for text in pair]
    for text in (*table["args"], *variables, *(text for text in table.values() if isinstance(text, str))):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                phrase(
                    "{text} is not valid UTF-8, so it cannot be saved with the run.",
                    text=text.encode(errors="replace").decode(),
                ),
                code="not-text",
                advice=phrase("Use UTF-8 text, or set a locale that matches the encoding."),
            ) from None


def _check_script_exists(entry: ScriptEntry, folder: Path) -> None:
    """Check that the script's file exists.

    Raises:
        ConfigError: the file does not exist; the advice suggests what the user may have meant.
    """
    if entry.kind != "file":
        return
    is_there = _exists(folder / entry.run)
    _check_is_python_script(entry, exists=is_there)
    if is_there:
        return
    from rankdeck.config import presets, script

    scripts = [candidate.name for candidate in script.find_scripts(folder)]
    close = difflib.get_close_matches(entry.run, scripts, n=1, cutoff=0.5)
    if presets.find_preset(entry.run) is not None:
        advice = phrase("This is a preset. Train it with: rankdeck train {preset}", preset=entry.run)
    elif close:
        advice = phrase('Did you mean "{word}"?', word=close[0])
    elif scripts:
        advice = phrase("This folder contains {script}.", script=scripts[0])
    else:
        advice = phrase("Specify a script, as in: rankdeck run train.py. Use -m for a module.")
    raise ConfigError(
        phrase("There is no script {script} in {folder}.", script=entry.run, folder=folder),
        code="no-script",
        path="script.run",
        advice=advice,
    )


def _check_is_python_script(entry: ScriptEntry, *, exists: bool) -> None:
    """Check that the script is a Python file; `exists` is whether a file with its name exists.

    Raises:
        ConfigError: the script is python or torchrun itself, a shell script, or a known launcher.
    """
    program = Path(entry.run).name
    script = entry.args[0] if entry.args else "train.py"
    if _PYTHON_PROGRAM.fullmatch(program):
        advice = phrase("Leave it out, as in: rankdeck run {script}", script=script)
    elif exists and program.endswith(_SHELL_SUFFIXES):
        advice = phrase("Run it as a program: rankdeck run --no-python bash {script}", script=entry.run)
    # An existing file of that name is a script of the user.
    elif not exists and program in _LAUNCHERS:
        advice = phrase("Run it as a program: rankdeck run --no-python {program} ...", program=program)
    else:
        return
    raise ConfigError(
        phrase("{program} is not a Python script.", program=entry.run),
        code="no-script",
        path="script.run",
        advice=advice,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long
        return False


def _choose_python(
    options: RunOptions,
    entry: ScriptEntry,
    folder: Path,
    file: FolderFile | None,
    environ: Mapping[str, str],
) -> ChosenPython:
    """Choose the interpreter; look for rankdeck.toml in `folder`, then in the script's folder."""
    folders = [folder]
    if entry.kind == "file" and (script_folder := (folder / entry.run).parent) != folder:
        folders.append(script_folder)
    read = [] if file is None else [file]
    from_file, of_folder = entry.python, folder
    if options.python is None and from_file is None:
        for of_folder in folders:
            if of_folder != folder or file is None:
                read.append(folder_file.read_folder_file(of_folder))
            from_file = read[-1].python
            if from_file is not None:
                break
    chosen = interpreters.choose_python(
        options.python, folders=folders, environ=environ, from_file=from_file, from_file_folder=of_folder
    )
    interpreters.check_is_python(chosen)
    notes = [
        note
        for folder_config in read
        if (note := folder_config.entry_warning(except_entry=options.entry)) is not None
    ]
    return replace(chosen, notes=(*chosen.notes, *notes))


def _merge_environment(options: RunOptions, entry: ScriptEntry, devices: str | None) -> dict[str, str]:
    """Return the entry's variables, overridden by those on the command line.

    Raises:
        ConfigError: an --env argument is not NAME=VALUE, or Rankdeck itself sets one of the variables.
    """
    variables = dict(entry.environment)
    for pair in options.environment:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                phrase("The option --env {pair} does not have the form NAME=VALUE.", pair=pair),
                code="usage",
                path="script.environment",
                advice=phrase("Write it as NAME=VALUE, for example --env LEVEL=3."),
            )
        variables[name] = value
    is_plain = options.plain or entry.plain
    ours = {
        **({} if is_plain else RANK_VARIABLES),
        **({"CUDA_VISIBLE_DEVICES": "--devices"} if devices is not None else {}),
    }
    for name in sorted(variables.keys() & ours.keys()):
        raise ConfigError(
            phrase(
                "Rankdeck sets {name} for every rank, so you cannot set it to {value}.",
                name=name,
                value=variables[name],
            ),
            code="usage",
            path="script.environment",
            advice=phrase("Leave the variable out: the option {option} sets it.", option=ours[name])
            if ours[name]
            else phrase("Leave it out."),
        )
    return variables


def _default_name(entry: ScriptEntry, folder: Path) -> str:
    """Return the run's default name: 'train' for train.py or pkg.train; for a folder, the folder's name."""
    if entry.kind == "module":
        return entry.run.rpartition(".")[2] or entry.run
    return Path(folder, entry.run).stem or entry.run
