"""The row of a run in a list, from the ends of its files: a list must not read every event of each run.

The first lines of the supervisor say what was started, the first and last lines of the ranks how far it came.
The command line's `runs` and the app's list both show this; a test holds it to what the fold says. Figures
that only all of a run's events tell (`RunMetrics`) are the fold's, and come later (row_metrics.py).
row_index.py keeps both.
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
    """The outcome in words. A run that completed has a reason where events of its could not be written."""
    return EVENTS_LOST_TEXT if outcome == "completed" and reason else outcome


@dataclass(frozen=True)
class RunMetrics:
    """What the fold of a run says, as `show` does. `peak_bytes` is that of the fullest device."""

    loss: float | None = None
    held_out: float | None = None
    peak_bytes: int | None = None
    imbalance: Imbalance | None = None
    samples_per_s: float | None = None
    bubble: float | None = None


@dataclass(frozen=True)
class RunInfo:
    """What a list shows of a run. None is unknown. Times are Unix seconds, `intervals` when it ran; `steps`
    are those planned, `step` is the last one done (0: none). `has_checkpoint` is true of every run over
    several hosts: what they have, they find out. `metrics` is None as long as nobody has folded it.

    `strategy` of a person's own script is the parallel wrapper that it was seen to use. The row
    of a race (`race`, made by race_row.py) has those of its entries, which say of what race they are
    (`entry_of`).
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
        """The outcome as lists say it."""
        return outcome_label(self.outcome, self.reason)

    @property
    def is_resumable(self) -> bool:
        """Over before its last step, with a checkpoint to continue from. No race is, and no entry of one."""
        is_whole = self.race is None and self.entry_of is None
        return self.outcome in RESUMABLE and is_whole and self.has_checkpoint


@dataclass(frozen=True)
class RaceFacts:
    """What a list shows of a race besides: its entries as rows, in the order in which they run, and how many
    of them are over (`num_done` of `num_entries`, the repetition left out). `fastest` is the label of the
    first place, None also where `is_inconclusive`; `losses` the worst verdict on losses, None where none were
    compared.
    """

    entries: tuple[RunInfo, ...] = ()
    num_entries: int = 0
    num_done: int = 0
    fastest: str | None = None
    is_inconclusive: bool = False
    losses: str | None = None

    @property
    def steps(self) -> int:
        """Those of each entry."""
        return (self.entries[0].steps or 0) if self.entries else 0


def read_info(run: RunDir) -> RunInfo:
    """The facts of one run, read from its directory; what is missing or damaged stays unknown."""
    end = run.exit_record()
    started = list(_read_starts(run))
    first, begun = (started[-1], started[0]) if started else (None, None)
    if begun is not None and begun.attempt < parse_attempt(run.config_file.name):
        begun = None  # the supervisor of the attempt that is being resumed has not spoken yet
    tables = files.read_toml_or_empty(run.config_file) if begun is None else {}
    stamp, labels, outcome = labels_stamp(run.path), read_labels(run.path), run.outcome()
    return RunInfo(
        path=run.path,
        title=labels.name or run.attempt_title,
        outcome=outcome,
        strategy=_read_strategy(run, begun, tables),
        started=run.to_local_time(first.started) if first else _to_seconds(run.environment().get("started")),
        intervals=tuple(_read_intervals(run, started, is_alive=begun is not None and outcome == "running")),
        num_devices=len(begun.devices) if begun else None,
        device_kind=begun.devices[0].kind if begun and begun.devices else "",
        steps=begun.steps if begun else None,
        reason=end.reason if end else None,
        is_script=begun.source == events.SCRIPT if begun else "script" in tables,
        labels=labels,
        labels_stamp=stamp,
        step=last_step(run),
        has_checkpoint=_has_checkpoint(run, begun),
    )


def _has_checkpoint(run: RunDir, begun: events.RunStarted | None) -> bool:
    """What a script keeps in the run's folder is none of ours."""
    if begun is not None and begun.source == events.SCRIPT:
        return False
    if begun is not None and any(device.host for device in begun.devices):
        return True
    return bool(list_checkpoints(run.checkpoints_folder))


def _read_intervals(
    run: RunDir, started: list[events.RunStarted], *, is_alive: bool
) -> Iterator[RunInterval]:
    """Of each attempt, the first one first, as attempt.spells_of tells them; `is_alive`: the newest does,
    unless it has told its end."""
    clocks = ClockOffsets(run)
    clocks.refresh()
    for one in reversed(started):
        path = run.events_folder / f"supervisor.{one.attempt}.jsonl"
        last, began = next(events_from_end(path), one), run.to_local_time(one.started)
        if isinstance(last, events.RunEnded):
            yield RunInterval(began, run.to_local_time(last.t))
        elif is_alive and one is started[0]:
            yield RunInterval(began)
        else:
            paths = _files(run, "*", one.attempt)
            lasts = ((path.name, event.t) for path in paths for event in islice(events_from_end(path), 1))
            told = (clocks.correct(name, t) for name, t in lasts)
            yield RunInterval(began, max(told, default=run.to_local_time(one.t)))


def _read_strategy(run: RunDir, begun: events.RunStarted | None, tables: TomlTable) -> str:
    if begun is not None:
        return begun.strategy or _read_wrapper(run, begun.attempt) or ""
    strategy = tables.get("strategy")
    return str(strategy.get("use", "single")) if isinstance(strategy, dict) else ""


def _read_wrapper(run: RunDir, attempt: int) -> str | None:
    """The parallel wrapper that a rank of a script was seen to use, as it said first."""
    for path in _rank_files(run, attempt)[:1]:
        for event in first_events(path):
            if isinstance(event, events.Observed) and event.wrapper is not None:
                return event.wrapper
    return None


def row_json(info: RunInfo) -> dict[str, object]:
    """The row of `rankdeck runs --json`. One of a script has two keys more, one of a race four."""
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
    """The last step that every rank has written and no later attempt trains again; 0 where there is none."""
    least: int | None = None
    for started in _read_starts(run):
        if started.source == events.SCRIPT:
            step = _last_step_of_script(run, started.attempt)
            if step:
                return step
            continue
        ranks = [
            run.events_folder / f"rank-{rank}.{started.attempt}.jsonl"
            for rank in range(min(started.world_size, len(_files(run, "rank-*", started.attempt))))
        ]
        firsts = [first for path in ranks if (first := _resumed_after(path)) is not None]
        lasts = [last for path in ranks if (last := _last_step(path)) is not None]
        if firsts and len(lasts) == started.world_size:
            step = min(lasts) if least is None else min(least, *lasts)
            if step > min(firsts):
                return step
        if firsts:
            least = min(firsts) if least is None else min(least, *firsts)
    return 0


def _last_step_of_script(run: RunDir, attempt: int) -> int:
    """That of the lowest rank that has at least half the steps of the one with the most."""
    lasts = [_last_step(path) or 0 for path in _rank_files(run, attempt)]
    return next((last for last in lasts if 2 * last >= max(lasts)), 0)


def _rank_files(run: RunDir, attempt: int) -> list[Path]:
    """The ranks' files of events of an attempt, the lowest rank first."""
    paths = _files(run, "rank-*", attempt)
    return sorted(paths, key=lambda path: (len(path.name), path.name))


def _resumed_after(path: Path) -> int | None:
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


def _read_starts(run: RunDir) -> Iterator[events.RunStarted]:
    """What the supervisors announced, the newest attempt first."""
    for path in _files(run, "supervisor", None):
        for event in first_events(path):
            if isinstance(event, events.RunStarted):
                yield event
                break


def _files(run: RunDir, writer: str, attempt: int | None) -> list[Path]:
    """The files of events of a writer, the newest attempt first."""
    paths = run.events_folder.glob(f"{writer}.{'*' if attempt is None else attempt}.jsonl")
    return sorted(paths, key=lambda path: parse_attempt(path.name), reverse=True)


def _to_seconds(value: object) -> float | None:
    return value if isinstance(value, float) else None
