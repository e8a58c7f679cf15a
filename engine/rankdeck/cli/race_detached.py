"""`rankdeck race --detach`: the race in a process and a session of its own, which tells where it is.

The one that was called waits until the other has planned and holds its devices, then says where the race is
and leaves. What the race says from there on is in race.log of its folder; what kept it from beginning is said
here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import typer

from rankdeck.cli import console
from rankdeck.cli.until_end import term_interrupts
from rankdeck.rundir import RaceDir

ANNOUNCE = "--announce"
LOG = "race.log"


def start_detached(*, as_json: bool) -> int:
    """Begin the race that this command was asked for in another process; the exit code."""
    reading, writing = os.pipe()
    words = [word for word in sys.argv[1:] if word != "--detach"]
    command = [sys.executable, "-P", "-m", "rankdeck", *words, "--yes", ANNOUNCE, str(writing)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, term_interrupts():
        racer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        try:
            with open(reading, encoding="utf-8") as announced:
                path = announced.read()
            code = 0 if path else racer.wait()
        except BaseException:
            racer.terminate()
            racer.wait()
            raise
        if not path:
            _pass_on(out, sys.stdout.fileno())
            _pass_on(err, sys.stderr.fileno())
            return code
    if as_json:
        console.as_json({"run": Path(path).name, "path": path})
    else:
        typer.echo(path)
    return 0


def _pass_on(said: IO[bytes], handle: int) -> None:
    said.seek(0)
    with os.fdopen(os.dup(handle), "wb") as stream:
        shutil.copyfileobj(said, stream)


def announce(race: RaceDir, handle: int) -> None:
    """Say where the race is, and go on into its log.

    Raises: BrokenPipeError where whoever asked for the race has left.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    log = os.open(race.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    with open(handle, "w", encoding="utf-8") as pipe:
        pipe.write(str(race.path))
