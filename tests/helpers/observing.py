"""Runs a script as an observed rank, with nothing around it but the observer, and reads what it wrote."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rankdeck import events
from tests.helpers.script_python import PYTHON
from tests.helpers.tree import CHECKOUT, PRODUCT

INJECT = CHECKOUT / "engine/rankdeck/observer/inject"


class Seen(NamedTuple):
    """What the script printed and left, and what was observed of it: lines by rank, decoded."""

    stdout: str
    stderr: str
    status: int
    ranks: dict[int, list[Any]]

    def of(self, kind: type[events.Event], rank: int = 0) -> list[Any]:
        return [event for event in self.ranks[rank] if isinstance(event, kind)]

    def off(self, rank: int = 0) -> dict[str, str]:
        """The parts that were switched off, and why."""
        parts: dict[str, str] = self.of(events.Observed, rank)[-1].parts
        return parts

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


def observe(
    script: str,
    folder: Path,
    *,
    level: str = "light",
    python: str = PYTHON,
    timeout_s: float = 120,
    **environment: str,
) -> Seen:
    """Run the text `script` in `folder`, which has no run yet. Level "none" runs it alone."""
    run = folder / "run"
    run.mkdir(parents=True)
    file = folder / "script.py"
    file.write_text(script)
    ours: Mapping[str, str] = {}
    if level != "none":
        ours = {
            "PYTHONPATH": os.pathsep.join((str(INJECT), PRODUCT)),
            "RANKDECK_RUN": str(run),
            "RANKDECK_OBSERVE": level,
        }
    done = subprocess.run(
        [python, str(file)],
        cwd=folder,
        env={**os.environ, **ours, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    ranks = {}
    for lines in sorted((run / "events").glob("rank-*.jsonl")):
        ranks[int(lines.name.split("-")[1].split(".")[0])] = events.decode_lines(lines.read_bytes())
    return Seen(done.stdout, done.stderr, done.returncode, ranks)
