"""`rankdeck serve`: what ssh starts on another host; no person does."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase


def serve(
    stdio: Annotated[bool, typer.Option("--stdio", help="Over the pipe of an ssh connection.")] = False,
) -> int:
    """Answer rankdeck of another host: what `rankdeck --host` starts there over ssh."""
    if not stdio:
        raise ConfigError(
            phrase("Nothing is served over a port: another host asks over ssh."),
            code="usage",
            advice=phrase("From there: rankdeck --host NAME devices"),
        )
    from rankdeck.remote.serving import Serving

    # Whatever else writes to stdout must not come between two messages.
    write_end = os.dup(1)
    os.dup2(2, 1)
    Serving(0, write_end).run()
    return 0
