"""A person's script in a process of its own, with the observer put on its path as `rankdeck run` does it, and
nothing else around it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rankdeck import events
from tests.helpers.script_python import PYTHON
from tests.helpers.tree import CHECKOUT, PRODUCT
from tests.helpers.waiting import with_load

INJECT = CHECKOUT / "engine/rankdeck/observer/inject"
Kind = TypeVar("Kind", bound=events.Event)


@dataclass
class Watched:
    """How it ended, and what it left in its run directory: lines by rank (none where it ran alone)."""

    status: int
    stdout: str
    stderr: str
    run: Path | None
    lines: dict[int, list[events.AnyEvent | None]] = field(default_factory=dict)

    def ranks(self) -> list[int]:
        return sorted(self.lines)

    def events(self, rank: int) -> list[events.AnyEvent]:
        """All of a rank's lines; every one is known, and they are numbered without a gap."""
        found = [line for line in self.lines[rank] if line is not None]
        assert [line.seq for line in found] == list(range(len(self.lines[rank])))
        return found

    def of(self, kind: type[Kind], rank: int = 0) -> list[Kind]:
        return [event for event in self.events(rank) if isinstance(event, kind)]

    def steps(self, rank: int, column: str) -> list[object]:
        """One column over all steps of a rank; steps without it have None."""
        values: list[object] = []
        last = 0
        for event in self.of(events.Steps, rank):
            assert event.first == last + 1
            last += len(event.ended)
            values += getattr(event, column) or [None] * len(event.ended)
        return values

    def observed(self, rank: int) -> events.Observed:
        """What was seen of a rank at last."""
        return self.of(events.Observed, rank)[-1]

    def off(self, rank: int = 0) -> dict[str, str]:
        """The parts that were switched off, and why."""
        return self.observed(rank).parts

    def values(self, through: str, rank: int = 0) -> dict[str, list[tuple[int | None, float | None]]]:
        """What was logged through that logger: by name, step and value of each time that it was told."""
        found: dict[str, list[tuple[int | None, float | None]]] = {}
        for event in self.of(events.Metrics, rank):
            if event.through == through:
                for name, column in event.values.items():
                    told = zip(event.steps, column, strict=True)
                    found.setdefault(name, []).extend(
                        (step, value) for step, value in told if value is not None
                    )
        return found


def environment(run: Path | None, **more: str) -> dict[str, str]:
    """What a script is started with; without a run nothing of ours is in it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RANKDECK_R") and k != "PYTHONPATH"}
    env.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    if run is not None:
        env.update(
            PYTHONPATH=str(INJECT), RANKDECK_RUN=str(run), RANKDECK_ATTEMPT="0", RANKDECK_OBSERVE="light"
        )
    return {**env, **more}


def watch(
    command: list[str | Path],
    run: Path | None,
    *,
    python: str = PYTHON,
    timeout_s: float = 280,
    cwd: Path | None = None,
    **more: str,
) -> Watched:
    """Run `python command…` to its end, observed if there is a run directory."""
    if run is not None:
        run.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [python, *map(str, command)],
        cwd=cwd,
        env=environment(run, **more),
        capture_output=True,
        text=True,
        timeout=with_load(timeout_s),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Watched(done.returncode, done.stdout, done.stderr, run, {} if run is None else _lines(run))


def observe(
    script: str,
    folder: Path,
    *,
    level: str = "light",
    python: str = PYTHON,
    timeout_s: float = 120,
    **more: str,
) -> Watched:
    """Run the text `script` in `folder`, which has no run yet; it finds rankdeck.

    Level "none" runs it alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "script.py"
    file.write_text(script)
    run = None if level == "none" else folder / "run"
    if run is not None:
        more = {"PYTHONPATH": os.pathsep.join((str(INJECT), PRODUCT)), "RANKDECK_OBSERVE": level, **more}
    return watch([file], run, python=python, timeout_s=timeout_s, cwd=folder, **more)


def _lines(run: Path) -> dict[int, list[events.AnyEvent | None]]:
    files = (run / "events").glob("rank-*.jsonl")
    return {
        int(file.name.split("-")[1].split(".")[0]): events.decode_lines(file.read_bytes()) for file in files
    }
