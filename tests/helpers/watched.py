"""A person's script in a process of its own, with the observer put on its path as `rankdeck run` does it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rankdeck import events
from tests.helpers.script_python import PYTHON
from tests.helpers.tree import CHECKOUT

INJECT = CHECKOUT / "engine/rankdeck/observer/inject"


@dataclass
class Watched:
    """How it ended, and what it left in its run directory (none where it ran alone)."""

    status: int
    stdout: str
    stderr: str
    run: Path | None

    def ranks(self) -> list[int]:
        assert self.run is not None
        return sorted(
            int(file.name.split("-")[1].split(".")[0]) for file in (self.run / "events").glob("*.jsonl")
        )

    def events(self, rank: int) -> list[events.AnyEvent]:
        """All of a rank's lines; every one is known, and they are numbered without a gap."""
        assert self.run is not None
        lines = events.decode_lines((self.run / f"events/rank-{rank}.0.jsonl").read_bytes())
        found = [line for line in lines if line is not None]
        assert [line.seq for line in found] == list(range(len(lines)))
        return found

    def steps(self, rank: int, column: str) -> list[object]:
        """One column over all steps of a rank; steps without it have None."""
        values: list[object] = []
        last = 0
        for event in self.events(rank):
            if isinstance(event, events.Steps):
                assert event.first == last + 1
                last += len(event.ended)
                values += getattr(event, column) or [None] * len(event.ended)
        return values

    def observed(self, rank: int) -> events.Observed:
        """What was seen of a rank at last."""
        return [event for event in self.events(rank) if isinstance(event, events.Observed)][-1]


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
    **more: str,
) -> Watched:
    """Run `python command…` to its end, observed if there is a run directory."""
    if run is not None:
        run.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [python, *map(str, command)],
        env=environment(run, **more),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Watched(done.returncode, done.stdout, done.stderr, run)
