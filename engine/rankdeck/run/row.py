"""Read a run's row in a list from the first and last lines of its files: a list must not read every event.

The supervisor's first lines describe the start of the run; the first and last lines of the ranks' files
describe its progress. `rankdeck runs` and the app's list both show this row; a test compares it with the run
state. Metrics that need all events of a run (`RunMetrics`) are added later from the run's state
(row_metrics.py). row_index.py stores the row and the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.parsing import TomlTable
from rankdeck.base.phrases import tr_noop
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.run.imbalance import Imbalance
from rankdeck.run.run_intervals import RunInterval
from rankdeck.run_dir import (
    ClockOffsets,
    Labels,
    RunDir,
    events_from_end,
    first_events,
    labels_stamp,
    parse_attempt,
    read_labels,
)

RESUMABLE = ("stopped", "failed", "lost")
EVENTS_LOST_TEXT = tr_noop("completed, events lost")


def outcome_label(outcome: str, reason: str | None) -> str:
    """Return a run's outcome for display; a completed run with a `reason` has lost events."""
    return EVENTS_LOST_TEXT if outcome == "completed" and reason else outcome


@dataclass(frozen=True)
class RunMetrics:
    """Metrics from a run's state, as `rankdeck show` displays them. `peak_bytes` is the peak of the fullest
    device."""

    loss: float | None = None
    held_out: float | None = None
    peak_bytes: int | None = None
    imbalance: Imbalance | None = None
    samples_per_s: float | None = None
    bubble: float | None = None


@dataclass(frozen=True)
class RunInfo:
    """A run's row in a list. None means unknown; times are Unix seconds.

    `intervals` are the periods in which the run was active, `steps` is the number of planned steps, and
    `step` is the last completed step (0: none). `has_checkpoint` is true for every run on several hosts: each
    host checks for itself which checkpoints it has. `metrics` is None until the run's state has been read.

    `strategy` of a user script is its observed parallel wrapper. The row of a race (`race`, made by
    race_row.py) contains the rows of its entries, whose `entry_of` is the path of the race.
    """

    path: Path
    title: str
    outcome: str
    strategy: str = ""
    started: float | None = None
    intervals: tuple[RunInterval, ...] = ()
    num_devices: int | None = None
    device_kind: str = ""
    steps: int | None = None
    reason: str | None = None
    is_script: bool = False
    labels: Labels = field(default_factory=Labels)
    labels_stamp: int | None = None
    step: int = 0
    has_checkpoint: bool = False
    metrics: RunMetrics | None = None
    race: RaceFacts | None = None
    entry_of: Path | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_alive(self) -> bool:
        return self.outcome == "running"

    @property
    def state(self) -> str:
        """The outcome as shown in lists."""
        return outcome_label(self.outcome, self.reason)

    @property
    def is_resumable(self) -> bool:
        """Whether the run ended before its last step and has a checkpoint.

        Races and their entries are not resumable.
        """
        is_whole = self.race is None and self.entry_of is None
        return self.outcome in RESUMABLE and is_whole and self.has_checkpoint


@dataclass(frozen=True)
class RaceFacts:
    """Fields of a row that exist only for a race.

    `entries` are rows in the order in which the entries run. `num_done` of `num_entries` entries are over;
    neither counts the entry that repeats the first. `fastest` is the label of the fastest entry, None if
    `is_inconclusive`; `losses` is the worst verdict on losses, None if none were compared.
    """

    entries: tuple[RunInfo, ...] = ()
    num_entries: int = 0
    num_done: int = 0
    fastest: str | None = None
    is_inconclusive: bool = False
    losses: str | None = None

    @property
    def steps(self) -> int:
        """Planned steps of each entry."""
        return (self.entries[0].steps or 0) if self.entries else 0


def read_info(run: RunDir) -> RunInfo:
    """Read the row of one run from its directory; missing or damaged values remain unknown."""
    end = run.exit_record()
    started = list(_read_starts(run))
    first, newest_start = (started[-1], started[0]) if started else (None, None)
    if newest_start is not None and newest_start.attempt < parse_attempt(run.config_file.name):
        newest_start = None  # the resumed attempt's supervisor has written nothing yet
    tables = files.read_toml_or_empty(run.config_file) if newest_start is None else {}
    # The stamp before the labels: if they change in between, the stamp is outdated and the row is read again.
    stamp, labels, outcome = labels_stamp(run.path), read_labels(run.path), run.outcome()
    return RunInfo(
        path=run.path,
        title=labels.name or run.attempt_title,
        outcome=outcome,
        strategy=_read_strategy(run, newest_start, tables),
        started=run.to_local_time(first.started) if first else _to_seconds(run.environment().get("started")),
        intervals=tuple(
            _read_intervals(run, started, is_alive=newest_start is not None and outcome == "running")
        ),
        num_devices=len(newest_start.devices) if newest_start else None,
        device_kind=newest_start.devices[0].kind if newest_start and newest_start.devices else "",
        steps=newest_start.steps if newest_start else None,
        reason=end.reason if end else None,
        is_script=newest_start.source == events.SCRIPT if newest_start else "script" in tables,
        labels=labels,
        labels_stamp=stamp,
        step=last_step(run),
        has_checkpoint=_has_checkpoint(run, newest_start),
    )


def _has_checkpoint(run: RunDir, newest_start: events.RunStarted | None) -> bool:
    """Check whether a run has a checkpoint; files that a script stores in the run directory do not count."""
    if newest_start is not None and newest_start.source == events.SCRIPT:
        return False
    if newest_start is not None and any(device.host for device in newest_start.devices):
        return True
    return bool(list_checkpoints(run.checkpoints_folder))


def _read_intervals(
    run: RunDir, started: list[events.RunStarted], *, is_alive: bool
) -> Iterator[RunInterval]:
    """Yield the interval of each attempt, the oldest first, with the same result as attempt.run_intervals.

    If `is_alive` is true, the newest attempt counts as running unless it has reported its end.
    """
    clocks = ClockOffsets(run)
    clocks.refresh()
    for start in reversed(started):
        path = run.events_folder / f"supervisor.{start.attempt}.jsonl"
        last, start_time = next(events_from_end(path), start), run.to_local_time(start.started)
        if isinstance(last, events.RunEnded):
            yield RunInterval(start_time, run.to_local_time(last.t))
        elif is_alive and start is started[0]:
            yield RunInterval(start_time)
        else:
            paths = _files(run, "*", start.attempt)
            lasts = ((path.name, event.t) for path in paths for event in islice(events_from_end(path), 1))
            event_times = (clocks.correct(name, t) for name, t in lasts)
            yield RunInterval(start_time, max(event_times, default=run.to_local_time(start.t)))


def _read_strategy(run: RunDir, newest_start: events.RunStarted | None, tables: TomlTable) -> str:
    if newest_start is not None:
        return newest_start.strategy or _read_wrapper(run, newest_start.attempt) or ""
    strategy = tables.get("strategy")
    return str(strategy.get("use", "single")) if isinstance(strategy, dict) else ""


def _read_wrapper(run: RunDir, attempt: int) -> str | None:
    """Return the first parallel wrapper that the lowest rank of a script reported."""
    # One rank is enough: a list must not open the files of all ranks.
    for path in _rank_files(run, attempt)[:1]:
        for event in first_events(path):
            if isinstance(event, events.Observed) and event.wrapper is not None:
                return event.wrapper
    return None


def row_json(info: RunInfo) -> dict[str, object]:
    """Return a row for `rankdeck runs --json`; a script's row has two extra keys, and a race's row four."""
    race = info.race
    row = {
        "run": info.name,
        "path": str(info.path),
        "title": info.title,
        "tags": list(info.labels.tags),
        "archived": info.labels.is_archived,
        "outcome": info.outcome,
    }
    if race is None:
        row["reason"] = info.reason
    row |= {
        "strategy": info.strategy or None,
        "started": info.started,
        "steps": info.step if race is None else race.steps,
        "steps_planned": info.steps,
    }
    if info.is_script:
        row |= {"strategy": None, "run_source": events.SCRIPT, "wrapper": info.strategy or None}
    if race is not None:
        row |= {
            "entries": race.num_entries if race.entries else None,
            "entries_done": race.num_done,
            "fastest": race.fastest,
            "losses": race.losses,
        }
    return row


def last_step(run: RunDir) -> int:
    """Return the last step that all ranks have reported and that no later attempt trains again; 0 if there
    is none."""
    limit: int | None = None
    for started in _read_starts(run):
        if started.source == events.SCRIPT:
            step = _last_step_of_script(run, started.attempt)
            if step:
                return step
            continue
        # Limited by the number of files, because a damaged world_size may be huge.
        ranks = [
            run.events_folder / f"rank-{rank}.{started.attempt}.jsonl"
            for rank in range(min(started.world_size, len(_files(run, "rank-*", started.attempt))))
        ]
        firsts = [first for path in ranks if (first := _resumed_after(path)) is not None]
        lasts = [last for path in ranks if (last := _last_step(path)) is not None]
        if firsts and len(lasts) == started.world_size:
            step = min(lasts) if limit is None else min(limit, *lasts)
            if step > min(firsts):
                return step
        if firsts:
            limit = min(firsts) if limit is None else min(limit, *firsts)
    return 0


def _last_step_of_script(run: RunDir, attempt: int) -> int:
    """Return the last step of the leading rank: the lowest rank that has at least half as many steps as the
    rank with the most steps."""
    lasts = [_last_step(path) or 0 for path in _rank_files(run, attempt)]
    # The same rule as for the leading rank in script_steps.py.
    return next((last for last in lasts if 2 * last >= max(lasts)), 0)


def _rank_files(run: RunDir, attempt: int) -> list[Path]:
    """Return the event files of an attempt's ranks, the lowest rank first."""
    paths = _files(run, "rank-*", attempt)
    # By length first, so that rank-10 comes after rank-9.
    return sorted(paths, key=lambda path: (len(path.name), path.name))


def _resumed_after(path: Path) -> int | None:
    """Return the step after which a rank continues, as reported or as implied by its first steps."""
    for event in first_events(path):
        if isinstance(event, events.Restored):
            return event.step
        if isinstance(event, events.Steps):
            return event.first - 1
    return None


def _last_step(path: Path) -> int | None:
    lines = (event for event in events_from_end(path) if isinstance(event, events.Steps))
    return next((steps.first + len(steps.ended) - 1 for steps in lines), None)


def _read_starts(run: RunDir) -> Iterator[events.RunStarted]:
    """Yield the supervisors' start events, the newest attempt first."""
    for path in _files(run, "supervisor", None):
        for event in first_events(path):
            if isinstance(event, events.RunStarted):
                yield event
                break


def _files(run: RunDir, writer: str, attempt: int | None) -> list[Path]:
    """Return a writer's event files, the newest attempt first."""
    paths = run.events_folder.glob(f"{writer}.{'*' if attempt is None else attempt}.jsonl")
    return sorted(paths, key=lambda path: parse_attempt(path.name), reverse=True)


def _to_seconds(value: object) -> float | None:
    return value if isinstance(value, float) else None
