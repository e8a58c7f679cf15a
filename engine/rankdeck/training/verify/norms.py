"""Running statistics of batch norms on one device, where a part of a batch goes through the model in slices.

A strategy keeps those of the slices that its first replica sees, of a pipeline's microbatches together. Here
every norm keeps its inputs, and takes them once more in one piece when the part is done. Read reference.py
next.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.torch_compat.modules import BatchNorm, own_buffers


class NormsOfSlices:
    """Watches the batch norms of a model from now until `update`; `index` is the slice that runs. The first
    `num_normed` slices count."""

    def __init__(self, model: nn.Module, num_normed: int) -> None:
        self.index = 0
        self._num_normed = num_normed
        self._norms = [
            module
            for module in model.modules()
            if isinstance(module, BatchNorm) and module.training and module.track_running_stats
        ]
        self._before = [
            {name: buffer.clone() for name, buffer in own_buffers(norm).items() if buffer is not None}
            for norm in self._norms
        ]
        self._inputs: dict[int, list[dict[int, Tensor]]] = defaultdict(list)
        """Of each norm, by its number: for each call in a forward the inputs by slice."""
        self._hooks = contextlib.ExitStack()
        for number, norm in enumerate(self._norms):
            self._hooks.enter_context(norm.register_forward_pre_hook(self._keep(number)))

    def _keep(self, number: int) -> Any:
        def keep(_norm: nn.Module, args: tuple[Tensor, ...]) -> None:
            calls = self._inputs[number]
            free = next((call for call in calls if self.index not in call), None)
            if free is None:
                calls.append(free := {})
            free[self.index] = args[0].detach()

        return keep

    @torch.no_grad()
    def update(self) -> None:
        """After the last slice: statistics of all that count, in one piece."""
        self._hooks.close()
        for number, norm in enumerate(self._norms):
            for name, value in self._before[number].items():
                norm.get_buffer(name).copy_(value)
            for call in self._inputs[number]:
                counting = [call[index] for index in sorted(call) if index < self._num_normed]
                if counting:
                    norm(torch.cat(counting))
