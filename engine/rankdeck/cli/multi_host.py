"""Train on several hosts: start the run on each of them over ssh, and show the run that the coordinator
records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console, remote_command
from rankdeck.cli.wait import sigterm_as_interrupt

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.remote.hosts import CommandResult


def train_on_hosts(config: RunConfig, runs: Path | None, *, detach: bool, as_json: bool) -> int:
    """Train on the configuration's hosts. Return the run's exit code or, if `detach` is True, 0 once the run
    has started."""
    from rankdeck.remote.host_launcher import launch_on_hosts

    code = Path(config.folder or ".") if config.user_code() else None
    needs_gpus = config.selection.kind == "gpu"
    _check_hosts(config.hosts.use, config.hosts.address, needs_gpus=needs_gpus, code=code)
    with sigterm_as_interrupt():
        coordinator, result = launch_on_hosts(config, runs, _print_message)
    return _detach_or_wait(coordinator, result, detach=detach, as_json=as_json)


def resume_on_hosts(
    run: str, hosts: Sequence[str], argv: Sequence[str], *, detach: bool, as_json: bool
) -> int:
    """Resume an ended run on these hosts; wait or detach, and return an exit code, as `train_on_hosts` does.
    `argv` are further arguments of `resume`."""
    from rankdeck.remote.host_launcher import relaunch_on_hosts

    # The run's configuration is on the coordinator, so this host does not know whether it needs GPUs.
    _check_hosts(hosts, None, needs_gpus=False)
    with sigterm_as_interrupt():
        coordinator, result = relaunch_on_hosts(run, hosts, argv, _print_message)
    return _detach_or_wait(coordinator, result, detach=detach, as_json=as_json)


def _detach_or_wait(coordinator: str, result: CommandResult, *, detach: bool, as_json: bool) -> int:
    from rankdeck.cli.follow import choose_display
    from rankdeck.cli.wait import wait_for_run
    from rankdeck.remote import ssh
    from rankdeck.run_dir import RunDir

    if detach and as_json:
        console.print_json({"host": coordinator, "run": result.run, "path": result.path})
    elif detach:
        typer.echo(result.path)
        message = phrase(
            "The run is on {host}: rankdeck --host {host} watch {run}", host=coordinator, run=result.run
        )
        console.err().print(message, soft_wrap=True)
    # The coordinator's run directory is here: no copy over ssh is needed to show it.
    elif ssh.is_local_host(coordinator):
        run = RunDir(Path(result.path))
        return wait_for_run(
            run, choose_display(run, progress=not as_json), as_json=as_json, attempt=result.attempt
        )
    else:
        return remote_command.wait_for_remote_run(
            coordinator, result.path, as_json=as_json, attempt=result.attempt
        )
    return 0


def _check_hosts(
    hosts: Sequence[str], address: str | None, *, needs_gpus: bool, code: Path | None = None
) -> None:
    """Check that these hosts can train together in one run, and print warnings. `address` is the
    coordinator's address, and `code` is the folder of user code that the hosts will run.

    Raises:
        ConfigError: there is only one host.
        MachineError: these hosts cannot train together in one run.
    """
    if len(hosts) < 2:
        raise ConfigError(
            phrase("Only one host is specified: {host}.", host=hosts[0]),
            path="hosts.use",
            advice=phrase(
                "Add another host, or train on this host alone: rankdeck --host {host} train", host=hosts[0]
            ),
        )
    from rankdeck.cli.doctor import print_check
    from rankdeck.doctor.lines import Verdict
    from rankdeck.doctor.multi_host import check_hosts

    for line in check_hosts(hosts, address, needs_gpus=needs_gpus, code=code):
        if line.verdict is Verdict.FAILED:
            evidence = "; ".join(line.evidence[:2])
            with_evidence = phrase("{finding} {evidence}", finding=line.finding, evidence=evidence)
            message = phrase("{finding}", finding=line.finding) if line.name == "ssh" else with_evidence
            raise MachineError(message, code=f"hosts-{line.name}", advice=line.fix)
        if line.verdict is Verdict.WARNING:
            print_check(line, console.err())


def _print_message(host: str, text: str) -> None:
    console.err().print(console.replace_control_characters(f"{host}: {text}"), soft_wrap=True, markup=False)
