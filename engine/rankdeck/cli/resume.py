"""`rankdeck resume` and `rankdeck checkpoint`: go on with a run that is over, save one that is not."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rankdeck.base.units import format_bytes
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, Detach, Overrides, RunName, find_run
from rankdeck.cli.train import command_started, leave_or_stay

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
    from rankdeck.config import load
    from rankdeck.launch import start

    run = find_run(name)
    # Its folder is where it was, not the run's.
    config = load(run.config_to_go_on_with, strategy=strategy, devices=devices, overrides=overrides or ())
    attempt = run.next_attempt()
    start.resume(
        run,
        config,
        detach=detach,
        command_line=["rankdeck", *sys.argv[1:]],
        started=command_started(),
    )
    return leave_or_stay(run, detach=detach, as_json=as_json, attempt=attempt)


def checkpoint(name: RunName) -> int:
    """Save a running run now, after the step that is under way."""
    from rankdeck.launch.control import request_checkpoint, wait_saved

    run = find_run(name)
    events_before = request_checkpoint(run)
    saved = wait_saved(run, events_before, timeout_s=SAVED_WITHIN_S)
    path = run.checkpoints_folder / str(saved.step)
    console.err().print(f"step {saved.step}: {format_bytes(saved.num_bytes)} saved in {saved.seconds:.1f} s")
    typer.echo(path)
    return 0
