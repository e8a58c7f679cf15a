"""A run as it was at a moment: the fold of what was told until then, read from its files again.

    event files -> EventReader -> what was told until the moment -> Fold

As of a moment are all events that were written by then, and all steps that had ended by then: a rank writes
its steps a little after they ended. What a later attempt replaced is not replaced yet at a moment before it,
so steps that were trained again are there as they were.

Going on reads on; going back begins at the nearest of a few copies that were kept on the way, or at the
start. Nothing is kept of a run that nobody looks back at. Read run_state.py first: it says what a fold tells.
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
"""Steps are written at most so long after they ended."""
_CHUNK_BYTES = 1 << 17
_MAX_SNAPSHOTS = 6
_MIN_SNAPSHOT_INTERVAL_BYTES = 1 << 20
_COLUMNS = ("loss_sum", "count", "lr", "samples", "step_s", "ended", "grad_norm", "wait_s", "backwards")


@dataclass
class _ReadPosition:
    """How far everything is read. It holds for every moment from `last_event_time` on: what was taken is not
    younger. `pending` is what was read of a file and is younger than what was asked for."""

    state: RunState = field(default_factory=RunState)
    last_event_time: float = float("-inf")
    num_bytes: int = 0
    cursors: dict[str, Cursor] = field(default_factory=dict)
    pending: dict[str, list[AnyEvent]] = field(default_factory=dict)

    def copy(self) -> _ReadPosition:
        cursors = {name: Cursor(one.offset, one.seq) for name, one in self.cursors.items()}
        ahead = {name: list(waiting) for name, waiting in self.pending.items()}
        return _ReadPosition(self.state.copy(), self.last_event_time, self.num_bytes, cursors, ahead)


class RunHistory:
    """A run's past. Not for two threads at once; the folds that it gives away are nobody else's."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._position = _ReadPosition()
        self._snapshots: list[_ReadPosition] = []
        self._snapshot_interval_bytes = _MIN_SNAPSHOT_INTERVAL_BYTES

    def state_at(self, moment: float, is_wanted: Callable[[], bool] = lambda: True) -> RunState | None:
        """What was told until `moment` (Unix seconds); None where it was no longer wanted on the way there,
        which is asked between two chunks of a file."""
        self._restore_nearest(moment)
        place = self._position
        reader = EventReader(self._run, cursors=place.cursors)
        waiting = sorted(reader.file_names(), key=_file_order)
        while waiting:
            for name in list(waiting):
                if not is_wanted():
                    return None
                with pause_gc():
                    if not self._read_chunk(reader, name, moment):
                        waiting.remove(name)
        return place.state.copy()

    def _restore_nearest(self, moment: float) -> None:
        """The place that is nearest before the moment, of those that are known."""
        usable = [one for one in (self._position, *self._snapshots) if one.last_event_time <= moment]
        nearest = max(usable, key=lambda one: one.num_bytes, default=None)
        if nearest is None:
            self._position = _ReadPosition()
        elif nearest is not self._position:
            self._position = nearest.copy()

    def _read_chunk(self, reader: EventReader, name: str, moment: float) -> bool:
        """Take what there is of a file, up to a chunk; whether there may be more."""
        place = self._position
        taken, rest = split_at(place.pending.get(name, ()), moment)
        if taken:
            batch = Batch()
            batch.add(name, taken)
            place.state.apply(batch)
            place.last_event_time = max(place.last_event_time, *(min(event.t, moment) for event in taken))
        place.pending[name] = rest
        if rest and rest[-1].t > moment + _MAX_DELAY_S:
            return False
        begin = place.cursors[name].offset if name in place.cursors else 0
        more = reader.read_file(name, _CHUNK_BYTES)
        rest += more
        read_bytes = place.cursors[name].offset - begin
        place.num_bytes += read_bytes
        self._keep_snapshot()
        return read_bytes > 0

    def _keep_snapshot(self) -> None:
        """A copy now and then, ever further apart, so that they stay few."""
        last = max((one.num_bytes for one in self._snapshots), default=0)
        if self._position.num_bytes - last < self._snapshot_interval_bytes:
            return
        self._snapshots.append(self._position.copy())
        if len(self._snapshots) > _MAX_SNAPSHOTS:
            self._snapshots = self._snapshots[1::2]
            self._snapshot_interval_bytes *= 2


def split_at(waiting: Sequence[AnyEvent], moment: float) -> tuple[list[AnyEvent], list[AnyEvent]]:
    """What of a file's events belongs to the past as of a moment, and what is still to come."""
    taken: list[AnyEvent] = []
    rest: list[AnyEvent] = []
    is_complete = True  # a step never comes before the one before it, whatever a clock says
    for event in waiting:
        if event.t <= moment:
            taken.append(event)
            continue
        ended = event.ended if type(event) is Steps else ()
        num_ended = next((place for place, at in enumerate(ended) if not at <= moment), len(ended))
        if not num_ended or not is_complete or type(event) is not Steps:
            rest.append(event)
            is_complete = is_complete and type(event) is not Steps
            continue
        taken.append(_slice_steps(event, 0, num_ended))
        if num_ended < len(ended):
            is_complete = False
            rest.append(_slice_steps(event, num_ended, len(ended)))
    return taken, rest


def _slice_steps(steps: Steps, begin: int, end: int) -> Steps:
    """The steps from place `begin` to `end` of a line."""
    columns = {name: getattr(steps, name) for name in _COLUMNS}
    cut = {name: column if column is None else column[begin:end] for name, column in columns.items()}
    return msgspec.structs.replace(steps, first=steps.first + begin, **cut)


def _file_order(name: str) -> tuple[int, bool, str]:
    return parse_attempt(name), not name.startswith("supervisor"), name


# When the steps of a run ended: what is between a moment and a step, for whoever looks back.
#
# Steps that were trained again ended twice: each attempt is a stretch of its own, and time tells them
# apart.

_MAX_POINTS = 1 << 16
_MAX_DISPLAY_S = 1.0


class StepInterval(NamedTuple):
    """The steps of one attempt; `started` and `ended` are Unix times of the ends of `first` and `last`.

    `last_kept` is the last of them that no later attempt trained again.
    """

    attempt: int
    started: float
    ended: float
    first: int
    last: int
    last_kept: int


def step_intervals(fold: RunState) -> list[StepInterval]:
    """In the order of the run, without attempts that trained nothing."""
    found = []
    for one in fold.attempts.values():
        began, ended = one.trained_steps.first_x, one.trained_steps.last_x
        if began is None or ended is None:
            continue
        last = int(one.trained_steps.last_y or 0)
        first = int(one.trained_steps.window(began, began, 64).low[0])
        found.append(StepInterval(one.number, began, ended, first, last, min(last, one.last_step or last)))
    return found


def _end_times(fold: RunState) -> Floats:
    """When everything that was trained ended (Unix times); where points are gone, the first of their bins."""
    windows = [
        one.trained_steps.window(one.trained_steps.first_x, one.trained_steps.last_x or 0.0, _MAX_POINTS)
        for one in fold.attempts.values()
        if one.trained_steps.first_x is not None
    ]
    return np.concatenate([np.empty(0), *(window.x for window in windows)])


def offset_step_time(fold: RunState, moment: float, by: int) -> float | None:
    """The moment of the step that is `by` steps behind the one of a moment, or before it; None past the last
    one and before the first."""
    ended = _end_times(fold)
    place = int(np.searchsorted(ended, moment, side="right")) - 1 + by
    return _display_time(ended, place) if 0 <= place < len(ended) else None


def _display_time(ended: Floats, place: int) -> float:
    """Until the next step ends, and at most a second: what is told of a step comes a little after it."""
    at = float(ended[place])
    return (
        at + _MAX_DISPLAY_S
        if place + 1 == len(ended)
        else min(float(ended[place + 1]) - 1e-6, at + _MAX_DISPLAY_S)
    )


def step_at(fold: RunState, moment: float) -> int | None:
    """The last step that had ended by a moment, as far as it is known; None before the first."""
    found = None
    for one in fold.attempts.values():
        window = one.trained_steps.window(moment, moment, 64)
        ended = window.low[window.x <= moment]
        found = int(ended[-1]) if len(ended) else found
    return found
