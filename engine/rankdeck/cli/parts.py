"""`rankdeck train` of a configuration that names hosts: each host's part is started there, and what the first
one tells is shown here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console, on_host
from rankdeck.cli.until_end import term_interrupts

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.remote.hosts import CommandResult


def train_on_hosts(config: RunConfig, runs: Path | None, *, detach: bool, as_json: bool) -> int:
    """The exit code of the run, or of its beginning where it is left then."""
    from rankdeck.remote.parts import begin_parts

    code = Path(config.folder or ".") if config.own_code() else None
    needs_gpus = config.selection.kind == "gpu"
    _look_over(config.hosts.use, config.hosts.address, needs_gpus=needs_gpus, code=code)
    with term_interrupts():
        head, begun = begin_parts(config, runs, _say)
    return _stay(head, begun, detach=detach, as_json=as_json)


def resume_on_hosts(
    run: str, hosts: Sequence[str], argv: Sequence[str], *, detach: bool, as_json: bool
) -> int:
    """The same of a run of these hosts that is over; `argv` are further arguments of `resume`."""
    from rankdeck.remote.parts import begin_parts_again

    _look_over(hosts, None, needs_gpus=False)
    with term_interrupts():
        head, begun = begin_parts_again(run, hosts, argv, _say)
    return _stay(head, begun, detach=detach, as_json=as_json)


def _stay(head: str, begun: CommandResult, *, detach: bool, as_json: bool) -> int:
    from rankdeck.cli.follow import choose
    from rankdeck.cli.until_end import stay
    from rankdeck.remote import ssh
    from rankdeck.rundir import RunDir

    if detach and as_json:
        console.as_json({"host": head, "run": begun.run, "path": begun.path})
    elif detach:
        typer.echo(begun.path)
        words = phrase("It is on {host}: rankdeck --host {host} watch {run}", host=head, run=begun.run)
        console.err().print(words, soft_wrap=True)
    elif ssh.is_here(head):
        run = RunDir(Path(begun.path))
        return stay(run, choose(run, progress=not as_json), as_json=as_json, attempt=begun.attempt)
    else:
        return on_host.stay(head, begun.path, as_json=as_json, attempt=begun.attempt)
    return 0


def _look_over(
    hosts: Sequence[str], address: str | None, *, needs_gpus: bool, code: Path | None = None
) -> None:
    """Raises: ConfigError, it is one host alone; MachineError, these hosts cannot train one run."""
    if len(hosts) < 2:
        raise ConfigError(
            phrase("{host} alone is not several hosts.", host=hosts[0]),
            path="hosts.use",
            advice=phrase(
                "Name another one, or train on that one: rankdeck --host {host} train", host=hosts[0]
            ),
        )
    from rankdeck.cli.doctor import print_row
    from rankdeck.doctor.lines import Verdict
    from rankdeck.doctor.over_hosts import look_over_hosts

    for line in look_over_hosts(hosts, address, needs_gpus=needs_gpus, code=code):
        if line.verdict is Verdict.BROKEN:
            seen = "; ".join(line.evidence[:2])
            words = phrase("{finding} {evidence}", finding=line.finding, evidence=seen)
            told = phrase("{finding}", finding=line.finding) if line.name == "ssh" else words
            raise MachineError(told, code=f"hosts-{line.name}", advice=line.fix)
        if line.verdict is Verdict.LOOK:
            print_row(line, console.err())


def _say(host: str, words: str) -> None:
    console.err().print(console.harmless(f"{host}: {words}"), soft_wrap=True, markup=False)
