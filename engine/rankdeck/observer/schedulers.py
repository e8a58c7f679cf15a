"""Compares a learning-rate scheduler with its optimizer, and finds a learning rate that reached 0.

Schedulers are found when they are created. After each step of the leading optimizer, the rate of its first
group and the counter of its scheduler are read; nothing is called. A rate of 0 is reported only if all
groups have it, if it lasts, and if a decay led to it or the rate was never higher: a warm-up starts at 0, a
frozen part is set to 0 at once, and a cyclic schedule soon leaves 0. Read steps.py first.
"""

from __future__ import annotations

import functools
import sys
import weakref

from .frames import drop_own_frame, script_line
from .readings import has_active_modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "schedule"
_MIN_STEPS = 20
"""Minimum number of steps before a scheduler is judged, and of steps at a rate of 0."""
_MIN_ZERO_SHARE = 0.1
"""Minimum share of the steps that had a rate of 0: a schedule may end shortly before training does."""
_MAX_LAST_SHARE = 0.5
"""Maximum last rate before 0, as a share of the highest: a drop from the maximum to 0 is intentional."""
_MIN_NEVER = 100
"""Minimum number of steps at a rate of 0 if the rate has never been higher: a warm-up starts at 0."""
_NEGLIGIBLE_SHARE = 1e-6
"""Share of the highest rate so far that counts as 0: nothing learns at such a rate."""
_MIN_INTERVAL, _MIN_LENGTH, _MAX_EPOCHS = 100, 10_000, 1000
"""Limits for a report while the script runs: minimum steps per epoch; minimum length of a schedule, which is
then too long to be in epochs; maximum number of epochs if this length is in steps."""


class _Schedule:
    """A scheduler with the line that created it, and its counter at the first step that was observed."""

    def __init__(self, scheduler: Any, line: str) -> None:
        self.ref, self.line, self.name = weakref.ref(scheduler), line, type(scheduler).__name__
        self.has_plan = self.name != "ReduceLROnPlateau"
        """Whether the scheduler's counter determines the rate."""
        self.length: int | None = None
        self.first: tuple[int, int] | None = None
        """(counter, finished steps of the optimizer) when the counter was first read."""
        self.changed: tuple[int, int] | None = None
        """(counter, finished steps of the optimizer) when the counter last changed."""
        self.interval = 0
        """Number of steps between the last two changes."""
        self.has_gone_back = False
        """Whether the counter has decreased, because the script sets it, as with `step(epoch)`."""

    def read_counter(self) -> int | None:
        """Return the scheduler's counter or, if the scheduler is gone, the last value that was read."""
        counter = getattr(self.ref(), "last_epoch", None)
        if isinstance(counter, int):
            return counter
        return self.changed[0] if self.changed is not None else None


class ScheduleChecks:
    """Checks the learning rate of the leading optimizer, and its scheduler."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._schedules: list[_Schedule] = []
        self.on_leader_chosen(None)

    def on_leader_chosen(self, _: Any) -> None:
        """Discard the recorded learning rates, because another optimizer leads from now on."""
        self._schedule: _Schedule | None = None
        self._has_looked = False
        self._rate: Any = None
        self._number: float | None = None
        """The rate as stored in the group; None if it is a tensor, which may change in place."""
        self._highest = 0.0
        self._rate_since = 0
        """Number of the first step at the current rate."""
        self._plateau = 0
        """Number of steps at the last rate before 0."""
        self._zero_counter: int | None = None
        """Counter of the scheduler in the first step at a rate of 0."""
        self._is_zero = False
        """Whether the rates of all groups have been 0 since step `_rate_since`."""
        self._is_done = False

    def add(self, scheduler: Any) -> None:
        """Remember a new scheduler."""
        self._schedules = [schedule for schedule in self._schedules if schedule.ref() is not None]
        self._schedules.append(_Schedule(scheduler, script_line()))
        self._has_looked = False

    def on_step(self, optimizer: Any) -> None:
        """Read the rate and the counter after a step of the leading optimizer."""
        if not self._has_looked:
            self._has_looked = True
            self._schedule = self.find(optimizer)
        schedule = self._schedule
        if schedule is not None:
            self._read_counter(schedule)
        group = optimizer.param_groups[0]
        # As in the step before: a shortcut, because this is so in nearly all steps.
        if self._is_done or (self._rate and group.get("lr") == self._number):
            return
        rate = self._read_rate(group)
        self._number = group["lr"] if type(group.get("lr")) is float else None
        if rate != self._rate:
            self._on_change(rate)
        has_decayed = self._plateau or not self._highest
        self._is_zero = bool(
            rate == 0 and has_decayed and all(self._read_rate(g) == 0 for g in optimizer.param_groups)
        )
        if self._is_zero:
            self._check_zero()

    def find(self, optimizer: Any) -> _Schedule | None:
        """Return the optimizer's newest schedule; None if it has none. The newest is the right one, because a
        schedule that combines others is created after them."""
        for schedule in reversed(self._schedules):
            scheduler = schedule.ref()
            if scheduler is not None and getattr(scheduler, "optimizer", None) is optimizer:
                return schedule
        return None

    def _read_counter(self, schedule: _Schedule) -> None:
        counter, step = schedule.read_counter(), self._session.step
        if counter is None:
            return
        if schedule.first is None or schedule.changed is None:
            schedule.first = schedule.changed = counter, step
            schedule.length = _length(schedule.ref())
        elif counter != schedule.changed[0]:
            schedule.interval = step - schedule.changed[1]
            schedule.has_gone_back = schedule.has_gone_back or counter < schedule.changed[0]
            schedule.changed = counter, step

    def _read_rate(self, group: Any) -> float | None:
        rate = group.get("lr")
        if isinstance(rate, (int, float)):
            return 0.0 if rate <= _NEGLIGIBLE_SHARE * self._highest else rate
        # Reading a tensor on a GPU would wait for the GPU.
        is_plain = type(rate) is self._torch.Tensor and rate.device.type == "cpu" and rate.numel() == 1
        return float(rate) if is_plain and not has_active_modes(self._torch) else None

    def _on_change(self, rate: float | None) -> None:
        step, before = self._session.step, self._rate
        self._plateau = 0
        if rate == 0 and before and before <= _MAX_LAST_SHARE * self._highest:
            self._plateau = step - self._rate_since
            schedule = self._schedule
            self._zero_counter = schedule.changed[0] if schedule is not None and schedule.changed else None
        self._rate, self._rate_since = rate, step
        self._highest = max(self._highest, rate or 0.0)

    def _check_zero(self) -> None:
        """Report a learning rate that has been 0 for many steps, and the scheduler if one caused it."""
        session, since = self._session, self._rate_since
        num = session.step - since + 1
        done = session.step - session.first_step
        # A schedule that is stepped once per epoch stays at each rate, so 0 must last longer than the others.
        if num < max(_MIN_STEPS, _MIN_ZERO_SHARE * done, 2 * self._plateau):
            return
        # At its end, the run itself shows that the rate was not about to rise.
        if not self._highest and num < _MIN_NEVER and not session.is_ending:
            return
        self._is_done = True
        schedule = self._schedule
        ratio = self._ratio(self._zero_counter, since)
        if schedule is None or ratio is None:
            session.report_anomaly(
                "rate-zero", step=since, steps=session.step, never=float(not self._highest)
            )
            return
        is_often = ratio > 1 and ratio == round(ratio)
        self._report("scheduler-steps-often" if is_often else "rate-zero", since, ratio, 1.0)

    def _ratio(self, counter: int | None, step: int) -> float | None:
        """Return the number of scheduler steps per optimizer step until the scheduler reached `counter` in
        step `step`, rounded if it is nearly an integer."""
        schedule = self._schedule
        if schedule is None or schedule.first is None or counter is None:
            return None
        first_counter, first_step = schedule.first
        ratio = (counter - first_counter) / max(1, step - first_step)
        return float(round(ratio)) if abs(ratio - round(ratio)) <= 0.02 * ratio else ratio

    def _report(self, code: str, step: int, ratio: float, is_zero: float) -> None:
        session, schedule = self._session, self._schedule
        assert schedule is not None
        is_per_process = "accelerate.scheduler" in sys.modules and ratio == session.world_size
        session.report_anomaly(
            code,
            names=[schedule.name],
            step=step,
            line=schedule.line,
            ratio=ratio,
            counter=self._zero_counter or 0,
            length=schedule.length or 0,
            steps=session.step,
            zero=is_zero,
            accelerate=float(ratio > 1 and is_per_process),
        )

    def on_tick(self) -> None:
        """Report a per-step schedule that is advanced only once per epoch. At the end of the process, also
        report a schedule that ended early."""
        schedule, session = self._schedule, self._session
        if session.is_ending and self._is_zero and not self._is_done:
            self._check_zero()
        num_steps = session.step - session.first_step
        if schedule is None or schedule.length is None or num_steps < _MIN_STEPS:
            return
        counter, length, interval = schedule.read_counter() or 0, schedule.length, schedule.interval
        is_rare = 0 < counter * 4 <= num_steps
        # A run that was stopped early had another length, so only one of the same length counts.
        is_over = session.is_ending and abs(num_steps - length) <= max(1, length // 20)
        ratio = self._ratio(counter, session.step) if is_over and not self._is_done else None
        if ratio is not None and ratio >= 2 and ratio == round(ratio):
            # It ended above 0, or rose again, as a cosine does.
            self._report("scheduler-steps-often", session.first_step + 1 + int(length / ratio), ratio, 0.0)
        is_too_long = (
            counter > 1
            and interval >= _MIN_INTERVAL
            and length >= _MIN_LENGTH
            and length % interval == 0
            and length <= interval * _MAX_EPOCHS
        )
        if is_rare and (is_over or is_too_long):
            session.report_anomaly(
                "scheduler-steps-rarely",
                names=[schedule.name],
                line=schedule.line,
                scheduled=length,
                done=counter,
                steps=num_steps,
            )


def _length(scheduler: Any) -> int | None:
    """Return the number of steps after which the schedule is over; None for a warm-up, or without a fixed
    end."""
    # A warm-up of LinearLR or ConstantLR ends at the full rate, long before the training does.
    if getattr(scheduler, "end_factor", 0) > getattr(scheduler, "start_factor", 0) or hasattr(
        scheduler, "factor"
    ):
        return None
    # Of a SequentialLR, which switches to its last scheduler at its last milestone.
    if getattr(scheduler, "_milestones", None):
        last = _length(scheduler._schedulers[-1])
        return None if last is None else int(scheduler._milestones[-1]) + last
    for name in ("total_steps", "T_max", "total_iters"):
        value = getattr(scheduler, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def install(torch: Any, session: RankSession) -> None:
    """Remember every scheduler that the script creates."""
    session.schedules = checks = ScheduleChecks(torch, session)
    add = session.wrap_part(PART, checks.add)
    _observe_constructor(torch.optim.lr_scheduler.LRScheduler, add)
    # Its constructor does not call that of its base class.
    _observe_constructor(torch.optim.lr_scheduler.SequentialLR, add)
    session.on_leader_chosen.add(PART, checks.on_leader_chosen)
    session.on_step.add(PART, checks.on_step)
    session.on_tick.add(PART, checks.on_tick)
    session.on_fork.add(PART, checks.forget)


def _observe_constructor(base: Any, add: Any) -> None:
    construct = base.__init__

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            construct(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        add(self)

    base.__init__ = observed
