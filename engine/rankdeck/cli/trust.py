"""The one question before code of others runs: a run that is there already names code, and nobody here has
started that, or said yes to it.

A configuration or a script that a person names (train, plan FILE, race, run) is an answer in itself. Read
config/consent.py before.
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

Trust = Annotated[bool, typer.Option("--trust", help="Execute the code that the run names without asking.")]

MAX_CODE_LENGTH = 400


def check_trust(run: RunDir, config: RunConfig | ScriptConfig, *, trust: bool) -> None:
    """Raises:
    ConfigError: as `confirm_execution`.
    typer.Abort: the person said no.
    """
    if not confirm_execution([(run, config)], trust=trust):
        raise typer.Abort


def confirm_execution(runs: Sequence[tuple[RunDir, RunConfig | ScriptConfig]], *, trust: bool) -> bool:
    """Whether what these runs name may be executed, which is remembered: the person started it, `trust` says
    so, or the person does now.

    Raises:
        ConfigError: nobody is there to be asked.
    """
    from rankdeck.config.consent import execution_of, has_consent, record_consent

    named = {run.path: execution_of(config) for run, config in runs}
    unknown = {path: found for path, found in named.items() if found is not None and not has_consent(found)}
    if unknown and not trust and not _ask(list(unknown.values()), str(next(iter(unknown)))):
        return False
    for found in unknown.values():
        record_consent(found)
    return True


def _ask(unknown: Sequence[CodeExecution], path: str) -> bool:
    words = [
        one_line(word, MAX_CODE_LENGTH)
        for word in dict.fromkeys(word for one in unknown for word in one.descriptions)
    ]
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            phrase("This executes code that nobody has agreed to here: {code}.", code="; ".join(words)),
            code="untrusted",
            path=path,
            advice=phrase("Look at it first. Then add --trust, or answer the question in a terminal."),
        )
    whose = "This run executes" if len(unknown) == 1 else f"{len(unknown)} runs execute"
    err = console.err()
    err.print(f"{whose} code that can do whatever you can do on this machine:", soft_wrap=True)
    for word in words:
        err.print(f"  {word}", soft_wrap=True)
    return typer.confirm("Run it?", default=False, err=True)
