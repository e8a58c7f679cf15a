"""Defines a step of the run: an outermost step of the leading optimizer.

torch calls hooks around the step of every optimizer. A step inside another optimizer's step (a wrapper's) is
part of the outer step. If several optimizers step in turn (a GAN), the one with the most parameters leads;
this is decided when an optimizer steps for the second time. Steps before that decision, and all steps of
other optimizers, are set aside. When an optimizer becomes the leading one, its own steps that were set aside
become steps of the run. All others count as other optimizers' steps, at the latest when the leading optimizer
steps again. If the leading optimizer is gone or no longer steps, another optimizer leads. A step is stored as
a tuple, which step_rows.py writes.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref

from .gradients import GradientReader
from .losses import count_frames
from .step_rows import StepRows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_NUM_FIRST_SAMPLED = 20
_SAMPLE_EVERY_S = 0.1
_SAMPLE_COST_FACTOR = 200
"""Minimum time until the next sampled step, as a multiple of the time that sampling a step takes."""
_DECIDE_AFTER_S = 5.0
_SOME_EVERY = 4
"""Number of steps from one call of `session.on_some_step` to the next."""
_MAX_UNCOUNTED = 1000


class _OptimizerTrack:
    """An optimizer that has stepped, with its steps that have not been counted yet."""

    def __init__(self, optimizer: Any) -> None:
        self.ref = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        try:
            self.num_parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        except Exception:  # It does not store its parameters as torch does.
            self.num_parameters = 0
        self.uncounted_rows: list[Any] = []


class _ActiveOptimizers(threading.local):
    """For each thread, the ids of the optimizers whose step is running, outermost first."""

    def __init__(self) -> None:
        self.stack: list[int] = []


class StepObserver:
    """The two step hooks, and the choice of the leading optimizer."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._session = session
        gradients = GradientReader(torch, session)
        self._norm_before = session.wrap_part("gradients", gradients.norm_before_step)
        self._norm_after = session.wrap_part("gradients", gradients.norm_after_step)
        self._learning_rate = session.wrap_part("gradients", gradients.learning_rate)
        self.handles: list[Any] = []
        self.forget()

    def forget(self) -> None:
        self._active = _ActiveOptimizers()
        self._known: dict[int, Any] = {}
        self._tracks: dict[int, _OptimizerTrack] = {}
        self._leader: _OptimizerTrack | None = None
        self._other_steps: dict[str, int] = {}
        self._num_other_steps, self._max_other_steps = 0, 0
        """Number of other optimizers' steps since the leading optimizer's last step, and its maximum so far.
        """
        self._first_step_at: float | None = None
        self._num_sampled = 0
        self._sampled_at = 0.0
        self._sample_interval_s = _SAMPLE_EVERY_S
        self._cost_s = 0.0
        self._norm: Any = None
        # The training thread adds steps of other optimizers, while the session's thread may assign them.
        self._lock = threading.Lock()
        self._rows = StepRows(self._session)

    def _disable(self, error: Exception) -> None:
        self._session.disable_part("steps", error)
        for handle in self.handles:
            handle.remove()

    # The hooks. They compute nothing in a step that is not sampled.

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Handle the start of an optimizer's step."""
        session = self._session
        try:
            stack = self._active.stack
            if stack:  # Inside another's step, or an exception ended that step.
                wrapper = sys._getframe(1)
                del stack[count_frames(wrapper.f_back, wrapper.f_code) :]
            # The id only: a reference would keep the optimizer alive.
            stack.append(id(optimizer))
            if len(stack) > 1:
                self._remember(optimizer)
                return
            if id(optimizer) not in self._tracks:
                session.on_first_step.call(optimizer)
            leads = self._leader is not None and self._leader.ref() is optimizer
            session.before_step.call(optimizer, leads)
            losses = session.losses
            if losses is not None:
                losses.in_step, losses.backwards_in_step = True, 0
                losses.step_code = sys._getframe(1).f_code
            if session.is_step_sampled:
                start_s = time.perf_counter()
                self._norm = self._norm_before(optimizer, args, kwargs)
                session.before_sampled_step.call(optimizer, leads, self._norm)
                self._cost_s = time.perf_counter() - start_s
        except Exception as error:
            self._disable(error)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Handle the end of an optimizer's step."""
        try:
            stack = self._active.stack
            if stack and stack[0] == id(optimizer):
                stack.clear()
            elif id(optimizer) in stack:
                del stack[stack.index(id(optimizer)) :]
            if not stack:
                self._on_outermost_step(optimizer, args, kwargs)
        except Exception as error:
            self._disable(error)

    def _on_outermost_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        session, now = self._session, time.perf_counter()
        session.num_outermost_steps += 1
        session.last_optimizer = weakref.ref(optimizer)
        losses, sampled = session.losses, session.is_step_sampled
        norm = rate = None
        if sampled:
            norm, self._norm = self._norm, None
            if norm is None:
                norm = self._norm_after(optimizer, args, kwargs)
            rate = self._learning_rate(optimizer)
        leader = self._leader
        leads = leader is not None and leader.ref() is optimizer
        taken: list[Any] = []
        backwards = 0
        if losses is not None:
            losses.in_step = False
            if leads:
                taken, backwards = losses.take()
            elif losses.inside == 0 or leader is None:
                # The leading optimizer may step on the same loss: after this one, or inside the same
                # backward.
                taken, backwards = losses.share()
        row = (now, time.time(), taken, rate, norm, backwards, session.waited_s, session.samples, sampled)
        if leads:
            if self._num_other_steps:
                self._count_others()
            self._rows.append(row)
            session.step += 1
        else:
            self._on_other_step(optimizer, row)
        if session.writer_thread is None or session.rank is None:
            session.start_rank(optimizer)
        session.beat("step")
        if self._leader is not None and self._leader.ref() is optimizer:
            session.on_step.call(optimizer)
            if not session.step % _SOME_EVERY:
                session.on_some_step.call(optimizer)
        if leads:
            self._choose_next_sample(optimizer, sampled, now)

    def _choose_next_sample(self, optimizer: Any, sampled: bool, now: float) -> None:
        """Call the `on_sampled_step` functions if the finished step was `sampled`, and decide whether to
        sample the next one."""
        session = self._session
        if sampled:
            self._num_sampled += 1
            session.on_sampled_step.call(optimizer)
            after = time.perf_counter()
            self._sample_interval_s = max(_SAMPLE_EVERY_S, _SAMPLE_COST_FACTOR * (self._cost_s + after - now))
            now = after
        session.is_step_sampled = (
            session.is_checked
            or session.num_requested_samples > 0
            or self._num_sampled < _NUM_FIRST_SAMPLED
            or now - self._sampled_at >= self._sample_interval_s
        )
        if session.is_step_sampled:
            self._sampled_at = now
            session.num_requested_samples = max(0, session.num_requested_samples - 1)

    # The choice of the leading optimizer.

    def _remember(self, optimizer: Any) -> None:
        """Keep a weak reference to the optimizer, for parts that read optimizer state."""
        known_ref = self._known.get(id(optimizer))
        if known_ref is None or known_ref() is not optimizer:
            self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
            self._known[id(optimizer)] = weakref.ref(optimizer)
            self._session.optimizers[:] = self._known.values()

    def _on_other_step(self, optimizer: Any, row: Any) -> None:
        with self._lock:
            tracks = self._tracks.values()
            if self._leader is None and tracks and all(other.ref() is None for other in tracks):
                self._set_leader(max(tracks, key=lambda track: track.num_parameters))
            track = self._tracks.get(id(optimizer))
            if track is None or track.ref() is not optimizer:
                if track is not None:
                    self._count_other(track)
                self._remember(optimizer)
                track = self._tracks[id(optimizer)] = _OptimizerTrack(optimizer)
            if self._first_step_at is None:
                self._first_step_at = row[0]
            again = bool(track.uncounted_rows)
            track.uncounted_rows.append(row)
            self._num_other_steps += 1
            leader = self._leader
            if leader is None:
                # The second step of an optimizer ends the first round, so all optimizers are known.
                if again:
                    self._set_leader(max(self._tracks.values(), key=lambda track: track.num_parameters))
            # Far more steps than there ever were between two of the leading optimizer's: it no longer steps.
            elif leader.ref() is None or len(track.uncounted_rows) > min(
                4 * self._max_other_steps + 4, _MAX_UNCOUNTED
            ):
                self._set_leader(track)

    def _set_leader(self, track: _OptimizerTrack) -> None:
        """Make the track's optimizer the leading one; its uncounted steps become steps of the run."""
        optimizer = track.ref()
        self._leader = track
        self._session.step += len(track.uncounted_rows)
        self._num_sampled += len(track.uncounted_rows)
        for row in track.uncounted_rows:
            self._rows.append(row)
        steps, track.uncounted_rows = len(track.uncounted_rows), []
        self._num_other_steps -= steps
        self._count_others()
        self._max_other_steps = 0
        if optimizer is not None:
            self._session.on_leader_chosen.call(optimizer)

    def _count_others(self) -> None:
        """Count all uncounted steps as steps of optimizers other than the leading one."""
        self._max_other_steps, self._num_other_steps = max(self._max_other_steps, self._num_other_steps), 0
        for key, track in list(self._tracks.items()):
            self._count_other(track)
            if track.ref() is None:
                del self._tracks[key]
        if self._other_steps:
            self._session.record_facts(other_optimizers=dict(self._other_steps))

    def _count_other(self, track: _OptimizerTrack) -> None:
        if track.uncounted_rows:
            self._other_steps[track.name] = self._other_steps.get(track.name, 0) + len(track.uncounted_rows)
            track.uncounted_rows = []

    def write(self) -> None:
        """Write the steps observed so far; called from the writer thread and at the end of the process."""
        with self._lock:
            waited_s = time.perf_counter() - (self._first_step_at or time.perf_counter())
            ending = self._session.is_ending
            if self._leader is None and self._tracks and (ending or waited_s > _DECIDE_AFTER_S):
                self._set_leader(max(self._tracks.values(), key=lambda track: track.num_parameters))
            if ending and self._num_other_steps:
                last = max(self._tracks.values(), key=lambda track: len(track.uncounted_rows))
                if (
                    self._num_other_steps > self._max_other_steps
                    and 2 * len(last.uncounted_rows) >= self._session.step
                ):
                    self._set_leader(last)  # A second training run, as long as the first.
                else:
                    self._count_others()
        self._rows.write()


def install(torch: Any, session: RankSession) -> None:
    """Register the hooks for all optimizers."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    watch = StepObserver(torch, session)
    watch.handles = [
        register_optimizer_step_pre_hook(watch.before_step),
        register_optimizer_step_post_hook(watch.after_step),
    ]
    session.on_fork.add("steps", watch.forget)
    # Under another part name, so that steps observed before the hooks failed are still written.
    session.on_tick.add("written steps", watch.write)


def leave_uncompiled(trace_rules: Any, session: RankSession) -> None:
    """Have torch's compiler call the functions in this folder instead of tracing them into a graph."""
    # _torchdynamo_disable keeps only the function itself out of a graph, and functions that it calls are
    # compiled frame by frame. So the whole folder goes on the compiler's skip list.
    trace_rules.add(__package__)
