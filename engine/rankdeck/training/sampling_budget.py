"""Which steps are looked at closely: followed by the memory ledger, or with the phases of their devices.

The ledger follows construction through step 3, because some storages are made there and nowhere else
(optimizer state in step 1, DistributedDataParallel's final buckets in step 2); nothing has to be earned for
them. A step whose batch no followed one covers (memory/batch_shapes.py) is followed whatever it costs, and
later samples wait for it. All other samples are taken every half second, or second, or two, whatever they
may cost: a fiftieth of the time that steps take for the ledger, a two-hundredth for phases.

Costs are CPU time, which others on the machine do not change: on a busy one steps took 0.5 to 1.0 s and
0.50 +- 0.01 s of CPU, of which following was 0.03. Plain steps are taken in between, however cheap following
seems, so that it is compared with steps of the same time of day.

Ranks that wait for each other pay for each other's samples too. No rank asks another: they count the time
of their steps from the same one on and take samples when it passes a multiple of the interval, fast steps
only at multiples of a power of two, so that they mostly take the same ones; and of two that disagree about
the interval the slower one's are also the other's. Read monitor.py next.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

NUM_ALWAYS_TRACKED = 3
ALWAYS_RECORDED_STEPS = (2, 3, 4)
"""Whose phases are always recorded: steps 2 and 3 of any run, and the first one that is not followed."""
TRACKING_SHARE = 0.02
SPANS_SHARE = 0.005
MIN_INTERVAL_S = 0.5
"""Of step time, between two samples."""
MIN_PLAIN_STEPS = 5
MAX_CONSECUTIVE = 3
"""After so many followed steps comes a plain one."""
_HISTORY_LENGTH = 15
_STEPS_PER_INTERVAL = 8


class _SampleSchedule:
    """When samples are due, in the time that steps take; the first one is due half a second after them."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._num_steps = 0
        self._next_s = MIN_INTERVAL_S
        self._stride = 1

    def add(self, step_s: float) -> None:
        self.elapsed_s += step_s
        self._num_steps += 1

    def is_due(self, step: int) -> bool:
        return self.elapsed_s >= self._next_s and step % self._stride == 0

    def schedule_next(self, last_s: float, *, apart_s: float, earliest_s: float = 0.0) -> None:
        """The next sample after one at `last_s` is due at a multiple of an interval that is at least
        `min_interval_s`, and not before `earliest_s`."""
        interval_s = MIN_INTERVAL_S * 2 ** math.ceil(math.log2(max(1.0, apart_s / MIN_INTERVAL_S)))
        self._next_s = interval_s * max(
            math.ceil(earliest_s / interval_s), math.floor(last_s / interval_s) + 1
        )
        num_steps = interval_s * self._num_steps / max(1e-9, self.elapsed_s)
        self._stride = 2 ** max(0, math.floor(math.log2(max(1.0, num_steps / _STEPS_PER_INTERVAL))))


class SamplingBudget:
    """Decides for each step, from what earlier ones took, whether the ledger follows it. Keeps no clock of
    its own.

    `budget` is the share of the run's step time that following may cost; `always` follows every step.
    """

    def __init__(self, *, budget: float = TRACKING_SHARE, always: bool = False) -> None:
        self.always_until_step = NUM_ALWAYS_TRACKED
        """The last of the first steps, all of which are followed; later where a pipe is filled first."""
        self._budget = budget
        self._always = always
        self._schedule = _SampleSchedule()
        self._paid_until_s = 0.0
        """Until here the time of steps is spent on samples."""
        self._num_consecutive = 0
        self._first_tracked_cpu_s = math.inf
        self._tracked_cpu_s: deque[float] = deque(maxlen=_HISTORY_LENGTH)
        self._plain_cpu_s: deque[float] = deque(maxlen=_HISTORY_LENGTH)

    @property
    def tracking_cost_s(self) -> float | None:
        """What following costs per step; None until plain and followed steps are both known."""
        if len(self._plain_cpu_s) < MIN_PLAIN_STEPS:
            return None
        followed_s = (
            statistics.median(self._tracked_cpu_s) if self._tracked_cpu_s else self._first_tracked_cpu_s
        )
        return None if math.isinf(followed_s) else max(0.0, followed_s - statistics.median(self._plain_cpu_s))

    def should_track(self, step: int) -> bool:
        """Whether to follow `step`, counted from 1 in this process (after a resume the first is 1 again)."""
        if self._always or step <= self.always_until_step:
            return True
        return self._num_consecutive < MAX_CONSECUTIVE and self._schedule.is_due(step) and self.can_afford()

    def can_afford(self) -> bool:
        """Whether a followed step more is paid for by now, as one of a new batch has to be."""
        cost_s = self._sample_cost_s()
        return cost_s is not None and self._schedule.elapsed_s >= self._paid_until_s + cost_s

    def record(
        self,
        step: int,
        step_s: float,
        *,
        is_tracked: bool,
        is_typical: bool = True,
        cpu_s: float | None = None,
    ) -> None:
        """Say how long a step took, and how long the CPU was at it, each step once, in order. A step that is
        not `is_typical` was followed for its batch, which takes a time of its own: what following costs is
        not seen from it."""
        cpu_s = step_s if cpu_s is None else cpu_s
        self._num_consecutive = self._num_consecutive + 1 if is_tracked else 0
        if step <= self.always_until_step:
            # Step 1 is slow in any case (first calls), and others may be.
            if is_tracked and step > 1:
                self._first_tracked_cpu_s = min(self._first_tracked_cpu_s, cpu_s)
            return
        started_s = self._schedule.elapsed_s
        self._schedule.add(step_s)
        if not is_tracked:
            self._plain_cpu_s.append(cpu_s)
            if len(self._plain_cpu_s) == MIN_PLAIN_STEPS:
                self._plan_next(0.0)
            return
        if is_typical:
            self._tracked_cpu_s.append(cpu_s)
        self._paid_until_s += self._sample_cost_s() or 0.0
        self._plan_next(started_s)

    def _plan_next(self, last_s: float) -> None:
        cost_s = self._sample_cost_s() or 0.0
        self._schedule.schedule_next(last_s, apart_s=cost_s, earliest_s=self._paid_until_s + cost_s)

    def _sample_cost_s(self) -> float | None:
        """How long steps have to go on to pay for one more sample."""
        extra_s = self.tracking_cost_s
        return None if extra_s is None or not self._budget else extra_s / self._budget


class SpanBudget:
    """Decides for each step whether the phases of its devices are recorded."""

    def __init__(self) -> None:
        self._schedule = _SampleSchedule()
        self._costs_s: deque[float] = deque(maxlen=_HISTORY_LENGTH)

    def should_record(self, step: int, *, is_tracked: bool) -> bool:
        """Whether to record `step`, counted from 1 in this process.

        The ledger slows a step down: such a one is taken only where there may be no other.
        """
        if step <= ALWAYS_RECORDED_STEPS[-1]:
            return step in ALWAYS_RECORDED_STEPS
        return not is_tracked and self._schedule.is_due(step)

    def add_step(self, step: int, step_s: float, *, is_recorded: bool) -> None:
        """Say how long a step took, each step once, in order."""
        if step <= ALWAYS_RECORDED_STEPS[-1]:
            return
        started_s = self._schedule.elapsed_s
        self._schedule.add(step_s)
        if is_recorded:
            cost_s = statistics.median(self._costs_s) if self._costs_s else 0.0
            self._schedule.schedule_next(started_s, apart_s=cost_s / SPANS_SHARE)

    def add_cost(self, cost_s: float) -> None:
        """What a sample has cost."""
        self._costs_s.append(cost_s)
