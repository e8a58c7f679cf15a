"""fp16's loss scaling as rank 0 told it: the factor, and the steps that were left out for it.

Every rank finds the same gradients, so one tells what all do. Source: torch.amp.GradScaler.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from rankdeck import events

_MOST_STEPS = 1 << 16


class Scaling:
    """Of one attempt. `scale` is None where nobody scales; `left_out` are its newest such steps."""

    def __init__(self) -> None:
        self.scale: float | None = None
        self.left_out: deque[int] = deque(maxlen=_MOST_STEPS)

    def take(self, event: events.LossScale, last: int | None) -> None:
        """What was left out after `last` is history."""
        if event.rank != 0 or not math.isfinite(event.scale):
            return
        is_history = last is not None and event.step - 1 > last
        if self.scale is not None and event.scale < self.scale and not is_history:
            self.left_out.append(event.step - 1)
        self.scale = event.scale

    def cut(self, last: int) -> None:
        while self.left_out and self.left_out[-1] > last:
            self.left_out.pop()


class Scaled(msgspec.Struct, frozen=True):
    """Of a whole run: the factor now, and how many of its steps were left out."""

    scale: float
    num_left_out: int


def scaled(attempts: Iterable[Scaling]) -> Scaled | None:
    """Of attempts in their order; None where nobody scales."""
    told = [one for one in attempts if one.scale is not None]
    if not told:
        return None
    return Scaled(told[-1].scale or 0.0, sum(len(one.left_out) for one in told))
