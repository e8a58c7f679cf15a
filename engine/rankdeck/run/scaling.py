"""Track fp16's loss scaling from rank 0's reports: the factor, and the steps that the scaler skipped.

Every rank has the same gradients, so one rank reports for all. Source: torch.amp.GradScaler.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from rankdeck import events

_MAX_STEPS = 1 << 16


class LossScaleHistory:
    """Loss scale of one attempt.

    `scale` is None without scaling; `skipped_steps` are the newest skipped steps.
    """

    def __init__(self) -> None:
        self.scale: float | None = None
        self.skipped_steps: deque[int] = deque(maxlen=_MAX_STEPS)

    def add_event(self, event: events.LossScale, last: int | None) -> None:
        """Apply an event; a skipped step after `last` is not recorded, since the run no longer contains that
        step."""
        if event.rank != 0 or not math.isfinite(event.scale):
            return
        is_history = last is not None and event.step - 1 > last
        # GradScaler lowers its scale only after a step with gradients that are not finite.
        if self.scale is not None and event.scale < self.scale and not is_history:
            self.skipped_steps.append(event.step - 1)
        self.scale = event.scale

    def cut(self, last: int) -> None:
        while self.skipped_steps and self.skipped_steps[-1] > last:
            self.skipped_steps.pop()


class LossScalingSummary(msgspec.Struct, frozen=True):
    """Loss scaling of a whole run: the current factor, and the number of skipped steps."""

    scale: float
    num_left_out: int


def summarize_loss_scaling(attempts: Iterable[LossScaleHistory]) -> LossScalingSummary | None:
    """Summarize the loss scaling of a run's attempts, listed oldest first; None if no loss was scaled."""
    scaled = [history for history in attempts if history.scale is not None]
    if not scaled:
        return None
    return LossScalingSummary(scaled[-1].scale or 0.0, sum(len(history.skipped_steps) for history in scaled))
