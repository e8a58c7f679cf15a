"""Documents by name: what commands say of recorded runs, and the names that people's code and shells use.

Nothing of this machine is in them: paths are those of RUNS. What the window draws is in drawn.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer

import rankdeck
from rankdeck.cli.app import app
from rankdeck.run_dir import is_run
from tests.helpers.cli import rankdeck_in_process

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUNS = "/recorded/runs"
_PLANNED = ("too-small",)
"""Why they ended is answered with plans, which take seconds each."""


@contextlib.contextmanager
def in_utc() -> Iterator[None]:
    """Times of day are those of UTC, wherever this machine is."""
    with mock.patch.dict(os.environ, {"TZ": "UTC"}):
        time.tzset()
        yield
    time.tzset()


class Recorded:
    """The recorded runs of the newest version, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with tarfile.open(max(FIXTURES.glob("runs-*.tar.xz"))) as packed:
            packed.extractall(folder, filter="data")
        self.runs = folder / "runs"

    @property
    def all(self) -> list[Path]:
        """Runs, the oldest first; races are beside them."""
        return sorted(path for path in self.runs.iterdir() if is_run(path))

    def short(self, run: Path) -> str:
        """A name for people."""
        return run.name[16:-5]

    def neutral(self, text: str) -> str:
        text = re.sub(r"\bon \d{4}-\d\d-\d\d \d\d:\d\d\b", "today", text)
        return text.replace(str(self.runs), RUNS).replace(str(self.folder), str(Path(RUNS).parent))


def iter_documents(recorded: Recorded) -> Iterator[tuple[str, str]]:
    """What commands say, by the name of a document; a .json one may have more keys later."""
    for run in recorded.all:
        name = recorded.short(run)
        yield f"{name}/show.json", _json(recorded, "show", run)
        yield f"{name}/show.txt", _text(recorded, "show", run)
        if name not in _PLANNED:
            yield f"{name}/why.json", _json(recorded, "why", run)
        yield f"{name}/report.html", _text(recorded, "report", run, "--html", "-", "--no-plan")
    for group in ("", "script-"):
        of_group = [
            run for run in recorded.all if recorded.short(run).startswith(group or ("dp", "ddp", "fs"))
        ]
        yield f"compare/{group}runs.json", _json(recorded, "compare", *of_group)
        yield f"compare/{group}runs.txt", _text(recorded, "compare", *of_group)
        yield f"compare/{group}runs.html", _text(recorded, "compare", *of_group, "--html", "-")
    yield "runs.json", _json(recorded, "runs")
    yield from _running(recorded)
    yield from _races(recorded)
    for command in ("strategies", "presets"):
        yield f"{command}.json", _json(recorded, command)
    yield "shell.json", json.dumps(_commands(), indent=1)
    yield "python.json", json.dumps(_python(), indent=1)


def _running(recorded: Recorded) -> Iterator[tuple[str, str]]:
    """Runs that were killed are alive as long as somebody holds their lock."""
    for run in recorded.all:
        if not (run / "end.json").exists():
            with open(run / "guard.lock", "r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield f"{recorded.short(run)}/running.json", _json(recorded, "show", run)


def _races(recorded: Recorded) -> Iterator[tuple[str, str]]:
    for race in sorted(path.parent for path in recorded.runs.glob("*/race.json")):
        yield f"{recorded.short(race)}/race.json", _json(recorded, "show", race)
        yield f"{recorded.short(race)}/race.txt", _text(recorded, "show", race)


def _json(recorded: Recorded, *arguments: str | Path) -> str:
    return recorded.neutral(rankdeck_in_process(*arguments, "--json", env=_of(recorded)).out)


def _text(recorded: Recorded, *arguments: str | Path) -> str:
    return recorded.neutral(rankdeck_in_process(*arguments, env=_of(recorded)).out)


def _of(recorded: Recorded) -> dict[str, str]:
    return {"RANKDECK_RUNS": str(recorded.runs), "COLUMNS": "100", "NO_COLOR": "1"}


def _commands() -> dict[str, list[str]]:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    return {
        name: [" ".join((*option.opts, *option.secondary_opts)) for option in command.params]
        for name, command in sorted(group.commands.items())
    }


def _python() -> dict[str, Any]:
    """Every public name, with what it takes; of a class, what it has."""
    signatures: dict[str, Any] = {}
    for name in sorted(rankdeck._PUBLIC):
        value = getattr(rankdeck, name)
        signatures[name] = _signature(value)
        if inspect.isclass(value):
            members = {key: member for key, member in vars(value).items() if not key.startswith("_")}
            signatures[name] = {key: _signature(member) for key, member in sorted(members.items())}
    return signatures


def _signature(value: object) -> str:
    if not callable(value):
        return type(value).__name__
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(inspect.signature(value)))
