"""`rankdeck train`: start a run, here or on the hosts that its configuration names, and stay with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rankdeck.cli.joining import HostNames, Join, Listen, names_as_override, several_of, tell_place
from rankdeck.cli.options import AsJson, ConfigName, Detach, Overrides, load_config
from rankdeck.cli.until_end import command_started, leave_or_stay


def train(
    config: ConfigName,
    devices: Annotated[
        str | None, typer.Option(help="auto, cpu:4 (a rehearsal), gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Another strategy, with its default options; see: rankdeck strategies.")
    ] = None,
    overrides: Overrides = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that holds runs; ./runs by default.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the run is called.")] = None,
    hosts: HostNames = None,
    listen: Listen = None,
    join: Join = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Train a model as a configuration or a preset says, and show how it goes."""
    asked = [*(overrides or ()), *names_as_override(hosts)]
    chosen = load_config(config, strategy=strategy, devices=devices, name=name, overrides=asked)

    from rankdeck import rundir
    from rankdeck.launch.start import start

    several = several_of(chosen, hosts, listen, join)
    if several is None and chosen.hosts.use:
        from rankdeck.cli.parts import train_on_hosts

        return train_on_hosts(chosen, runs, detach=detach, as_json=as_json)
    run = start(
        chosen,
        runs=rundir.runs_folder(runs),
        detach=detach,
        command_line=["rankdeck", *sys.argv[1:]],
        started=command_started(),
        several=several,
    )
    tell_place(run, several, 0, quietly=detach and as_json)
    return leave_or_stay(run, several, detach=detach, as_json=as_json)
