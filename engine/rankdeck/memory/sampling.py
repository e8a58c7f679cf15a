"""Which steps the ledger follows: the first ones, then as many as a budget of the run's time allows.

Construction through step 3 is always followed, because some storages are made there and nowhere else
(optimizer state in step 1, DistributedDataParallel's final buckets in step 2). Later samples are paid from
a budget: what a followed step costs more than a plain one, as measured so far, may not exceed a few per
cent of the time that steps have taken.
"""

from __future__ import annotations

import statistics
from collections import deque

NUM_ALWAYS = 3
DEFAULT_BUDGET = 0.02
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
        self._last_sample_s = 0.0
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
        if self._elapsed_s - self._last_sample_s < MIN_INTERVAL_S:
            return False
        extra_s = self.extra_s
        return extra_s is not None and self.spent_s + extra_s <= self._budget * self._elapsed_s

    def record(self, step: int, step_s: float, *, followed: bool) -> None:
        """Say how long a step took, each step once, in order."""
        started_s = self._elapsed_s
        self._elapsed_s += step_s
        if not followed:
            self._plain_s.append(step_s)
            if len(self._plain_s) == NUM_PLAIN_STEPS_FIRST and self._early_s:
                # Step 1 is slow in any case (first calls): each early step is charged like the last one.
                extra_s = max(0.0, self._early_s[-1] - statistics.median(self._plain_s))
                self.spent_s += len(self._early_s) * extra_s
            return
        self._last_sample_s = started_s
        if step <= self.always_through:
            self._early_s.append(step_s)
            return
        self._followed_s.append(step_s)
        self.spent_s += self.extra_s or 0.0
