"""Choose the steps to sample: those tracked by the memory ledger, and those whose device phases are recorded.

The ledger tracks from model construction through step 3, because some storages are created only then
(optimizer state in step 1, DistributedDataParallel's final buckets in step 2); these steps need no budget. A
step whose batch no tracked batch covers (memory/batch_shapes.py) is tracked at any cost, and later samples
wait until the budget has made up for it. All other samples are taken at intervals of 0.5, 1, 2, 4, ... s of
step time, so that they cost a fiftieth of step time for the ledger, and a two-hundredth for phases.

Costs are measured in CPU time, which other load on the machine does not change: on a busy machine, steps took
0.5 to 1.0 s of wall time, but always 0.50 +- 0.01 s of CPU time, 0.03 s of it for tracking. Untracked steps
are always interspersed, however cheap tracking seems, so that its cost is measured against recent steps.

Ranks that wait for each other also pay for each other's samples. They need no messages to sample the same
steps: each rank adds up the time of its steps, starting at the same step, and samples when the sum passes a
multiple of the interval; if steps are fast, it samples only at step numbers that are multiples of a power of
two. If two ranks disagree about the interval, the rank with the shorter interval also samples at the other
rank's steps. Read monitor.py next.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

NUM_ALWAYS_TRACKED = 3
ALWAYS_RECORDED_STEPS = (2, 3, 4)
"""Steps whose phases are always recorded: steps 2 and 3 of any run, and the first untracked step."""
TRACKING_SHARE = 0.02
SPANS_SHARE = 0.005
MIN_INTERVAL_S = 0.5
"""Minimum step time between two samples."""
MIN_PLAIN_STEPS = 5
MAX_CONSECUTIVE = 3
"""Maximum number of tracked steps in a row; the next step is not tracked."""
_HISTORY_LENGTH = 15
_STEPS_PER_INTERVAL = 8


class _SampleSchedule:
    """Schedule of samples, measured in step time; the first sample is due after half a second of step
    time."""

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
        """Schedule the sample that follows the sample at `last_s`.

        The interval is MIN_INTERVAL_S times the smallest power of two that makes it at least `apart_s`. The
        new sample is due at the first multiple of the interval after `last_s` that is not before
        `earliest_s`.
        """
        # Powers of two, so that the samples of a longer interval are also due on ranks with a shorter one.
        interval_s = MIN_INTERVAL_S * 2 ** math.ceil(math.log2(max(1.0, apart_s / MIN_INTERVAL_S)))
        self._next_s = interval_s * max(
            math.ceil(earliest_s / interval_s), math.floor(last_s / interval_s) + 1
        )
        num_steps = interval_s * self._num_steps / max(1e-9, self.elapsed_s)
        # Ranks measure slightly different times: with fast steps, a stride makes most samples fall on the
        # same steps.
        self._stride = 2 ** max(0, math.floor(math.log2(max(1.0, num_steps / _STEPS_PER_INTERVAL))))


class SamplingBudget:
    """Budget that decides, from earlier steps' times, whether the ledger tracks a step. It never reads a
    clock itself.

    `budget` is the share of the run's step time that tracking is allowed to cost; if `always` is True, every
    step is tracked.
    """

    def __init__(self, *, budget: float = TRACKING_SHARE, always: bool = False) -> None:
        self.always_until_step = NUM_ALWAYS_TRACKED
        """Step up to which every step is tracked; higher if a pipeline has to fill first."""
        self._budget = budget
        self._always = always
        self._schedule = _SampleSchedule()
        self._paid_until_s = 0.0
        """Total step time that is needed to pay for all past samples."""
        self._num_consecutive = 0
        self._first_tracked_cpu_s = math.inf
        self._tracked_cpu_s: deque[float] = deque(maxlen=_HISTORY_LENGTH)
        self._plain_cpu_s: deque[float] = deque(maxlen=_HISTORY_LENGTH)

    @property
    def tracking_cost_s(self) -> float | None:
        """Cost of tracking per step; None until both untracked and tracked steps have been recorded."""
        if len(self._plain_cpu_s) < MIN_PLAIN_STEPS:
            return None
        followed_s = (
            statistics.median(self._tracked_cpu_s) if self._tracked_cpu_s else self._first_tracked_cpu_s
        )
        return None if math.isinf(followed_s) else max(0.0, followed_s - statistics.median(self._plain_cpu_s))

    def should_track(self, step: int) -> bool:
        """Check whether to track `step`, counted from 1 in this process (even after a resume)."""
        if self._always or step <= self.always_until_step:
            return True
        return self._num_consecutive < MAX_CONSECUTIVE and self._schedule.is_due(step) and self.can_afford()

    def can_afford(self) -> bool:
        """Check whether the budget covers one more tracked step, such as a step whose batch has new
        shapes."""
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
        """Record a step's wall and CPU time. Call it once for each step, in step order.

        `is_typical` is False for a step that was tracked because of its batch. Such a batch takes more or
        less time than other batches, so the step does not show the cost of tracking.
        """
        cpu_s = step_s if cpu_s is None else cpu_s
        self._num_consecutive = self._num_consecutive + 1 if is_tracked else 0
        if step <= self.always_until_step:
            # Step 1 is always slow (first calls), and other first steps may be.
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
        """Return the step time that must pass to pay for one more sample."""
        extra_s = self.tracking_cost_s
        return None if extra_s is None or not self._budget else extra_s / self._budget


class SpanBudget:
    """Budget that decides for each step whether to record the phases of the devices."""

    def __init__(self) -> None:
        self._schedule = _SampleSchedule()
        self._costs_s: deque[float] = deque(maxlen=_HISTORY_LENGTH)

    def should_record(self, step: int, *, is_tracked: bool) -> bool:
        """Check whether to record `step`, counted from 1 in this process.

        The ledger slows a step down, so a tracked step is recorded only if it is one of the first steps.
        """
        if step <= ALWAYS_RECORDED_STEPS[-1]:
            return step in ALWAYS_RECORDED_STEPS
        return not is_tracked and self._schedule.is_due(step)

    def add_step(self, step: int, step_s: float, *, is_recorded: bool) -> None:
        """Record a step's time. Call it once for each step, in step order."""
        if step <= ALWAYS_RECORDED_STEPS[-1]:
            return
        started_s = self._schedule.elapsed_s
        self._schedule.add(step_s)
        if is_recorded:
            cost_s = statistics.median(self._costs_s) if self._costs_s else 0.0
            self._schedule.schedule_next(started_s, apart_s=cost_s / SPANS_SHARE)

    def add_cost(self, cost_s: float) -> None:
        """Record the cost of a sample."""
        self._costs_s.append(cost_s)
