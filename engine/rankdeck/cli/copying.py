"""`rankdeck copy`: a run of another host, brought here to be read as any other; and `rankdeck install`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import on_host
from rankdeck.cli.options import AsJson


def copy(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="With --host a run there, else a copy that is here.")
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run is over.")] = False,
    as_json: AsJson = False,
) -> int:
    """Bring a run of another host here (--host NAME), or what is new of a copy that is here already."""
    from rankdeck.rundir import RunDir

    origin = RunDir(path).copied_from
    if origin is None:
        raise ConfigError(
            phrase("{path} is no copy of another host's run.", path=path),
            code="no-copy",
            advice=phrase("As in: rankdeck --host NAME copy last"),
        )
    return on_host.copy(origin.host, origin.path, follow=follow, as_json=as_json)


def install(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Further arguments of pip's.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="An environment that is there already.")
    ] = None,
) -> None:
    """Put this rankdeck on another host (--host NAME)."""
    raise ConfigError(
        phrase("install is for another host, and none is named."),
        code="no-host",
        advice=phrase("As in: rankdeck --host NAME install"),
    )
