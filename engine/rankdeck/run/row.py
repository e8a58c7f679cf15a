"""The row of a run in a list, from the ends of its files: a list must not read every event of each run.

The first lines of the supervisor say what was started, the first and last lines of the ranks how far it came.
The command line's `runs` and the app's list both show this; a test holds it to what the fold says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdeck import events
from rankdeck.base import files
from rankdeck.rundir import RunDir, attempt_of, events_from_end, first_events

RESUMABLE = ("stopped", "failed", "lost")


@dataclass(frozen=True)
class RunInfo:
    """What a list shows of a run. None is unknown. Times are Unix seconds; `steps` are those planned."""

    path: Path
    title: str
    outcome: str
    strategy: str = ""
    started: float | None = None
    ended: float | None = None
    num_devices: int | None = None
    device_kind: str = ""
    steps: int | None = None
    reason: str | None = None
    is_script: bool = False
    """A run of a person's own script: it can be run again, not resumed."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_alive(self) -> bool:
        return self.outcome == "running"

    @property
    def is_resumable(self) -> bool:
        """Over before its last step; whether there is a checkpoint, the engine says."""
        return not self.is_script and self.outcome in RESUMABLE


def read_info(run: RunDir) -> RunInfo:
    """The facts of one run, read from its directory; what is missing or damaged stays unknown."""
    end = run.end()
    tables = _tables(run)
    started = list(_started(run))
    first, begun = (started[-1], started[0]) if started else (None, None)
    if begun is not None and begun.attempt < attempt_of(run.config_file.name):
        begun = None  # the supervisor of the attempt that is being resumed has not spoken yet
    strategy = tables.get("strategy")
    use = strategy.get("use", "single") if isinstance(strategy, dict) else ""
    return RunInfo(
        path=run.path,
        title=str(tables.get("name") or run.name),
        outcome=run.outcome(),
        strategy=(begun.strategy or "") if begun else str(use),
        started=first.started if first else _seconds(run.environment().get("started")),
        ended=end.ended if end else None,
        num_devices=len(begun.devices) if begun else None,
        device_kind=begun.devices[0].kind if begun and begun.devices else "",
        steps=begun.steps if begun else None,
        reason=end.reason if end else None,
        is_script="script" in tables,
    )


def row_of(run: RunDir) -> dict[str, Any]:
    """The row of `rankdeck runs --json`."""
    info = read_info(run)
    return {
        "run": run.name,
        "path": str(run.path),
        "outcome": info.outcome,
        "strategy": info.strategy or None,
        "started": info.started,
        "steps": last_step(run),
    }


def last_step(run: RunDir) -> int:
    """The last step that every rank has written and no later attempt trains again; 0 where there is none."""
    least: int | None = None
    for started in _started(run):
        ranks = [
            run.events_folder / f"rank-{rank}.{started.attempt}.jsonl"
            for rank in range(min(started.world_size, len(_files(run, "rank-*", started.attempt))))
        ]
        firsts = [first for path in ranks if (first := _goes_on_after(path)) is not None]
        lasts = [last for path in ranks if (last := _last_step(path)) is not None]
        if firsts and len(lasts) == started.world_size:
            step = min(lasts) if least is None else min(least, *lasts)
            if step > min(firsts):
                return step
        if firsts:
            least = min(firsts) if least is None else min(least, *firsts)
    return 0


def _goes_on_after(path: Path) -> int | None:
    """The step that a rank restored, as it said or as its first steps tell."""
    for event in first_events(path):
        if isinstance(event, events.Restored):
            return event.step
        if isinstance(event, events.Steps):
            return event.first - 1
    return None


def _last_step(path: Path) -> int | None:
    lines = (event for event in events_from_end(path) if isinstance(event, events.Steps))
    return next((steps.first + len(steps.ended) - 1 for steps in lines), None)


def _started(run: RunDir) -> Iterator[events.RunStarted]:
    """What the supervisors announced, the newest attempt first."""
    for path in _files(run, "supervisor", None):
        for event in first_events(path):
            if isinstance(event, events.RunStarted):
                yield event
                break


def _files(run: RunDir, writer: str, attempt: int | None) -> list[Path]:
    """The files of events of a writer, the newest attempt first."""
    paths = run.events_folder.glob(f"{writer}.{'*' if attempt is None else attempt}.jsonl")
    return sorted(paths, key=lambda path: attempt_of(path.name), reverse=True)


def _tables(run: RunDir) -> dict[str, Any]:
    try:
        return files.read_toml(run.config_file)
    except (OSError, ValueError):
        return {}


def _seconds(value: object) -> float | None:
    return value if isinstance(value, float) else None
