"""Ask for consent before executing the code of an existing run that was neither started nor approved on this
machine.

Naming a configuration or script on the command line (train, plan FILE, race, run) counts as consent. Read
config/consent.py first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.formatting import one_line

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.config.consent import CodeExecution
    from rankdeck.config.script import ScriptConfig
    from rankdeck.run_dir import RunDir

Trust = Annotated[bool, typer.Option("--trust", help="Execute the run's own code without asking.")]

MAX_CODE_LENGTH = 400


def check_trust(run: RunDir, config: RunConfig | ScriptConfig, *, trust: bool) -> None:
    """Check that the run's code may be executed, and ask the user if necessary.

    Raises:
        ConfigError: there is no terminal to ask on.
        typer.Abort: the user answered no.
    """
    if not confirm_execution([(run, config)], trust=trust):
        raise typer.Abort


def confirm_execution(runs: Sequence[tuple[RunDir, RunConfig | ScriptConfig]], *, trust: bool) -> bool:
    """Return whether the code that these runs name may be executed.

    This is the case if the user started or approved them before, if `trust` is set, or if the user agrees
    now; in the last two cases the consent is saved.

    Raises:
        ConfigError: there is no terminal to ask on.
    """
    from rankdeck.config.consent import execution_of, has_consent, record_consent

    named = {run.path: execution_of(config) for run, config in runs}
    unknown = {
        path: execution
        for path, execution in named.items()
        if execution is not None and not has_consent(execution)
    }
    if unknown and not trust and not _confirm(list(unknown.values()), str(next(iter(unknown)))):
        return False
    for execution in unknown.values():
        record_consent(execution)
    return True


def _confirm(unknown: Sequence[CodeExecution], path: str) -> bool:
    descriptions = [
        one_line(word, MAX_CODE_LENGTH)
        for word in dict.fromkeys(word for execution in unknown for word in execution.descriptions)
    ]
    # The question is printed on stderr; stdout may be a pipe, as in `rankdeck show --plan last | less`.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            phrase(
                "This command would execute code that is not trusted on this machine: {code}.",
                code="; ".join(descriptions),
            ),
            code="untrusted",
            path=path,
            advice=phrase("Review the code first. Then add --trust, or confirm in a terminal."),
        )
    whose = "This run executes" if len(unknown) == 1 else f"{len(unknown)} runs execute"
    err = console.err()
    err.print(f"{whose} code that can do whatever you can do on this machine:", soft_wrap=True)
    for word in descriptions:
        err.print(f"  {word}", soft_wrap=True)
    return typer.confirm("Run it?", default=False, err=True)
