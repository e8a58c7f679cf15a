"""`rankdeck train`, `resume`, `checkpoint` and `verify`, on this machine or a configuration's hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.cli import console
from rankdeck.cli.options import (
    AsJson,
    ConfigName,
    Detach,
    Overrides,
    RunName,
    find_run,
    is_script_run,
    load_config,
)
from rankdeck.cli.rendezvous import (
    HostNames,
    Join,
    Listen,
    hosts_override,
    multi_host_role,
    name_on_coordinator,
    parse_host_names,
)
from rankdeck.cli.trust import Trust, check_trust
from rankdeck.cli.wait import command_start_time, detach_or_wait
from rankdeck.run.verified import DIFFERS, EQUAL, NOTED, UNCHECKED

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.launch.verification import Verification
    from rankdeck.planner.candidates import Candidate
    from rankdeck.run_dir import RunDir


def train(
    config: ConfigName,
    devices: Annotated[
        str | None, typer.Option(help="Devices: auto, cpu:4 (rehearsal), gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Use another strategy, with its default options.")
    ] = None,
    overrides: Overrides = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for runs. Default: ./runs.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    hosts: HostNames = None,
    listen: Listen = None,
    join: Join = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Train a model from a configuration or a preset."""
    changes = [*(overrides or ()), *hosts_override(hosts)]
    chosen = load_config(config, strategy=strategy, devices=devices, name=name, overrides=changes)

    from rankdeck import run_dir
    from rankdeck.launch.start import start_run

    several = multi_host_role(chosen, hosts, listen, join)
    # With --listen or --join the user starts each host by hand, even if the configuration names the hosts.
    if several is None and chosen.hosts.use:
        from rankdeck.cli.multi_host import train_on_hosts

        return train_on_hosts(chosen, runs, detach=detach, as_json=as_json)
    run = start_run(
        chosen,
        runs=run_dir.runs_folder(runs),
        detach=detach,
        command_line=["rankdeck", *sys.argv[1:]],
        started=command_start_time(),
        multi_host_role=several,
    )
    return detach_or_wait(run, several, detach=detach, as_json=as_json)


# `rankdeck resume` and `rankdeck checkpoint`: continue an ended run, save a running one. A user's script has
# its own checkpoints, if any, so resuming its run means running it again.

CHECKPOINT_TIMEOUT_S = 120.0


def resume(
    name: RunName,
    strategy: Annotated[
        str | None, typer.Option(help="Continue with another strategy and its default options.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="Continue on other devices: cpu:4, gpu:all, gpu:0,2.")
    ] = None,
    overrides: Overrides = None,
    hosts: HostNames = None,
    listen: Listen = None,
    join: Join = None,
    trust: Trust = False,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Continue a run from its newest checkpoint.

    The strategy, the devices and any key can change. A script starts again as a new run, because Rankdeck
    does not manage its checkpoints. Rankdeck asks before it executes code of a run that was not started here.
    """
    from rankdeck.config import load
    from rankdeck.launch import start

    def on_hosts(run: str, names: Sequence[str]) -> int:
        from rankdeck.cli.multi_host import resume_on_hosts

        changes = {"--strategy": strategy, "--devices": devices}
        argv = [word for option, value in changes.items() if value is not None for word in (option, value)]
        argv += [word for override in overrides or () for word in ("--set", override)]
        return resume_on_hosts(run, names, argv + ["--trust"] * trust, detach=detach, as_json=as_json)

    # Not looked up here, because the run may exist only on the coordinator.
    if names := parse_host_names(hosts):
        return on_hosts(name, names)
    run = find_run(name)
    if is_script_run(run):
        if strategy is not None or devices is not None or overrides or hosts or listen or join:
            raise _script_options_error(run)
        return _run_script_again(run, trust=trust, detach=detach, as_json=as_json)
    # Relative paths start in the configuration's original folder, not in the run directory.
    file = run.config_to_resume
    config = load(file, strategy=strategy, devices=devices, overrides=overrides or ())
    check_trust(run, _saved_config(file, config), trust=trust)
    several = multi_host_role(config, hosts, listen, join)
    if several is None and config.hosts.use:
        return on_hosts(name_on_coordinator(run, config.hosts.use[0]), config.hosts.use)
    attempt = max(run.next_attempt(), 0 if several is None else several.attempt)
    start.resume_run(
        run,
        config,
        detach=detach,
        command_line=["rankdeck", *sys.argv[1:]],
        started=command_start_time(),
        multi_host_role=several,
    )
    return detach_or_wait(run, several, detach=detach, as_json=as_json, attempt=attempt)


def _saved_config(file: Path, changed: RunConfig) -> RunConfig:
    """Return the saved configuration for the trust check, without the command line's changes: code that the
    user has just typed needs no consent.

    If the file cannot be loaded, return `changed`, the configuration with those changes.
    """
    from rankdeck.config import load

    try:
        return load(file)
    except ConfigError:
        return changed  # only the changes make it valid


def _run_script_again(run: RunDir, *, trust: bool, detach: bool, as_json: bool) -> int:
    from rankdeck.cli.foreground import start_and_wait
    from rankdeck.cli.run import program_text
    from rankdeck.config.interpreters import ChosenPython
    from rankdeck.launch.start import rerun

    script = run.script()
    assert script is not None
    check_trust(run, script, trust=trust)
    python = ChosenPython(Path(script.script.python), script.script.python_source)
    what = f"running {run.name} again; {program_text(script, python)}"
    return start_and_wait(partial(rerun, run), what, detach=detach, as_json=as_json)


def _script_options_error(run: RunDir) -> ConfigError:
    return ConfigError(
        phrase("{run} runs a script, which rankdeck resume starts again, without changes.", run=run.name),
        code="script",
        advice=phrase("Leave the options out, or start a new run with rankdeck run."),
    )


def checkpoint(name: RunName, as_json: AsJson = False) -> int:
    """Save a checkpoint of a running run now."""
    from rankdeck.launch.control import request_checkpoint, wait_for_checkpoint

    run = find_run(name)
    if is_script_run(run):
        raise ConfigError(
            phrase("{run} runs a script, and only the script itself can save its state.", run=run.name),
            code="script",
            advice=phrase(
                "If the script saves a checkpoint on SIGTERM, use rankdeck stop, which sends that signal."
            ),
        )
    events_before = request_checkpoint(run)
    saved = wait_for_checkpoint(run, events_before, timeout_s=CHECKPOINT_TIMEOUT_S)
    path = run.checkpoints_folder / str(saved.step)
    console.err().print(f"step {saved.step}: {format_bytes(saved.num_bytes)} saved in {saved.seconds:.1f} s")
    if as_json:
        facts = {"step": saved.step, "bytes": saved.num_bytes, "seconds": saved.seconds, "path": str(path)}
        console.print_json(facts)
    else:
        typer.echo(path)
    return 0


# `rankdeck verify`: check that a strategy computes the same as one device, without training.

_LABEL_WIDTH = 34
_STYLES = {EQUAL: "green", NOTED: "green", DIFFERS: "bold red", UNCHECKED: "yellow"}


def verify(
    config: ConfigName,
    strategy: Annotated[
        str | None,
        typer.Option(help="own (default), all, or names separated by commas."),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="Devices: auto, cpu:4 (rehearsal), gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> int:
    """Compare steps of a strategy with those of one device.

    Compares losses, gradients, weights and buffers over whole batches. Exits with 1 if a strategy differs
    for an unknown reason, or if the configuration's own strategy, or every strategy, cannot run.
    """
    chosen = load_config(config, devices=devices, overrides=overrides or ())
    from rankdeck.cli.wait import sigterm_as_interrupt
    from rankdeck.launch.verification import verify_strategies

    differs, can_run = False, False
    with sigterm_as_interrupt():
        for row, verification in verify_strategies(
            chosen, _select_candidates(chosen, strategy), command_line=sys.argv
        ):
            differs |= verification.outcome == DIFFERS or (
                verification.outcome == "failed" and row.configured
            )
            can_run |= verification.outcome != "failed"
            _print_verification(row, verification, as_json=as_json)
    return int(differs or not can_run)


def _select_candidates(config: RunConfig, strategy: str | None) -> list[Candidate]:
    from rankdeck.cli.plan_target import resolve_target
    from rankdeck.planner.candidates import OWN, candidates_for

    return candidates_for(config, strategy or OWN, resolve_target(config, None, None).num_devices)


def _print_verification(row: Candidate, verification: Verification, *, as_json: bool) -> None:
    if as_json:
        facts = {"strategy": row.strategy, "options": row.options, "label": row.label, **verification.facts()}
        console.out().print(json.dumps(facts), soft_wrap=True)
        return
    line = Text(row.label.ljust(_LABEL_WIDTH), style="bold")
    line.append(f"  {verification.text}", style=f"{_STYLES.get(verification.outcome, 'red')} not bold")
    console.out().print(line, soft_wrap=True)
    for problem in verification.problems:
        console.print_problem(problem)
