"""`rankdeck resume` and `rankdeck checkpoint`: go on with a run that is over, save one that is not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.cli.options import AsJson, Detach, Overrides, RunName, find_run
from rankdeck.cli.train import command_started, leave_or_stay

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.rundir import RunDir

SAVED_WITHIN_S = 120.0


def resume(
    name: RunName,
    strategy: Annotated[
        str | None, typer.Option(help="Go on under another strategy, with its default options.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="Go on with other devices: cpu:4, gpu:all, gpu:0,2.")
    ] = None,
    overrides: Overrides = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Go on with a run from its newest checkpoint, under another strategy or on other devices if you like."""
    from rankdeck.launch import start

    run = find_run(name)
    config = _config(run, strategy, devices, overrides or [])
    attempt = run.next_attempt()
    start.resume(
        run,
        config,
        detach=detach,
        command_line=["rankdeck", *sys.argv[1:]],
        started=command_started(),
    )
    return leave_or_stay(run, detach=detach, as_json=as_json, attempt=attempt)


def _config(run: RunDir, strategy: str | None, devices: str | None, overrides: list[str]) -> RunConfig:
    """What the latest attempt ran that was not refused, with the changes. Its folder is where it was, not the
    run's."""
    from rankdeck.config import load

    return load(run.config_to_go_on_with, strategy=strategy, devices=devices, overrides=overrides)


def checkpoint(name: RunName) -> int:
    """Save a running run now, after the step that is under way."""
    from rankdeck.base.units import format_bytes
    from rankdeck.cli import console
    from rankdeck.launch.control import request_checkpoint, wait_saved

    run = find_run(name)
    events_before = request_checkpoint(run)
    saved = wait_saved(run, events_before, timeout_s=SAVED_WITHIN_S)
    path = run.checkpoints_folder / str(saved.step)
    console.err().print(f"step {saved.step}: {format_bytes(saved.num_bytes)} saved in {saved.seconds:.1f} s")
    typer.echo(path)
    return 0
