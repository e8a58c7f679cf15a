"""torch's fully_shard on the blocks of any model, with summed gradients, and the bytes that it sends.

Each block is a group of its own: its weights are gathered before its forward pass and freed afterwards.
Weights outside of blocks (embeddings, head) belong to the root's group, which stays gathered from the forward
to the backward pass. The root's group also has the weights of a block if other parts of the model share them
or read them. Read meta_init.py first.

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
"""Mixed precision policy that gathers weights in bf16, which halves the bytes sent; each rank's slice and the
gradient sums stay fp32."""

_OwnedMetadata = tuple[nn.Module, str, WeightMetadata]
"""The module that owns a weight, the weight's name in that module, and its metadata."""


@dataclass(frozen=True)
class Sharding:
    """Settings for sharding weights across the ranks of `mesh`.

    `reshard_after_forward` frees a block's weights between its forward and its backward pass; `is_bf16`
    gathers weights in 16 bits. `inputs` is a small batch used to find which blocks can be groups of their
    own.
    """

    mesh: DeviceMesh
    reshard_after_forward: bool = True
    is_bf16: bool = False
    inputs: Any = None

    def shard(
        self, model: nn.Module, prepare: Callable[[nn.Module], None] = lambda module: None
    ) -> list[nn.Parameter]:
        """Shard the model's weights in place; return those that stay replicated on every rank.

        `prepare(module)` is called before a module is sharded (see MetaInitModel.materialize).
        """
        policy = BF16_POLICY if self.is_bf16 else MixedPrecisionPolicy()
        replicated: list[nn.Parameter] = []
        # A tied weight would be gathered by one group and read by another.
        blocks = _untied_blocks(model)
        reached = [] if self.inputs is None else blocks_read_outside(model, blocks, self.inputs)
        # Blocks before the root, whose group takes all weights that no other group has.
        for block in [block for block in blocks if block not in reached]:
            prepare(block)
            self._shard_norms(block)
            replicated += self._shard_part(
                block, mp_policy=policy, reshard_after_forward=self.reshard_after_forward
            )
        prepare(model)
        self._shard_norms(model)
        replicated += self._shard_part(model, mp_policy=policy)
        for module in sharded_modules(model):
            # A sum needs no division: torch's mean would need the loss to be scaled up first. The factor
            # alone makes gloo use a premultiplied sum, which it lacks, so the plain sum is forced.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        return replicated

    def _shard_part(self, submodule: nn.Module, **options: Any) -> list[nn.Parameter]:
        """Shard the weights of the FSDP group of `submodule`; return the weights that stay replicated."""
        replicated, marks = _prepare_part(submodule)
        fully_shard(submodule, mesh=self.mesh, ignored_params=set(replicated), **options)
        _restore_metadata(submodule, marks)
        return replicated

    def _shard_norms(self, submodule: nn.Module) -> None:
        """Make each batch norm an FSDP group of its own if `is_bf16`, so that its weights stay fp32 like its
        statistics."""
        for module in list(submodule.modules()) if self.is_bf16 else ():
            is_cut = isinstance(module, FSDPModule)
            if isinstance(module, BatchNorm) and module.affine and not is_cut and module is not submodule:
                self._shard_part(module)

    def sent_bytes_per_step(self, model: nn.Module, *, num_microsteps: int, backend: str) -> int:
        """Return the bytes that one rank sends for weights and gradients in a step of `num_microsteps`
        microsteps.

        Gathering P bytes of weights costs (n-1)/n x P, twice per microstep for a block that is freed after
        its forward pass. G bytes of gradients are reduce-scattered once: (n-1)/n x G with NCCL, 2(n-1)/n x G
        with gloo, which all-reduces all gradients and drops the other ranks' slices.
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


def _prepare_part(submodule: nn.Module) -> tuple[list[nn.Parameter], list[_OwnedMetadata]]:
    """Return the replicated weights of the FSDP group of `submodule`, and the metadata of its other weights.

    The metadata does not reference any weight that will be sharded: a reference would keep the whole weight
    in memory next to its slices.
    """
    group_weights = list(_group_weights(submodule))
    replicated = _unshardable_weights([weight for _, _, weight in group_weights])
    make_contiguous(weight for _, _, weight in group_weights)
    marks = [
        (module, name, weight_metadata(weight))
        for module, name, weight in group_weights
        if weight not in set(replicated)
    ]
    return replicated, [marked for marked in marks if marked[2]]


def _restore_metadata(submodule: nn.Module, marks: Sequence[_OwnedMetadata]) -> None:
    """Copy the original weights' attributes to their slices, and the attributes and gradient hooks to the
    gathered weights."""
    if not marks:
        return
    assert isinstance(submodule, FSDPModule)
    for module, name, of_weight in marks:
        WeightMetadata(of_weight.attributes).copy_to(module.get_parameter(name))
    submodule.unshard()  # creates its Parameters, which are reused in every step
    for module, name, of_weight in marks:
        of_weight.copy_to(module.get_parameter(name))
    submodule.reshard()


def sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """Iterate over the modules that are FSDP groups of their own: root, blocks and, in bf16, batch norms."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def reshard_blocks(model: nn.Module) -> None:
    """Free all gathered weights, even after a forward pass without a backward pass, so that `parameters()`
    returns slices again."""
    for module in sharded_modules(model):
        module.reshard()


def _untied_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that share no weight with the rest of the model."""
    uses = _count_uses(model)
    blocks = [block for block in repeated_blocks(model) if block is not model]
    inside = [(block, _count_uses(block)) for block in blocks]
    return [
        block
        for block, block_uses in inside
        if block_uses and all(uses[weight] == block_uses[weight] for weight in block_uses)
    ]


def _count_uses(model: nn.Module) -> Counter[nn.Parameter]:
    """Count, for each weight, the modules that have it as their own parameter."""
    tables = (own_parameters(module) for module in model.modules())
    return Counter(parameter for table in tables for parameter in table.values() if parameter is not None)


def _unshardable_weights(weights: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return those of a group's `weights` that cannot be sharded.

    These are scalars, empty and complex weights, and trainable weights whose dtype differs from that of most
    of the group, which is gathered in one dtype.
    """
    sizes: Counter[torch.dtype] = Counter()
    for weight in weights:
        if weight.requires_grad and weight.ndim and not weight.is_complex():
            sizes[weight.dtype] += weight.numel()
    main_dtype = max(sizes, key=lambda dtype: sizes[dtype], default=None)
    return [
        weight
        for weight in weights
        if not weight.ndim
        or not weight.numel()
        or weight.is_complex()
        or (weight.requires_grad and weight.dtype != main_dtype)
    ]


def _group_weights(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield each of a group's weights once, with a module that owns it and its name in that module.

    The group contains the module and its descendants, down to the next FSDP group.
    """
    visited: set[nn.Parameter] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for name, weight in own_parameters(current).items():
            if weight is not None and weight not in visited:
                visited.add(weight)
                yield current, name, weight
        waiting.extend(child for child in current.children() if not isinstance(child, FSDPModule))


def _padded_numel(parameter: nn.Parameter, num_ranks: int) -> int:
    """Return a weight's numel with its rows padded to a multiple of `num_ranks`."""
    # fully_shard cuts along the first dim and pads it.
    rows = math.ceil(parameter.shape[0] / num_ranks) * num_ranks
    return rows * math.prod(parameter.shape[1:])


# Blocks whose weights are read by code outside of them cannot be groups of their own. A block's weights are
# gathered while its forward runs, and are slices at any other time. A model that reads
# `self.blocks[0].weight` in its own forward, or calls a method of a block other than its forward, needs them
# longer: they belong to the root's group. A forward pass of a copy on "meta" detects this. Models that cannot
# run on "meta" (code that reads values) fail in the first step.


def blocks_read_outside(model: nn.Module, blocks: Sequence[nn.Module], inputs: Any) -> list[nn.Module]:
    """Run the model on `inputs`, a small batch; return each block whose weights are read outside of the
    block's own forward pass.

    All ranks of a run call this together and get rank 0's result.
    """
    indices = run_on_rank_0(lambda: _find_reads(model, blocks, inputs)) or ()
    return [block for index, block in enumerate(blocks) if index in indices]


def _find_reads(model: nn.Module, blocks: Sequence[nn.Module], inputs: Any) -> set[int]:
    reads = _ReadTracker()
    with contextlib.suppress(Exception), torch.no_grad():  # the user's code may fail without values
        twin = _copy_on_meta(model)
        names = {module: name for name, module in model.named_modules()}
        for index, block in enumerate(blocks):
            reads.watch(twin.get_submodule(names[block]), index)
        blank = map_tensors(inputs, lambda tensor: tensor.to("meta"))
        with reads:
            call_model(twin, blank)
    return reads.read_outside


def _copy_on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of the model with all tensors on "meta"."""
    attributes = [value for module in model.modules() for value in vars(module).values()]
    plain = [value for value in attributes if isinstance(value, Tensor)]
    blank: dict[int, Any] = {id(tensor): tensor.detach().to("meta") for tensor in [*model.buffers(), *plain]}
    for weight in model.parameters():
        blank[id(weight)] = nn.Parameter(weight.detach().to("meta"), requires_grad=False)
    return copy.deepcopy(model, blank)


class _ReadTracker(TorchFunctionMode):
    """Function mode that records blocks whose weights are read outside of the block's own forward pass."""

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
        if tensor_leaves(result):  # a slice has the sizes, dtype and device of the full weight
            owners = {self._owners[value] for value in tensor_leaves((args, kwargs)) if value in self._owners}
            self.read_outside |= {index for index in owners if not self._forward_depths[index]}
        return result
