"""`rankdeck train`: start a run, here or on the hosts that its configuration names, and stay with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, ConfigName, Detach, Overrides, load_config
from rankdeck.cli.until_end import command_started, leave_or_stay

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.launch.several import Several
    from rankdeck.rundir import RunDir


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
    hosts: Annotated[
        int | None, typer.Option(metavar="N", help="It is one run of so many hosts; started on each of them.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="This host's, for the others: on the first one.")
    ] = None,
    join: Annotated[
        str | None, typer.Option(metavar="PLACE", help="What the first host has said: on the others.")
    ] = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Train a model as a configuration or a preset says, and show how it goes."""
    chosen = load_config(config, strategy=strategy, devices=devices, name=name, overrides=overrides or ())

    from rankdeck import rundir
    from rankdeck.config.over_hosts import JOIN
    from rankdeck.launch.start import start

    several = _several(chosen, hosts, listen, join or os.environ.get(JOIN))
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
    if several is not None and several.listener is not None:
        _tell_place(run, several, as_json=as_json and detach)
        if as_json and detach:
            return 0
    return leave_or_stay(run, detach=detach, as_json=as_json)


def _several(config: RunConfig, hosts: int | None, listen: str | None, join: str | None) -> Several | None:
    """Raises: ConfigError, these do not go together."""
    if hosts is None and listen is None and join is None:
        return None
    hosts = hosts or len(config.hosts.use) or None
    if hosts is None or (listen is None) == (join is None):
        raise ConfigError(
            phrase("A run of several hosts is told how many, and either where to listen or where to join."),
            code="usage",
            advice=phrase(
                "On the first: --hosts 2 --listen ADDRESS; on the others --hosts 2 --join and what the first "
                "says."
            ),
        )
    from rankdeck.launch.several import Several

    return Several.as_head(hosts, listen or "") if join is None else Several.as_member(hosts, join)


def _tell_place(run: RunDir, several: Several, *, as_json: bool) -> None:
    """Where the others join."""
    if as_json:
        console.as_json({"run": run.name, "path": str(run.path), "place": several.place})
    else:
        words = phrase(
            "On each of the others: --hosts {n} --join {place}", n=several.num_hosts, place=several.place
        )
        console.err().print(words, soft_wrap=True)
