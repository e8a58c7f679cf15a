"""Label a module's parameters, gradients and buffers, and its optimizer's state, in the ledger.

These tensors are added when tracking starts, so that a sampled step late in the run includes those that were
created while tracking was off. During a tracked step, hooks run before the optimizer's step, when the
gradients are complete, and after it, when the optimizer's state exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .scopes import Scope
from .storages import Storages

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle


class WatchedModule:
    """A module and, if there is one, its optimizer, which may also update parameters of other modules."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._module = module
        self._optimizer = optimizer
        self._handles: list[RemovableHandle] = []
        self._step_phase: Scope | None = None

    def start(self, storages: Storages, phase: Callable[[str], Scope]) -> None:
        """Add the tensors to `storages`, and register hooks on the optimizer; `phase(kind)` returns the Scope
        in which the optimizer's step runs."""
        storages.adopt(self._module.parameters(), 0, "parameters")
        storages.adopt(self._module.buffers(), 0, "buffers")
        self._adopt_gradients(storages)
        if self._optimizer is None:
            return
        self._adopt_state(storages)

        def before_step(*_: Any) -> None:
            self._adopt_gradients(storages)
            self._step_phase = phase("temporary")
            # Not a with block, because the phase starts in one hook and ends in another.
            self._step_phase.__enter__()

        def after_step(*_: Any) -> None:
            self._exit_step_phase()
            self._adopt_state(storages)

        self._handles = [
            self._optimizer.register_step_pre_hook(before_step),
            self._optimizer.register_step_post_hook(after_step),
        ]

    def stop(self, storages: Storages) -> None:
        """Remove the hooks, and label the gradients that no optimizer step has labelled."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._exit_step_phase()
        self._adopt_gradients(storages)

    def _exit_step_phase(self) -> None:
        if self._step_phase is not None:
            self._step_phase.__exit__()
            self._step_phase = None

    def _parameters(self) -> Iterator[Tensor]:
        if self._optimizer is None:
            yield from self._module.parameters()
        else:
            # The optimizer may also step parameters of other modules, whose gradients count too.
            for group in self._optimizer.param_groups:
                yield from group["params"]

    def _adopt_gradients(self, storages: Storages) -> None:
        for parameter in self._parameters():
            if parameter.grad is not None:
                storages.adopt((parameter.grad,), storages.device_of(parameter) or 0, "gradients")

    def _adopt_state(self, storages: Storages) -> None:
        assert self._optimizer is not None
        for parameter, state in self._optimizer.state.items():
            tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
            storages.adopt(tensors, storages.device_of(parameter) or 0, "optimizer")
