"""`rankdeck run`: run a user's unchanged script, in place of python or torchrun.

Stdout, stdin, signals and the exit status belong to the script. Rankdeck prints to stderr: a line at the
start, problems as they occur, and a line at the end. Read torchrun.py for torchrun's options, run_options.py
for how options become a configuration, and foreground.py for how the command waits for the script.
"""

from __future__ import annotations

import enum
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, Detach

if TYPE_CHECKING:
    from rankdeck.config.interpreters import ChosenPython
    from rankdeck.config.script import ScriptConfig


class ObserveLevel(enum.StrEnum):
    NONE = "none"
    LIGHT = "light"
    FULL = "full"
    CHECK = "check"


_TORCHRUN_PANEL = "torchrun options"
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGS]", hidden=True, help="Script to run, and its arguments."),
]
NprocPerNode = Annotated[
    str | None,
    typer.Option(
        "--nproc-per-node",
        "--nproc",
        metavar="N",
        help="Number of ranks, or gpu, cpu or auto. Default: 1.",
        rich_help_panel=_TORCHRUN_PANEL,
    ),
]
Module = Annotated[
    bool,
    typer.Option(
        "-m", "--module", help="SCRIPT is a module, as with python -m.", rich_help_panel=_TORCHRUN_PANEL
    ),
]
NoPython = Annotated[
    bool,
    typer.Option(
        "--no-python", help="SCRIPT is an executable, not a Python file.", rich_help_panel=_TORCHRUN_PANEL
    ),
]
Standalone = Annotated[
    bool,
    typer.Option(
        "--standalone", help="Has no effect: runs are always standalone.", rich_help_panel=_TORCHRUN_PANEL
    ),
]
MasterPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        metavar="PORT",
        help="Port of the TCP store. Default: a free port.",
        rich_help_panel=_TORCHRUN_PANEL,
    ),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Restart all ranks up to N times if a rank fails.",
        rich_help_panel=_TORCHRUN_PANEL,
    ),
]
LogDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder for a copy of each rank's output.", rich_help_panel=_TORCHRUN_PANEL
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(help="Devices: gpu:all, gpu:0,2 or cpu:4 (4 ranks without GPUs). Default: visible GPUs."),
]
Python = Annotated[
    str | None,
    typer.Option(metavar="PYTHON", help="Interpreter or environment folder. Default: detected."),
]
ObserveOption = Annotated[
    ObserveLevel | None, typer.Option(help="How closely to observe the script. Default: light.")
]
Variables = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Environment variable for the script.")
]
Plain = Annotated[
    bool,
    typer.Option("--plain", help="Start one process as python does, without torchrun's variables."),
]
# The backslash in the help keeps rich from reading [scripts.NAME] as markup.
EntryName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Run \\[scripts.NAME] from the folder's rankdeck.toml.")
]
Name = Annotated[str | None, typer.Option(help="Name of the run.")]
Runs = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for runs. Default: ./runs.")]


def run(
    words: ScriptArguments = None,
    nproc_per_node: NprocPerNode = None,
    module: Module = False,
    no_python: NoPython = False,
    standalone: Standalone = False,
    master_port: MasterPort = None,
    max_restarts: MaxRestarts = None,
    log_dir: LogDir = None,
    devices: Devices = None,
    python: Python = None,
    observe: ObserveOption = None,
    env: Variables = None,
    plain: Plain = False,
    entry: EntryName = None,
    name: Name = None,
    runs: Runs = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Run your own training script and watch it.

    Replaces python or torchrun: rankdeck run train.py --lr 0.1. Rankdeck's options come before the script.
    The script keeps its own output, exit status and results.
    """
    from rankdeck.cli.run_options import RunOptions, script_config

    options = RunOptions(
        command=words or (),
        entry=entry,
        module=module,
        no_python=no_python,
        plain=plain,
        nproc_per_node=nproc_per_node,
        devices=devices,
        python=python,
        observe=None if observe is None else observe.value,
        environment=env or (),
        name=name,
        max_restarts=max_restarts,
        master_port=master_port,
        log_dir=log_dir,
    )
    config, chosen = script_config(options, folder=_current_folder(), environ=os.environ)

    for note in chosen.notes:
        console.err().print(note, style="yellow", soft_wrap=True)

    from rankdeck import run_dir
    from rankdeck.cli.foreground import start_and_wait
    from rankdeck.launch.start import start_script

    start = partial(start_script, config, runs=run_dir.runs_folder(runs))
    return start_and_wait(start, program_text(config, chosen), detach=detach, as_json=as_json)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise MachineError(
            phrase("The current folder no longer exists."), advice=phrase("Change to an existing folder.")
        ) from None


def program_text(config: ScriptConfig, chosen: ChosenPython) -> str:
    """Return text that names the script's interpreter, or the program itself if it is not a Python script."""
    if config.script.kind == "program":
        return f"program: {config.script.run}"
    return f"python: {chosen.describe(os.environ)}"
