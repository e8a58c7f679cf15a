"""Whose storages are known by name: a module's parameters, gradients and buffers, and its optimizer's state.

When following starts they are booked in, so that a late sample knows what was made while nobody followed.
During a followed step the optimizer says when gradients are complete (before its step) and when its state
exists (after it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from rankdeck.memory.ledger import Ledger, Scope


class Watched:
    """One module on one device, and an optimizer if there is one (of these parameters or of more)."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, device: int) -> None:
        self._module = module
        self._optimizer = optimizer
        self._device = device
        self._handles: list[RemovableHandle] = []
        self._step_phase: Scope | None = None

    def start(self, ledger: Ledger) -> None:
        """Book everything in, and listen to the optimizer."""
        ledger.adopt(self._module.parameters(), self._device, "parameters")
        ledger.adopt(self._module.buffers(), self._device, "buffers")
        self._adopt_gradients(ledger)
        if self._optimizer is None:
            return
        self._adopt_state(ledger)

        def before_step(*_: Any) -> None:
            self._adopt_gradients(ledger)
            self._step_phase = ledger.phase("temporary")
            self._step_phase.__enter__()

        def after_step(*_: Any) -> None:
            self._leave_step()
            self._adopt_state(ledger)

        self._handles = [
            self._optimizer.register_step_pre_hook(before_step),
            self._optimizer.register_step_post_hook(after_step),
        ]

    def stop(self, ledger: Ledger) -> None:
        """Stop listening. What no step has named is named here."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._leave_step()
        self._adopt_gradients(ledger)

    def _leave_step(self) -> None:
        if self._step_phase is not None:
            self._step_phase.__exit__()
            self._step_phase = None

    def _parameters(self) -> Iterator[Tensor]:
        if self._optimizer is None:
            yield from self._module.parameters()
        else:
            for group in self._optimizer.param_groups:
                yield from group["params"]

    def _adopt_gradients(self, ledger: Ledger) -> None:
        for parameter in self._parameters():
            if parameter.grad is not None:
                ledger.adopt((parameter.grad,), self._device_of(parameter, ledger), "gradients")

    def _adopt_state(self, ledger: Ledger) -> None:
        assert self._optimizer is not None
        for parameter, state in self._optimizer.state.items():
            tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
            ledger.adopt(tensors, self._device_of(parameter, ledger), "optimizer")

    def _device_of(self, parameter: Tensor, ledger: Ledger) -> int:
        device = ledger.device_of(parameter)
        return self._device if device is None else device
