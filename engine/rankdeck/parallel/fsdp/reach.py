"""Which blocks have weights that code outside of them reads: those cannot be groups of their own.

A block's weights are put together while its forward runs, and are slices at any other time. A model that
reads `self.blocks[0].weight` in its own forward, or calls another method of a block than its forward, needs
them longer: they belong to the root's group. It is found by a forward on "meta", of a copy without memory;
what that cannot follow (code that asks for values) fails in the first step. Read blocks.py next.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankdeck.parallel.nested import call, each_tensor, tensors_of


def read_outside(model: nn.Module, blocks: Sequence[nn.Module], inputs: Any) -> list[nn.Module]:
    """The blocks whose weights are read while their forward does not run, with a small batch of inputs.

    All ranks of a run call this together: what rank 0 finds holds for all.
    """
    found = [_find(model, blocks, inputs) if dist.get_rank() == 0 else set()]
    dist.broadcast_object_list(found, src=0)
    return [block for index, block in enumerate(blocks) if index in found[0]]


def _find(model: nn.Module, blocks: Sequence[nn.Module], inputs: Any) -> set[int]:
    reads = _Reads()
    with contextlib.suppress(Exception), torch.no_grad():  # whatever a person's code cannot do without values
        twin = _without_memory(model)
        names = {module: name for name, module in model.named_modules()}
        for index, block in enumerate(blocks):
            reads.watch(twin.get_submodule(names[block]), index)
        blank = each_tensor(inputs, lambda tensor: tensor.to("meta"))
        with reads:
            call(twin, blank)
    return reads.outside


def _without_memory(model: nn.Module) -> nn.Module:
    """A copy of the model whose tensors are all on "meta"."""
    kept = [value for module in model.modules() for value in vars(module).values()]
    plain = [value for value in kept if isinstance(value, Tensor)]
    blank: dict[int, Any] = {id(tensor): tensor.detach().to("meta") for tensor in [*model.buffers(), *plain]}
    for weight in model.parameters():
        blank[id(weight)] = nn.Parameter(weight.detach().to("meta"), requires_grad=False)
    return copy.deepcopy(model, blank)


class _Reads(TorchFunctionMode):
    """Notes which weights go into an operation while the forward of their block does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: set[int] = set()
        self._owners: dict[Tensor, int] = {}
        self._depths: dict[int, int] = {}

    def watch(self, block: nn.Module, index: int) -> None:
        self._owners |= dict.fromkeys(block.parameters(), index)
        self._depths[index] = 0
        block.register_forward_pre_hook(lambda *_: self._step(index, 1), prepend=True)
        block.register_forward_hook(lambda *_: self._step(index, -1))

    def _step(self, index: int, by: int) -> None:
        self._depths[index] += by

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if tensors_of(result):  # sizes, dtypes and devices are those of the whole
            owners = {self._owners[value] for value in tensors_of((args, kwargs)) if value in self._owners}
            self.outside |= {index for index in owners if not self._depths[index]}
        return result
