"""Which steps the ledger follows: the first ones, those of larger batches, then as many as a budget allows.

Construction through step 3 is always followed, because some storages are made there and nowhere else
(optimizer state in step 1, DistributedDataParallel's final buckets in step 2). Later samples are paid from
a budget: what a followed step costs more than a plain one, as measured so far, may not exceed a few
thousandths of the time that steps have taken. A step whose batch no followed one covers (batch_shapes.py) is
followed whatever it costs, and later samples wait for it.

Ranks that wait for each other pay for each other's samples too. No rank asks another: samples are taken at
multiples of a power of two, so that ranks of about the same pace mostly take the same ones.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

NUM_ALWAYS = 3
DEFAULT_BUDGET = 0.003
MIN_INTERVAL_S = 0.5
"""Of step time, between two samples."""
NUM_PLAIN_STEPS_FIRST = 5
_NUM_KEPT = 15


class SamplingBudget:
    """Decides for each step, from the durations of earlier ones, whether to follow it. Keeps no clock of
    its own.

    `budget` is the share of the run's step time that following may cost; `always` follows every step.
    """

    def __init__(self, *, budget: float = DEFAULT_BUDGET, always: bool = False) -> None:
        self.always_through = NUM_ALWAYS
        """The last of the first steps, all of which are followed; later where a pipe is filled first."""
        self.spent_s = 0.0
        """What following has cost so far, as estimated from what is known."""
        self._budget = budget
        self._always = always
        self._elapsed_s = 0.0
        self._next_sample_s = math.inf
        self._stride = 1
        self._followed_s: deque[float] = deque(maxlen=_NUM_KEPT)
        self._plain_s: deque[float] = deque(maxlen=_NUM_KEPT)
        self._early_s: list[float] = []

    @property
    def extra_s(self) -> float | None:
        """What following costs per step; None until plain and followed steps are both known."""
        followed = self._followed_s or self._early_s[1:]
        if len(self._plain_s) < NUM_PLAIN_STEPS_FIRST or not followed:
            return None
        return max(0.0, statistics.median(followed) - statistics.median(self._plain_s))

    def should_follow(self, step: int) -> bool:
        """Whether to follow `step`, counted from 1 in this process (after a resume the first is 1 again)."""
        if self._always or step <= self.always_through:
            return True
        return self._elapsed_s >= self._next_sample_s and step % self._stride == 0

    def can_pay(self) -> bool:
        """Whether a followed step more is paid for by now, as one of a new batch has to be."""
        extra_s = self.extra_s
        return extra_s is not None and self.spent_s + extra_s <= self._budget * self._elapsed_s

    def record(self, step: int, step_s: float, *, followed: bool, usual: bool = True) -> None:
        """Say how long a step took, each step once, in order. A step that is not `usual` was followed for its
        batch, which takes a time of its own: what following costs is not seen from it."""
        started_s = self._elapsed_s
        self._elapsed_s += step_s
        if not followed:
            self._plain_s.append(step_s)
            if len(self._plain_s) == NUM_PLAIN_STEPS_FIRST and self._early_s:
                # Step 1 is slow in any case (first calls): each early step is charged like the last one.
                extra_s = max(0.0, self._early_s[-1] - statistics.median(self._plain_s))
                self.spent_s += len(self._early_s) * extra_s
                self._plan_next(self._elapsed_s - sum(self._plain_s))
            return
        if step <= self.always_through:
            self._early_s.append(step_s)
            return
        if usual:
            self._followed_s.append(step_s)
        self.spent_s += self.extra_s or 0.0
        self._plan_next(started_s)

    def _plan_next(self, last_sample_s: float) -> None:
        """When the next sample is both due and paid for, in seconds of step time."""
        if not self._budget or not self._plain_s:
            return
        paid_s = self.spent_s + (self.extra_s or 0.0)
        self._next_sample_s = max(last_sample_s + MIN_INTERVAL_S, paid_s / self._budget)
        num_steps = (self._next_sample_s - self._elapsed_s) / max(1e-9, statistics.median(self._plain_s))
        self._stride = 2 ** max(0, math.floor(math.log2(max(1.0, num_steps / 2))))
