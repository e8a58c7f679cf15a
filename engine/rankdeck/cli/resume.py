"""`rankdeck resume` and `rankdeck checkpoint`: go on with a run that is over, save one that is not.

A person's own script keeps its own checkpoints, if any: to resume its run is to run it again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.cli import console
from rankdeck.cli.joining import HostNames, Join, Listen, host_names, name_at_head, several_of, tell_place
from rankdeck.cli.options import AsJson, Detach, Overrides, RunName, find_run, is_script
from rankdeck.cli.trust import Trust, check_trust
from rankdeck.cli.until_end import command_started, leave_or_stay

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.launch.attached import Attached
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
    hosts: HostNames = None,
    listen: Listen = None,
    join: Join = None,
    trust: Trust = False,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Go on with a run from its newest checkpoint, under another strategy or on other devices if you like.

    The run of a script is run again: a new run of the same script. Code that a run names and that was never
    started here is asked about first.
    """
    from rankdeck.config import load
    from rankdeck.launch import start

    def on_hosts(run: str, names: Sequence[str]) -> int:
        from rankdeck.cli.parts import resume_on_hosts

        changes = {"--strategy": strategy, "--devices": devices}
        argv = [word for option, value in changes.items() if value is not None for word in (option, value)]
        argv += [word for override in overrides or () for word in ("--set", override)]
        return resume_on_hosts(run, names, argv + ["--trust"] * trust, detach=detach, as_json=as_json)

    if names := host_names(hosts):
        return on_hosts(name, names)
    run = find_run(name)
    if is_script(run):
        if strategy is not None or devices is not None or overrides or hosts or listen or join:
            raise _as_it_was(run)
        return _run_again(run, trust=trust, detach=detach, as_json=as_json)
    # Its folder is where it was, not the run's.
    file = run.config_to_go_on_with
    config = load(file, strategy=strategy, devices=devices, overrides=overrides or ())
    check_trust(run, _as_it_stands(file, config), trust=trust)
    several = several_of(config, hosts, listen, join)
    if several is None and config.hosts.use:
        return on_hosts(name_at_head(run, config.hosts.use[0]), config.hosts.use)
    attempt = max(run.next_attempt(), 0 if several is None else several.attempt)
    start.resume(
        run,
        config,
        detach=detach,
        command_line=["rankdeck", *sys.argv[1:]],
        started=command_started(),
        several=several,
    )
    tell_place(run, several, attempt, quietly=detach and as_json)
    return leave_or_stay(run, several, detach=detach, as_json=as_json, attempt=attempt)


def _as_it_stands(file: Path, changed: RunConfig) -> RunConfig:
    """The run's own configuration: code that was typed just now needs no question."""
    from rankdeck.config import load

    try:
        return load(file)
    except ConfigError:
        return changed  # which mends it


def _run_again(run: RunDir, *, trust: bool, detach: bool, as_json: bool) -> int:
    from rankdeck.cli.staying import begin_and_stay
    from rankdeck.config.interpreters import ChosenPython
    from rankdeck.launch.start import run_again

    def begin(attached: Attached | None) -> RunDir:
        return run_again(
            run,
            detach=detach,
            command_line=["rankdeck", *sys.argv[1:]],
            started=command_started(),
            attached=attached,
        )

    script = run.script()
    assert script is not None
    check_trust(run, script, trust=trust)
    python = ChosenPython(Path(script.script.python), script.script.python_source)
    what = f"{run.name} again; python: {python.in_words(os.environ)}"
    return begin_and_stay(begin, what, detach=detach, as_json=as_json)


def _as_it_was(run: RunDir) -> ConfigError:
    return ConfigError(
        phrase("{run} is the run of a script, which is run again as it was.", run=run.name),
        code="script",
        advice=phrase("Leave the options out, or start the script anew with rankdeck run."),
    )


def checkpoint(name: RunName, as_json: AsJson = False) -> int:
    """Save a running run now, after the step that is under way."""
    from rankdeck.launch.control import request_checkpoint, wait_saved

    run = find_run(name)
    if is_script(run):
        raise ConfigError(
            phrase("{run} is the run of a script, which saves itself or not at all.", run=run.name),
            code="script",
            advice=phrase(
                "A script that saves itself when it is asked to end: rankdeck stop sends it SIGTERM."
            ),
        )
    events_before = request_checkpoint(run)
    saved = wait_saved(run, events_before, timeout_s=SAVED_WITHIN_S)
    path = run.checkpoints_folder / str(saved.step)
    console.err().print(f"step {saved.step}: {format_bytes(saved.num_bytes)} saved in {saved.seconds:.1f} s")
    if as_json:
        told = {"step": saved.step, "bytes": saved.num_bytes, "seconds": saved.seconds, "path": str(path)}
        console.as_json(told)
    else:
        typer.echo(path)
    return 0
