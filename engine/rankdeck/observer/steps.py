"""What a step is: an outermost step of the leading optimizer.

torch calls its hooks around the step of every optimizer. An optimizer that steps inside another's step (which
wraps it) is part of that. Of several that step in turn (a GAN) the one with the most parameters leads, which
is known once one of them steps for the second time; until then, and whenever another one steps alone, its
steps are kept aside: they are the run's if the leading one is gone or stands still, and are counted as
another optimizer's once that steps again. A step is a tuple in a list; rows.py writes them down.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref

from .gradients import Gradients
from .losses import num_running
from .rows import Rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_FIRST_SAMPLED = 20
_SAMPLE_EVERY_S = 0.1
_SHARE = 200
"""What a sampled step costs is at most half a hundredth of the time until the next one."""
_DECIDE_AFTER_S = 5.0
_MOST_ASIDE = 1000


class _Track:
    """An optimizer that has stepped, and its steps that nobody has counted yet."""

    def __init__(self, optimizer: Any) -> None:
        self.ref = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        try:
            self.num_parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        except Exception:  # It keeps them in a way of its own.
            self.num_parameters = 0
        self.aside: list[Any] = []


class _Nesting(threading.local):
    """Of each thread: the optimizers that step at this moment, the outermost first."""

    def __init__(self) -> None:
        self.stack: list[int] = []


class StepWatch:
    """The two hooks, and who leads."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._session = session
        gradients = Gradients(torch, session)
        self._norm_before = session.guarded("gradients", gradients.before)
        self._norm_after = session.guarded("gradients", gradients.after)
        self._rate = session.guarded("gradients", gradients.learning_rate)
        self.handles: list[Any] = []
        self.forget()

    def forget(self) -> None:
        self._nesting = _Nesting()
        self._known: dict[int, Any] = {}
        self._tracks: dict[int, _Track] = {}
        self._leader: _Track | None = None
        self._others: dict[str, int] = {}
        self._since, self._between = 0, 0
        """Steps of others since the leading optimizer's last one, and the most that there ever were."""
        self._first_at: float | None = None
        self._num_sampled = 0
        self._sampled_at = 0.0
        self._every_s = _SAMPLE_EVERY_S
        self._cost_s = 0.0
        self._norm: Any = None
        self._turn = threading.Lock()
        self._rows = Rows(self._session)

    def _off(self, error: Exception) -> None:
        self._session.switch_off("steps", error)
        for handle in self.handles:
            handle.remove()

    # The hooks. Nothing is computed in a step that is not sampled.

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step begins."""
        session = self._session
        try:
            stack = self._nesting.stack
            if stack:  # It is inside another's, or that one was left by an exception.
                wrapper = sys._getframe(1)
                del stack[num_running(wrapper.f_back, wrapper.f_code) :]
            stack.append(id(optimizer))
            if len(stack) > 1:
                self._know(optimizer)
                return
            losses = session.losses
            if losses is not None:
                losses.in_step, losses.backwards_in_step = True, 0
                losses.step_code = sys._getframe(1).f_code
            if session.sampled:
                began = time.perf_counter()
                self._norm = self._norm_before(optimizer, args, kwargs)
                self._cost_s = time.perf_counter() - began
        except Exception as error:
            self._off(error)

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step has ended."""
        try:
            stack = self._nesting.stack
            if stack and stack[0] == id(optimizer):
                stack.clear()
            elif id(optimizer) in stack:
                del stack[stack.index(id(optimizer)) :]
            if not stack:
                self._stepped(optimizer, args, kwargs)
        except Exception as error:
            self._off(error)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        session, now = self._session, time.perf_counter()
        session.fired += 1
        losses, sampled = session.losses, session.sampled
        norm = rate = None
        if sampled:
            norm, self._norm = self._norm, None
            if norm is None:
                norm = self._norm_after(optimizer, args, kwargs)
            rate = self._rate(optimizer)
        leader = self._leader
        leads = leader is not None and leader.ref() is optimizer
        taken: list[Any] = []
        backwards = 0
        if losses is not None:
            losses.in_step = False
            if leads:
                taken, backwards = losses.take()
            elif losses.inside == 0 or leader is None:
                # The leading optimizer may step on the same loss, after this one or inside the same backward.
                taken, backwards = losses.share()
        row = (now, time.time(), taken, rate, norm, backwards, session.waited_s, session.samples)
        if leads:
            if self._since:
                self._dismiss()
            self._rows.append(row)
            session.step += 1
        else:
            self._other_stepped(optimizer, row)
        if not session.is_writing:
            session.begin(optimizer)
        session.beat("step")
        if leads:
            self._sample(optimizer, sampled, now)

    def _sample(self, optimizer: Any, sampled: bool, now: float) -> None:
        """Ask what a sampled step is asked, and choose whether the next one is sampled."""
        session = self._session
        if sampled:
            self._num_sampled += 1
            for function in session.on_sampled_step:
                function(optimizer)
            after = time.perf_counter()
            self._every_s = max(_SAMPLE_EVERY_S, _SHARE * (self._cost_s + after - now))
            now = after
        session.sampled = self._num_sampled < _FIRST_SAMPLED or now - self._sampled_at >= self._every_s
        if session.sampled:
            self._sampled_at = now

    # Who leads.

    def _know(self, optimizer: Any) -> None:
        """Remember it, weakly, for who looks at what optimizers hold."""
        known = self._known.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
            self._known[id(optimizer)] = weakref.ref(optimizer)
            self._session.optimizers[:] = self._known.values()

    def _other_stepped(self, optimizer: Any, row: Any) -> None:
        with self._turn:
            tracks = self._tracks.values()
            if self._leader is None and tracks and all(known.ref() is None for known in tracks):
                self._lead(max(tracks, key=lambda known: known.num_parameters))
            track = self._tracks.get(id(optimizer))
            if track is None or track.ref() is not optimizer:
                if track is not None:
                    self._put_apart(track)
                self._know(optimizer)
                track = self._tracks[id(optimizer)] = _Track(optimizer)
            if self._first_at is None:
                self._first_at = row[0]
            again = bool(track.aside)
            track.aside.append(row)
            self._since += 1
            leader = self._leader
            if leader is None:
                if again:
                    self._lead(max(self._tracks.values(), key=lambda known: known.num_parameters))
            elif leader.ref() is None or len(track.aside) > min(4 * self._between + 4, _MOST_ASIDE):
                self._lead(track)

    def _lead(self, track: _Track) -> None:
        """From now on this one's steps are the run's, those that were kept aside too."""
        optimizer = track.ref()
        self._leader = track
        self._session.step += len(track.aside)
        self._num_sampled += len(track.aside)
        for row in track.aside:
            self._rows.append(row)
        steps, track.aside = len(track.aside), []
        self._since -= steps
        self._dismiss()
        self._between = 0
        if optimizer is not None:
            for function in self._session.on_leading:
                function(optimizer)

    def _dismiss(self) -> None:
        """What was kept aside was another optimizer's."""
        self._between, self._since = max(self._between, self._since), 0
        for key, track in list(self._tracks.items()):
            self._put_apart(track)
            if track.ref() is None:
                del self._tracks[key]
        if self._others:
            self._session.see(other_optimizers=dict(self._others))

    def _put_apart(self, track: _Track) -> None:
        if track.aside:
            self._others[track.name] = self._others.get(track.name, 0) + len(track.aside)
            track.aside = []

    def write(self) -> None:
        """Write down the steps so far, from the thread or at the end."""
        with self._turn:
            waited_s = time.perf_counter() - (self._first_at or time.perf_counter())
            ending = self._session.ending
            if self._leader is None and self._tracks and (ending or waited_s > _DECIDE_AFTER_S):
                self._lead(max(self._tracks.values(), key=lambda known: known.num_parameters))
            if ending and self._since:
                last = max(self._tracks.values(), key=lambda known: len(known.aside))
                if self._since > self._between and 2 * len(last.aside) >= self._session.step:
                    self._lead(last)  # A second training, as long as the first.
                else:
                    self._dismiss()
        self._rows.write()


def install(torch: Any, session: RankSession) -> None:
    """Hook into every optimizer."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    watch = StepWatch(torch, session)
    watch.handles = [
        register_optimizer_step_pre_hook(watch.before),
        register_optimizer_step_post_hook(watch.after),
    ]
    session.on_fork.append(watch.forget)
    # By a name of its own: what was seen before the hooks failed is written all the same.
    session.on_tick.append(session.guarded("written steps", watch.write))


def leave_uncompiled(trace_rules: Any, session: RankSession) -> None:
    """torch's compiler calls what lies in this folder, and never makes it part of a graph."""
    trace_rules.add(__package__)
