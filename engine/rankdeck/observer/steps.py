"""What a step is: an outermost step of the leading optimizer.

torch calls its hooks around the step of every optimizer. An optimizer inside another's step (one that wraps
others) is part of it. Of several that step in turn (a GAN) the one with the most parameters leads, which is
known once one of them steps for the second time; until then, and whenever another steps on its own, their
steps are kept aside: they become the run's if the leading one is gone or stands still, and are counted as
another optimizer's if it steps again. Each step is one tuple in a list, and the thread writes them down.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque

from .gradients import Gradients
from .readings import NOT_YET, resolved, total

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session

_FIRST_SAMPLED = 20
_SAMPLE_EVERY_S = 0.05
_SHARE = 100
"""A sampled step may cost one hundredth of the time until the next."""
_DECIDE_AFTER_S = 5.0
_GIVE_UP_AFTER_S = 2.0
_MOST_A_LINE = 500
_MOST_ASIDE = 1000


class _Track:
    """An optimizer that has stepped, and its steps that nobody has counted yet."""

    def __init__(self, optimizer: Any) -> None:
        self.ref = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.num_parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self.aside: deque[Any] = deque(maxlen=_MOST_ASIDE)
        self.num_aside = 0


class _Nesting(threading.local):
    """Of each thread: the optimizers that step at this moment, the outermost first."""

    stack: list[int]

    def __init__(self) -> None:
        self.stack = []


class StepWatch:
    """The optimizer hooks."""

    def __init__(self, torch: Any, session: Session) -> None:
        self._torch, self._session = torch, session
        self._gradients = Gradients(torch, session)
        self._nesting = _Nesting()
        self._handles: list[Any] = []
        self.forget()

    def forget(self) -> None:
        self._nesting.stack = []
        self._tracks: dict[int, _Track] = {}
        self._leader: _Track | None = None
        self._others: dict[str, int] = {}
        self._between = 0
        """The most steps that others took between two of the leading optimizer."""
        self._first_at = 0.0
        self._last_sampled_at = time.perf_counter()
        self._sampled_since = 0
        self._rows: deque[Any] = deque()
        self._before: tuple[float, float, int | None] | None = None
        self._norm: Any = None
        self._written = 0
        self._turning = threading.Lock()

    # The hooks.

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step begins."""
        session = self._session
        try:
            stack = self._nesting.stack
            if stack:
                del stack[_num_steps_running(sys._getframe(1)) :]
            stack.append(id(optimizer))
            if len(stack) > 1:
                self._know(optimizer)
                return
            losses = session.losses
            if losses is not None:
                losses.in_step, losses.backwards_in_step = True, 0
            if session.sampled:
                self._norm = self._gradients.before(optimizer, args, kwargs)
        except Exception as error:
            self._off(error)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step has ended."""
        try:
            stack = self._nesting.stack
            if id(optimizer) in stack:
                del stack[stack.index(id(optimizer)) :]
            if not stack:
                self._stepped(optimizer, args, kwargs)
        except Exception as error:
            self._off(error)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        session, now = self._session, time.perf_counter()
        session.fired += 1
        losses, backwards, norm, rate = None, 0, None, None
        if session.losses is not None:
            session.losses.in_step = False
            if session.losses.inside:
                # Stepped from inside backward, parameter by parameter: the loss is the leading optimizer's.
                leads = self._leader is None or self._leader.ref() is optimizer
                if leads:
                    losses, backwards = session.losses.take()
            else:
                losses, backwards = session.losses.take()
        if session.sampled:
            norm = self._norm or self._gradients.after(optimizer, args, kwargs)
            rate = self._gradients.learning_rate(optimizer)
            self._norm = None
        row = (now, time.time(), losses, rate, norm, backwards, session.waited_s, session.samples)
        leader = self._leader
        if leader is not None and leader.ref() is optimizer:
            self._leads(row)
        else:
            self._other_stepped(optimizer, row)
        session.beat("step")
        self._choose_next(optimizer, now)

    def _leads(self, row: tuple[Any, ...]) -> None:
        if self._others_aside:
            self._dismiss()
        self._rows.append(row)
        self._session.step += 1

    def _choose_next(self, optimizer: Any, now: float) -> None:
        """Whether the next step is sampled; what this one was asked is asked now."""
        session = self._session
        if session.sampled:
            leader = self._leader
            if leader is not None and leader.ref() is optimizer:
                self._sampled_since += 1
                for function in session.on_sampled_step:
                    function(optimizer)
            cost = time.perf_counter() - now
            self._every_s = max(_SAMPLE_EVERY_S, _SHARE * cost)
