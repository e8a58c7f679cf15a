"""Observes the loss of a step: the sum of the tensors on which backward was called since the last step.

`Tensor.backward` looks up `torch.autograd.backward` at each call, so it is enough to wrap the latter, and
`Tensor.backward` stays as it is. A backward pass inside another one (checkpointing) is part of the outer one.
Inside an optimizer's step (a closure) only the first backward pass counts. If backward is called on a tensor
that is not a scalar, the loss is unknown. The losses are assigned to the next optimizer that steps. Read
steps.py first.
"""

from __future__ import annotations

import functools
import sys
import time

from .frames import drop_own_frame
from .loss_scale import unscale
from .readings import ScalarReader, UnsampledScalar, has_active_modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession


_MAX_READINGS = 256
_SOME_EVERY = 16
"""Number of steps between calls of `session.on_some_backward` if no step is sampled."""


class LossTracker:
    """Losses of backward calls, collected until an optimizer takes them."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self._readings = ScalarReader(torch)
        self.with_scaler = self.with_unknown_scale = False
        """Whether a gradient scaler has scaled a loss; `with_unknown_scale`: whether it has scaled a value
        that could not be marked."""
        self.forget()

    def forget(self) -> None:
        self.inside = 0
        """Nesting depth of the backward calls that are running."""
        self.in_step = False
        """Whether an optimizer's step is running."""
        self.step_code: Any = None
        """Code object of torch's wrapper around an optimizer's `step`."""
        self.backwards = 0
        self.backwards_in_step = 0
        self.readings: list[Any] = []
        self._is_shared = False

    def take(self) -> tuple[list[Any], int]:
        """Return (losses, number of backward calls) since the last `take`, and reset both."""
        taken = self.readings, self.backwards
        self.readings, self.backwards, self.backwards_in_step = [], 0, 0
        self._is_shared = False
        return taken

    def share(self) -> tuple[list[Any], int]:
        """Return (losses, number of backward calls); the next backward call resets both.

        Used if several optimizers step after the same backward pass, or inside it.
        """
        self._is_shared = True
        return self.readings, self.backwards

    def on_backward(self, tensors: Any) -> None:
        """Handle a backward call on `tensors`."""
        if self._is_shared:
            self.take()
        self.backwards += 1
        session = self._session
        session.beat("backward")
        if self.in_step and not count_frames(sys._getframe(1), self.step_code):
            self.in_step = False  # An exception ended that step.
        if self.in_step:
            self.backwards_in_step += 1
            if self.backwards_in_step > 1:
                return
        if session.active_since is None:
            session.active_since = time.perf_counter()
        if isinstance(tensors, self._torch.Tensor):
            tensors = [tensors]
        elif not isinstance(tensors, (list, tuple)) or not all(
            isinstance(t, self._torch.Tensor) for t in tensors
        ):
            tensors = []
        session.on_backward.call(tensors)
        if session.is_step_sampled or not (session.step + 1) % _SOME_EVERY:
            session.on_some_backward.call(tensors)
        if len(self.readings) < _MAX_READINGS:
            loss = self._loss_of(tensors)
            if loss is not None:
                loss = (
                    self._readings.read(loss)
                    if session.is_step_sampled or loss.is_cpu
                    else UnsampledScalar(self._readings, loss)
                )
            self.readings.append(loss)
        else:
            self.readings[-1] = None  # The sum of so many is not tracked.

    def on_backward_failed(self) -> None:
        """Discard the loss of the last backward call, which raised an exception."""
        self.backwards = max(0, self.backwards - 1)
        self.backwards_in_step = max(0, self.backwards_in_step - 1)
        if self.readings:
            self.readings.pop()

    def _loss_of(self, tensors: Any) -> Any:
        if not tensors:
            return None
        if has_active_modes(self._torch):
            with self._session.pause_tracking():
                return None if has_active_modes(self._torch) else self._loss_of(tensors)
        for tensor in tensors:
            if tensor.numel() != 1:
                return None
        if len(tensors) == 1 and not self.with_scaler and not self.with_unknown_scale:
            return tensors[0]  # As in nearly all steps: a shortcut.
        with self._torch.no_grad():
            losses = [unscale(tensor) for tensor in tensors] if self.with_scaler else tensors
            for loss, tensor in zip(losses, tensors):
                if loss is None or (self.with_unknown_scale and loss is tensor):
                    return None
            if len(losses) == 1:
                return losses[0]
            return self._torch.stack([t.detach().reshape(()) for t in losses]).sum()


def count_frames(frame: Any, code: Any) -> int:
    """Count the frames that run `code`, from `frame` outward."""
    count = 0
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count


def install(torch: Any, session: RankSession) -> None:
    """Observe backward calls."""
    session.losses = losses = LossTracker(torch, session)
    session.on_fork.add("loss", losses.forget)
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def observed(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if losses.inside == 0 and "loss" not in session.disabled_parts:
            try:
                losses.on_backward(tensors)
            except Exception as error:
                session.disable_part("loss", error)
        losses.inside += 1
        try:
            return backward(tensors, grad_tensors, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            if losses.inside == 1:
                losses.on_backward_failed()
            raise
        finally:
            losses.inside -= 1

    torch.autograd.backward = observed
