"""torch's fully_shard over the blocks of any model, with gradients that are sums, and what it sends.

Each block is a group of its own: its weights are gathered before its forward and let go after it. What lies
in no block (embeddings, head) is the root's group, which stays gathered from forward to backward. A block
whose weight is tied to something outside belongs to the root's group. Read blank.py before.

Source: torch.distributed.fsdp.fully_shard; Rajbhandari et al., "ZeRO" (2020), stage 3.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rankdeck.models.blocks import repeated_blocks
from rankdeck.torch_compat.fsdp import count_unused_as_zero
from rankdeck.torch_compat.modules import BatchNorm, own_parameters

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
"""Weights are gathered in half the bytes; each rank's slice and the sums of gradients stay fp32."""


@dataclass(frozen=True)
class Sharding:
    """How weights are cut over `mesh`: `reshard` lets a block go between its forward and its backward, `half`
    gathers in 16 bits, and with `find_unused` a weight without a gradient counts as zero, so that ranks may
    use different ones."""

    mesh: DeviceMesh
    reshard: bool = True
    half: bool = False
    find_unused: bool = False

    def shard(
        self, model: nn.Module, prepare: Callable[[nn.Module], None] = lambda part: None
    ) -> list[nn.Parameter]:
        """Cut the model's weights, in place; returns those that stay whole on every rank (scalars).

        `prepare(part)` is called before a part is cut (see BlankModel.fill).
        """
        mesh, policy = self.mesh, HALF if self.half else MixedPrecisionPolicy()
        for block in _blocks_apart(model):
            prepare(block)
            _in_order(block)
            self._shard_norms(block)
            ignored = set(_scalars(block))
            fully_shard(
                block, mesh=mesh, reshard_after_forward=self.reshard, mp_policy=policy, ignored_params=ignored
            )
        prepare(model)
        _in_order(model)
        self._shard_norms(model)
        whole = _scalars(model)
        fully_shard(model, mesh=mesh, mp_policy=policy, ignored_params=set(whole))
        for module in sharded_modules(model):
            # A sum needs no division: torch's mean would need the loss to be scaled up first.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            count_unused_as_zero(module, self.find_unused)
        return whole

    def _shard_norms(self, part: nn.Module) -> None:
        """Batch norms are groups of their own under `half`: their weights stay fp32, as their statistics."""
        for module in part.modules() if self.half else ():
            is_cut = isinstance(module, FSDPModule)
            if isinstance(module, BatchNorm) and module.affine and not is_cut and module is not part:
                fully_shard(module, mesh=self.mesh)

    def sent_bytes_per_step(self, model: nn.Module, *, parts: int, backend: str) -> int:
        """What one rank sends for weights and gradients in one step of `parts` forwards and backwards.

        Gathering P bytes costs (n-1)/n x P, twice a part for a block that lets go in between. Gradients are
        scattered once: (n-1)/n x G by NCCL, 2(n-1)/n x G by gloo, which all-reduces them and drops the rest.
        """
        num_ranks, scatter_factor = self.mesh.size(), 2 if backend == "gloo" else 1
        total = 0.0
        for module in [module for module in model.modules() if isinstance(module, FSDPModule)]:
            num_gathers = 2 if module is not model and self.reshard else 1
            travels_as_half = self.half and not isinstance(module, BatchNorm)
            for parameter in _own_parameters(module):
                numel = _padded_numel(parameter, num_ranks)
                gathered = 2 if travels_as_half else parameter.element_size()
                total += parts * num_gathers * numel * gathered
                total += scatter_factor * numel * parameter.element_size() if parameter.requires_grad else 0
        return round((num_ranks - 1) / num_ranks * total)


def _in_order(part: nn.Module) -> None:
    """Weights in the order of their dims (channels_last ones are not), as torch cuts them."""
    for weight in part.parameters():
        if not weight.is_contiguous():
            weight.data = weight.data.contiguous()


def sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """The root and every block that was cut by itself."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def reshard_blocks(model: nn.Module) -> None:
    """Give up all gathered weights, also after a forward alone: `parameters()` are slices again."""
    for module in sharded_modules(model):
        module.reshard()


def _blocks_apart(model: nn.Module) -> list[nn.Module]:
    """Blocks that share no weight with the rest of the model."""
    uses = _num_uses(model)
    blocks = [block for block in repeated_blocks(model) if block is not model]
    inside = [(block, _num_uses(block)) for block in blocks]
    return [block for block, own in inside if own and all(uses[weight] == own[weight] for weight in own)]


def _num_uses(model: nn.Module) -> Counter[nn.Parameter]:
    """How many modules hold each weight."""
    tables = (own_parameters(module) for module in model.modules())
    return Counter(parameter for table in tables for parameter in table.values() if parameter is not None)


def _scalars(part: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in part.parameters() if parameter.ndim == 0]


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Those of a group: of the module and what is inside it, up to the next group."""
    seen: set[nn.Parameter] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for parameter in own_parameters(current).values():
            if parameter is not None and parameter.ndim and parameter not in seen:
                seen.add(parameter)
                yield parameter
        waiting.extend(child for child in current.children() if not isinstance(child, FSDPModule))


def _padded_numel(parameter: nn.Parameter, num_ranks: int) -> int:
    """Numbers of a weight once its rows are filled up to a multiple of the ranks."""
    rows = math.ceil(parameter.shape[0] / num_ranks) * num_ranks
    return rows * math.prod(parameter.shape[1:])
