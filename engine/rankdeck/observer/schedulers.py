"""Counts how often a learning-rate scheduler has stepped, compared with its optimizer.

Schedulers are found when they are created; their counters are read at the first sampled step after a few
steps, and at the end. Nothing is called in between. Read steps.py first.
"""

from __future__ import annotations

import functools
import weakref

from .frames import drop_own_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "schedule"
_NUM_STEPS = 20
"""Number of steps over which a scheduler's steps are counted."""


class SchedulerCounts:
    """The schedulers of the leading optimizer."""

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        self._schedulers: list[Any] = []
        self._since: dict[int, tuple[int, int]] = {}
        """(scheduler's counter, optimizer's steps) where counting began, by the scheduler's id."""

    def add(self, scheduler: Any) -> None:
        """Remember a new scheduler."""
        self._schedulers = [ref for ref in self._schedulers if ref() is not None]
        self._schedulers.append(weakref.ref(scheduler))

    def on_sampled_step(self, optimizer: Any) -> None:
        """Read the counters of the leading optimizer's schedulers after a sampled step."""
        session = self._session
        for reference in self._schedulers:
            scheduler = reference()
            if scheduler is None or not _schedules(scheduler, optimizer):
                continue
            epoch = int(scheduler.last_epoch)
            if id(scheduler) not in self._since:
                self._since[id(scheduler)] = epoch, session.step
                continue
            first_epoch, first_step = self._since[id(scheduler)]
            steps, epochs = session.step - first_step, epoch - first_epoch
            if steps < _NUM_STEPS or first_step < 0:
                continue
            self._since[id(scheduler)] = epoch, -1
            if epochs >= 2 * steps and epochs % steps == 0:
                session.report_anomaly(
                    "scheduler-steps-often",
                    names=[type(scheduler).__name__],
                    step=first_step + 1,
                    ratio=epochs // steps,
                )

    def on_tick(self) -> None:
        """Compare the counters at the end of the process."""
        if not self._session.is_ending:
            return
        num_steps = self._session.step - self._session.first_step
        for reference in self._schedulers:
            scheduler = reference()
            total = _length(scheduler) if scheduler is not None else None
            if total is None or num_steps < _NUM_STEPS:
                continue
            epoch = int(scheduler.last_epoch)
            # Stepped once per pass, although its length is that of the training in steps.
            if 0 < epoch * 4 <= num_steps and num_steps <= 2 * total and total <= 2 * num_steps:
                self._session.report_anomaly(
                    "scheduler-steps-rarely",
                    names=[type(scheduler).__name__],
                    scheduled=total,
                    done=epoch,
                    steps=num_steps,
                )


def _schedules(scheduler: Any, optimizer: Any) -> bool:
    return getattr(scheduler, "optimizer", None) is optimizer


def _length(scheduler: Any) -> int | None:
    """Return the number of steps after which the schedule is over; None if it has no length."""
    for name in ("total_steps", "T_max", "total_iters"):
        value = getattr(scheduler, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def install(torch: Any, session: RankSession) -> None:
    """Remember every scheduler that the script creates."""
    counts = SchedulerCounts(session)
    base = torch.optim.lr_scheduler.LRScheduler
    construct = base.__init__
    add = session.wrap_part(PART, counts.add)

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            construct(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        add(self)

    base.__init__ = observed
    session.on_sampled_step.append(session.wrap_part(PART, counts.on_sampled_step))
    session.on_tick.append(session.wrap_part(PART, counts.on_tick))
    session.on_fork.append(counts.forget)
