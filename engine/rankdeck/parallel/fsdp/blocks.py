"""torch's fully_shard over the blocks of any model, with gradients that are sums, and what it sends.

Each block is a group of its own: its weights are gathered before its forward and let go after it. What lies
in no block (embeddings, head) is the root's group, which stays gathered from forward to backward. A block
whose weight is tied to something outside, or read there, belongs to the root's group. Read
meta_init.py before.

Source: torch.distributed.fsdp.fully_shard; Rajbhandari et al., "ZeRO" (2020), stage 3.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.overrides import TorchFunctionMode

from rankdeck.models.base import repeated_blocks
from rankdeck.parallel.collectives.broadcast import run_on_rank_0
from rankdeck.parallel.pytree import call_model, map_tensors, tensor_leaves
from rankdeck.torch_compat.dtensors import is_dtensor
from rankdeck.torch_compat.modules import BatchNorm, make_contiguous, own_parameters
from rankdeck.torch_compat.weight_metadata import WeightMetadata, weight_metadata

BF16_POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
"""Weights are gathered in half the bytes; each rank's slice and the sums of gradients stay fp32."""

_OwnedMetadata = tuple[nn.Module, str, WeightMetadata]
"""A weight's owner, its name there, and its marks."""


@dataclass(frozen=True)
class Sharding:
    """How weights are cut over `mesh`: `reshard_after_forward` lets a block go between its forward and its
    backward, and `is_bf16` gathers in 16 bits. `inputs` is a small batch, to see which blocks can be groups
    of their own."""

    mesh: DeviceMesh
    reshard_after_forward: bool = True
    is_bf16: bool = False
    inputs: Any = None

    def shard(
        self, model: nn.Module, prepare: Callable[[nn.Module], None] = lambda part: None
    ) -> list[nn.Parameter]:
        """Cut the model's weights, in place; returns those that stay whole on every rank.

        `prepare(part)` is called before a part is cut (see BlankModel.fill).
        """
        policy = BF16_POLICY if self.is_bf16 else MixedPrecisionPolicy()
        whole: list[nn.Parameter] = []
        blocks = _untied_blocks(model)
        reached = [] if self.inputs is None else blocks_read_outside(model, blocks, self.inputs)
        for block in [block for block in blocks if block not in reached]:
            prepare(block)
            self._shard_norms(block)
            whole += self._shard_part(
                block, mp_policy=policy, reshard_after_forward=self.reshard_after_forward
            )
        prepare(model)
        self._shard_norms(model)
        whole += self._shard_part(model, mp_policy=policy)
        for module in sharded_modules(model):
            # A sum needs no division: torch's mean would need the loss to be scaled up first.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        return whole

    def _shard_part(self, part: nn.Module, **options: Any) -> list[nn.Parameter]:
        """Cut the weights of a part's own group; returns those that stay whole."""
        whole, marks = _prepare_part(part)
        fully_shard(part, mesh=self.mesh, ignored_params=set(whole), **options)
        _restore_metadata(part, marks)
        return whole

    def _shard_norms(self, part: nn.Module) -> None:
        """Batch norms are groups of their own under `is_bf16`: their weights stay fp32, as their
        statistics."""
        for module in list(part.modules()) if self.is_bf16 else ():
            is_cut = isinstance(module, FSDPModule)
            if isinstance(module, BatchNorm) and module.affine and not is_cut and module is not part:
                self._shard_part(module)

    def sent_bytes_per_step(self, model: nn.Module, *, num_microsteps: int, backend: str) -> int:
        """What one rank sends for weights and gradients in one step of `num_microsteps` forwards and
        backwards.

        Gathering P bytes costs (n-1)/n x P, twice a part for a block that lets go in between. Gradients are
        scattered once: (n-1)/n x G by NCCL, 2(n-1)/n x G by gloo, which all-reduces them and drops the rest.
        """
        num_ranks, scatter_factor = self.mesh.size(), 2 if backend == "gloo" else 1
        total = 0.0
        for module in [module for module in model.modules() if isinstance(module, FSDPModule)]:
            num_gathers = 2 if module is not model and self.reshard_after_forward else 1
            travels_as_half = self.is_bf16 and not isinstance(module, BatchNorm)
            for parameter in filter(is_dtensor, (weight for _, _, weight in _group_weights(module))):
                numel = _padded_numel(parameter, num_ranks)
                gathered = 2 if travels_as_half else parameter.element_size()
                total += num_microsteps * num_gathers * numel * gathered
                total += scatter_factor * numel * parameter.element_size() if parameter.requires_grad else 0
        return round((num_ranks - 1) / num_ranks * total)


def _prepare_part(part: nn.Module) -> tuple[list[nn.Parameter], list[_OwnedMetadata]]:
    """Which weights of a part's own group stay whole, and the marks of the others. None is referred to that
    will be cut: it would live beside its slices."""
    own = list(_group_weights(part))
    whole = _unshardable_weights([weight for _, _, weight in own])
    make_contiguous(weight for _, _, weight in own)
    marks = [
        (module, name, weight_metadata(weight)) for module, name, weight in own if weight not in set(whole)
    ]
    return whole, [marked for marked in marks if marked[2]]


def _restore_metadata(part: nn.Module, marks: Sequence[_OwnedMetadata]) -> None:
    """Give slices what their weights were marked with, and gathered weights the gradient hooks as well."""
    if not marks:
        return
    assert isinstance(part, FSDPModule)
    for module, name, of_weight in marks:
        WeightMetadata(of_weight.attributes).copy_to(module.get_parameter(name))
    part.unshard()  # its Parameters are made now, and used from step to step
    for module, name, of_weight in marks:
        of_weight.copy_to(module.get_parameter(name))
    part.reshard()


def sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """The root and every block that was cut by itself."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def reshard_blocks(model: nn.Module) -> None:
    """Give up all gathered weights, also after a forward alone: `parameters()` are slices again."""
    for module in sharded_modules(model):
        module.reshard()


def _untied_blocks(model: nn.Module) -> list[nn.Module]:
    """Blocks that share no weight with the rest of the model."""
    uses = _count_uses(model)
    blocks = [block for block in repeated_blocks(model) if block is not model]
    inside = [(block, _count_uses(block)) for block in blocks]
    return [block for block, own in inside if own and all(uses[weight] == own[weight] for weight in own)]


def _count_uses(model: nn.Module) -> Counter[nn.Parameter]:
    """How many modules hold each weight."""
    tables = (own_parameters(module) for module in model.modules())
    return Counter(parameter for table in tables for parameter in table.values() if parameter is not None)


def _unshardable_weights(weights: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Those of a group that cannot be cut: scalars, empty and complex ones, and what is trained in another
    dtype than most of the group, which travels in one."""
    sizes: Counter[torch.dtype] = Counter()
    for weight in weights:
        if weight.requires_grad and weight.ndim and not weight.is_complex():
            sizes[weight.dtype] += weight.numel()
    most = max(sizes, key=lambda dtype: sizes[dtype], default=None)
    return [
        weight
        for weight in weights
        if not weight.ndim
        or not weight.numel()
        or weight.is_complex()
        or (weight.requires_grad and weight.dtype != most)
    ]


def _group_weights(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Those of a group, each once with an owner and its name there: of the module and what is inside it, up
    to the next group."""
    seen: set[nn.Parameter] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for name, weight in own_parameters(current).items():
            if weight is not None and weight not in seen:
                seen.add(weight)
                yield current, name, weight
        waiting.extend(child for child in current.children() if not isinstance(child, FSDPModule))


def _padded_numel(parameter: nn.Parameter, num_ranks: int) -> int:
    """Numbers of a weight once its rows are filled up to a multiple of the ranks."""
    rows = math.ceil(parameter.shape[0] / num_ranks) * num_ranks
    return rows * math.prod(parameter.shape[1:])


# Which blocks have weights that code outside of them reads: those cannot be groups of their own.
#
# A block's weights are put together while its forward runs, and are slices at any other time. A model that
# reads `self.blocks[0].weight` in its own forward, or calls another method of a block than its forward,
# needs them longer: they belong to the root's group. It is found by a forward on "meta", of a copy without
# memory; what that cannot follow (code that asks for values) fails in the first step.


def blocks_read_outside(model: nn.Module, blocks: Sequence[nn.Module], inputs: Any) -> list[nn.Module]:
    """The blocks whose weights are read while their forward does not run, with a small batch of inputs.

    All ranks of a run call this together: what rank 0 finds holds for all.
    """
    found = run_on_rank_0(lambda: _find_reads(model, blocks, inputs)) or ()
    return [block for index, block in enumerate(blocks) if index in found]


def _find_reads(model: nn.Module, blocks: Sequence[nn.Module], inputs: Any) -> set[int]:
    reads = _ReadTracker()
    with contextlib.suppress(Exception), torch.no_grad():  # whatever a person's code cannot do without values
        twin = _copy_on_meta(model)
        names = {module: name for name, module in model.named_modules()}
        for index, block in enumerate(blocks):
            reads.watch(twin.get_submodule(names[block]), index)
        blank = map_tensors(inputs, lambda tensor: tensor.to("meta"))
        with reads:
            call_model(twin, blank)
    return reads.read_outside


def _copy_on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model whose tensors are all on "meta"."""
    kept = [value for module in model.modules() for value in vars(module).values()]
    plain = [value for value in kept if isinstance(value, Tensor)]
    blank: dict[int, Any] = {id(tensor): tensor.detach().to("meta") for tensor in [*model.buffers(), *plain]}
    for weight in model.parameters():
        blank[id(weight)] = nn.Parameter(weight.detach().to("meta"), requires_grad=False)
    return copy.deepcopy(model, blank)


class _ReadTracker(TorchFunctionMode):
    """Notes which weights go into an operation while the forward of their block does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.read_outside: set[int] = set()
        self._owners: dict[Tensor, int] = {}
        self._forward_depths: dict[int, int] = {}

    def watch(self, block: nn.Module, index: int) -> None:
        self._owners |= dict.fromkeys(block.parameters(), index)
        self._forward_depths[index] = 0
        block.register_forward_pre_hook(lambda *_: self._change_depth(index, 1), prepend=True)
        block.register_forward_hook(lambda *_: self._change_depth(index, -1))

    def _change_depth(self, index: int, by: int) -> None:
        self._forward_depths[index] += by

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if tensor_leaves(result):  # sizes, dtypes and devices are those of the whole
            owners = {self._owners[value] for value in tensor_leaves((args, kwargs)) if value in self._owners}
            self.read_outside |= {index for index in owners if not self._forward_depths[index]}
        return result
