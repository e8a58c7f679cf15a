"""The loss of a step: the sum of what backward was called on since the step before.

`torch.autograd.backward` is what `Tensor.backward` looks up at each call, so that a script's own
`Tensor.backward` stays. A backward inside another (checkpointing) is part of it. Inside an optimizer's step
(a closure) the first one counts. What is called on something that is no scalar has no loss. The optimizer
that steps next takes what has come together. Read steps.py before.
"""

from __future__ import annotations

import functools
import time
import weakref

from .readings import Readings, modes_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session


class Losses:
    """What backward was called on, until an optimizer takes it."""

    def __init__(self, torch: Any, session: Session) -> None:
        self._torch, self._session = torch, session
        self._readings = Readings(torch)
        self.forget()

    def forget(self) -> None:
        self.inside = 0
        """How many backwards run at this moment, one in the other."""
        self.in_step = False
        """Whether an optimizer steps at this moment."""
        self.backwards = 0
        self.backwards_in_step = 0
        self.readings: list[Any] = []
        self.scaled: Any = None
        """The scalar that a gradient scaler made last, weakly, and what it was made of."""

    def take(self) -> tuple[list[Any], int]:
        """What came together, and how often backward ran; empty again."""
        taken = self.readings, self.backwards
        self.readings, self.backwards, self.backwards_in_step, self.scaled = [], 0, 0, None
        return taken

    def called(self, tensors: Any, gradients: Any) -> None:
        """Backward is called on `tensors`."""
        self.backwards += 1
        if self.in_step:
            self.backwards_in_step += 1
            if self.backwards_in_step > 1:
                return
        session = self._session
        if session.active_since is None:
            session.active_since = time.perf_counter()
        session.beat("backward")
        for function in session.on_backward:
            function(tensors)
        if session.sampled and len(self.readings) < 256:
            self.readings.append(self._read(tensors, gradients))

    def _read(self, tensors: Any, gradients: Any) -> Any:
        torch = self._torch
        scaled, self.scaled = self.scaled, None
        if modes_on(torch):
            return None
        found = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if not found or any(tensor.numel() != 1 for tensor in found):
            return None
        if len(found) > 1:
            with torch.no_grad():
                return self._readings.read(torch.stack([tensor.detach().reshape(()) for tensor in found]).sum())
        loss = found[0]
        if scaled is not None:
            scaled_loss, original = scaled
            if scaled_loss() is loss:
                loss = original
            else:  # Something was done to it after it was scaled, as in `scaler.scale(loss) / 4`.
                with torch.no_grad():
                    loss = loss.detach() / (scaled_loss().detach() / original) if scaled_loss() is not None else None
        return None if loss is None else self._readings.read(loss)


def install(torch: Any, session: Session) -> None:
    """Follow backward."""
    session.losses = losses = Losses(torch, session)
    session.on_fork.append(losses.forget)
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def observed(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if losses.inside == 0 and "loss" not in session.parts_off:
            try:
                losses.called(tensors, grad_tensors)
            except Exception as error:
                session.switch_off("loss", error)
        losses.inside += 1
        try:
            return backward(tensors, grad_tensors, *args, **kwargs)
        except BaseException as error:
            # A traceback shows what it would show alone.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise
        finally:
            losses.inside -= 1

    torch.autograd.backward = observed


def follow_scaled(losses: Losses, scaled: Any, original: Any) -> None:
    """A gradient scaler has made `scaled` of `original`."""
    if scaled is not original and getattr(scaled, "numel", lambda: 0)() == 1:
        losses.scaled = weakref.ref(scaled), original.detach()
