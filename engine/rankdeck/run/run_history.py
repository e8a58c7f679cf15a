"""Restore a run's state at an earlier time, by reading its files again up to that time.

    event files -> EventReader -> events up to the time -> RunState

The state includes all events written by then and all steps that had ended by then, even if a rank reported
the steps shortly afterwards. Steps that a later attempt trained again are still included at times before that
attempt.

For a later time, reading continues; for an earlier one, it restarts from the nearest of a few snapshots or
the beginning. No snapshot is taken until an earlier state of the run is requested. Read run_state.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from rankdeck.base.garbage import pause_gc
from rankdeck.events import AnyEvent, Steps
from rankdeck.run.batch import Batch
from rankdeck.run.run_state import RunState
from rankdeck.run.series import Floats
from rankdeck.run_dir import Cursor, EventReader, RunDir, parse_attempt

_MAX_DELAY_S = 10.0
"""Maximum delay between the end of a step and the time at which its event is written."""
_CHUNK_BYTES = 1 << 17
_MAX_SNAPSHOTS = 6
_MIN_SNAPSHOT_INTERVAL_BYTES = 1 << 20
_COLUMNS = ("loss_sum", "count", "lr", "samples", "step_s", "ended", "grad_norm", "wait_s", "backwards")


@dataclass
class _ReadPosition:
    """Position reached in each file, and the run state that results from the events before it.

    A read up to some time can start from this position if that time is not before `last_event_time`.
    `pending` contains the events of each file that were read but are later than the requested time.
    """

    state: RunState = field(default_factory=RunState)
    last_event_time: float = float("-inf")
    num_bytes: int = 0
    cursors: dict[str, Cursor] = field(default_factory=dict)
    pending: dict[str, list[AnyEvent]] = field(default_factory=dict)

    def copy(self) -> _ReadPosition:
        cursors = {name: Cursor(cursor.offset, cursor.seq) for name, cursor in self.cursors.items()}
        pending = {name: list(waiting) for name, waiting in self.pending.items()}
        return _ReadPosition(self.state.copy(), self.last_event_time, self.num_bytes, cursors, pending)


class RunHistory:
    """Earlier states of a run. Not thread-safe; the caller owns the returned states."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._position = _ReadPosition()
        self._snapshots: list[_ReadPosition] = []
        self._snapshot_interval_bytes = _MIN_SNAPSHOT_INTERVAL_BYTES

    def state_at(self, time_s: float, is_wanted: Callable[[], bool] = lambda: True) -> RunState | None:
        """Return the state at `time_s` (Unix seconds); None if `is_wanted` returns False while files are
        read.

        `is_wanted` is called between two chunks of a file.
        """
        self._restore_nearest(time_s)
        position = self._position
        reader = EventReader(self._run, cursors=position.cursors)
        waiting = sorted(reader.file_names(), key=_file_order)
        while waiting:
            for name in list(waiting):
                if not is_wanted():
                    return None
                with pause_gc():
                    if not self._read_chunk(reader, name, time_s):
                        waiting.remove(name)
        return position.state.copy()

    def _restore_nearest(self, time: float) -> None:
        """Move to the latest position, current or saved, that includes no event later than `time`."""
        usable = [
            position for position in (self._position, *self._snapshots) if position.last_event_time <= time
        ]
        nearest = max(usable, key=lambda snapshot: snapshot.num_bytes, default=None)
        if nearest is None:
            self._position = _ReadPosition()
        elif nearest is not self._position:
            self._position = nearest.copy()

    def _read_chunk(self, reader: EventReader, name: str, time: float) -> bool:
        """Apply the events up to `time` that were read from a file, then read another chunk of the file.

        Return False if no chunk was read: there are no more lines, or all later events are after `time`.
        """
        position = self._position
        taken, rest = split_at(position.pending.get(name, ()), time)
        if taken:
            batch = Batch()
            batch.add(name, taken)
            position.state.apply(batch)
            position.last_event_time = max(position.last_event_time, *(min(event.t, time) for event in taken))
        position.pending[name] = rest
        # A line that was written this late can contain no step that had ended by `time`.
        if rest and rest[-1].t > time + _MAX_DELAY_S:
            return False
        start_offset = position.cursors[name].offset if name in position.cursors else 0
        more = reader.read_file(name, _CHUNK_BYTES)
        rest += more
        read_bytes = position.cursors[name].offset - start_offset
        position.num_bytes += read_bytes
        self._keep_snapshot()
        return read_bytes > 0

    def _keep_snapshot(self) -> None:
        """Take a snapshot if enough bytes were read since the last snapshot. The required number of bytes
        grows, so that there are only a few snapshots."""
        last = max((snapshot.num_bytes for snapshot in self._snapshots), default=0)
        if self._position.num_bytes - last < self._snapshot_interval_bytes:
            return
        self._snapshots.append(self._position.copy())
        if len(self._snapshots) > _MAX_SNAPSHOTS:
            # Every second snapshot, so that the rest still covers the whole run evenly.
            self._snapshots = self._snapshots[1::2]
            self._snapshot_interval_bytes *= 2


def split_at(waiting: Sequence[AnyEvent], time_s: float) -> tuple[list[AnyEvent], list[AnyEvent]]:
    """Split a file's events into those up to `time_s` and those after it."""
    taken: list[AnyEvent] = []
    rest: list[AnyEvent] = []
    is_complete = True  # steps stay in order, whatever the clock says
    for event in waiting:
        if event.t <= time_s:
            taken.append(event)
            continue
        ended = event.ended if type(event) is Steps else ()
        num_ended = next((index for index, at in enumerate(ended) if not at <= time_s), len(ended))
        if not num_ended or not is_complete or type(event) is not Steps:
            rest.append(event)
            is_complete = is_complete and type(event) is not Steps
            continue
        taken.append(_slice_steps(event, 0, num_ended))
        if num_ended < len(ended):
            is_complete = False
            rest.append(_slice_steps(event, num_ended, len(ended)))
    return taken, rest


def _slice_steps(steps: Steps, start: int, end: int) -> Steps:
    """Return the steps from index `start` up to `end` of one Steps event."""
    columns = {name: getattr(steps, name) for name in _COLUMNS}
    cut = {name: column if column is None else column[start:end] for name, column in columns.items()}
    return msgspec.structs.replace(steps, first=steps.first + start, **cut)


def _file_order(name: str) -> tuple[int, bool, str]:
    # An attempt's supervisor first, because its start event decides how the ranks' steps are joined.
    return parse_attempt(name), not name.startswith("supervisor"), name


# End times of a run's steps, to convert between times and steps in time travel.
#
# Steps that were trained again ended twice: each attempt has its own interval, and their times distinguish
# them.

_MAX_POINTS = 1 << 16
_MAX_DISPLAY_S = 1.0


class StepInterval(NamedTuple):
    """The steps `first` to `last` of one attempt; `started` and `ended` are the end times of these two steps
    (Unix times).

    `last_kept` is the last step that no later attempt trained again.
    """

    attempt: int
    started: float
    ended: float
    first: int
    last: int
    last_kept: int


def step_intervals(state: RunState) -> list[StepInterval]:
    """Return the step interval of each attempt that trained a step, in the order of the attempts."""
    intervals = []
    for attempt in state.attempts.values():
        started, ended = attempt.trained_steps.first_x, attempt.trained_steps.last_x
        if started is None or ended is None:
            continue
        last = int(attempt.trained_steps.last_y or 0)
        first = int(attempt.trained_steps.window(started, started, 64).low[0])
        intervals.append(
            StepInterval(attempt.number, started, ended, first, last, min(last, attempt.last_step or last))
        )
    return intervals


def _end_times(state: RunState) -> Floats:
    """Return the end times of trained steps (Unix times); older steps are binned, with one time for each
    bin."""
    windows = [
        attempt.trained_steps.window(
            attempt.trained_steps.first_x, attempt.trained_steps.last_x or 0.0, _MAX_POINTS
        )
        for attempt in state.attempts.values()
        if attempt.trained_steps.first_x is not None
    ]
    return np.concatenate([np.empty(0), *(window.x for window in windows)])


def offset_step_time(state: RunState, time_s: float, by: int) -> float | None:
    """Return the time of the step that is `by` steps after the step at `time_s`; None if there is none."""
    ended = _end_times(state)
    index = int(np.searchsorted(ended, time_s, side="right")) - 1 + by
    return _display_time(ended, index) if 0 <= index < len(ended) else None


def _display_time(ended: Floats, index: int) -> float:
    """Return a time at which the step at `index` of `ended` (end times) is the last step that has ended.

    Ranks report a step only after its end, so the time is up to `_MAX_DISPLAY_S` after the step's end.
    """
    at = float(ended[index])
    return (
        at + _MAX_DISPLAY_S
        if index + 1 == len(ended)
        else min(float(ended[index + 1]) - 1e-6, at + _MAX_DISPLAY_S)
    )


def step_at(state: RunState, time_s: float) -> int | None:
    """Return the last known step that had ended by `time_s`; None if no step had ended by then."""
    step = None
    for attempt in state.attempts.values():
        window = attempt.trained_steps.window(time_s, time_s, 64)
        ended = window.low[window.x <= time_s]
        step = int(ended[-1]) if len(ended) else step
    return step
