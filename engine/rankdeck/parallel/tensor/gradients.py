"""Sum partial gradients, clip gradients by their total norm over all ranks, and gather sharded tensors.

The total norm counts every gradient element once, no matter how many ranks hold it: each rank adds up the
squares of its elements, each divided by the number of ranks that hold that element; the sum over all ranks is
the square of the norm. This is correct for any mix of full tensors and DTensors, on any mesh. Read
apply.py first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rankdeck.parallel.collectives.buckets import apply_in_buckets
from rankdeck.torch_compat.dtensors import is_dtensor, local_part
from rankdeck.torch_compat.modules import split_state_dict
from rankdeck.torch_compat.weight_metadata import WeightMetadata


def reduce_partial_gradients(
    parameters: Iterable[nn.Parameter], partial: Sequence[Tensor], mesh: DeviceMesh
) -> None:
    """Sum every gradient of which each rank of the mesh has only a partial sum.

    `partial` lists those gradients that belong to replicated weights; DTensors already record whether they
    are partial.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if not is_dtensor(gradient) or not is_dtensor(parameter):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    group = mesh.get_group()
    local_gradients = [local_part(gradient) for gradient in partial]
    apply_in_buckets(local_gradients, lambda flat: dist.all_reduce(flat, group=group))


def num_shards(tensor: Tensor) -> int:
    """Return the number of different shards of a tensor: 1 for a tensor that every rank holds in full."""
    if not is_dtensor(tensor):
        return 1
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, placement in sizes if not placement.is_replicate())


def clip_grad_norm_over_ranks(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    world_size: int,
    num_stages: int = 1,
    owners: Mapping[nn.Parameter, int] | None = None,
) -> Tensor:
    """Scale all gradients so that their total norm is at most `max_norm`; return the norm before scaling.

    Each of `num_stages` stages holds its own weights; `owners` maps each tied weight that several stages
    use to the number of these stages. Every rank calls this once.
    """
    pairs = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    device = pairs[0][1].device if pairs else torch.device("cpu")
    square = torch.zeros((), dtype=torch.float64, device=device)
    for parameter, gradient in pairs:
        stages = num_stages / (owners or {}).get(parameter, 1)
        holders = world_size / (num_shards(gradient) * stages)
        local_gradient = local_part(gradient)
        numbers = torch.view_as_real(local_gradient) if local_gradient.is_complex() else local_gradient
        # In fp64, because shares of many ranks are divided and summed.
        square += torch.linalg.vector_norm(numbers, dtype=torch.float64) ** 2 / holders
    if world_size > 1:
        dist.all_reduce(square)
    norm = square.sqrt()
    # The same 1e-6 as in torch.nn.utils.clip_grad_norm_.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for _, gradient in pairs:
        local_gradient = local_part(gradient)
        local_gradient.mul_(factor.to(local_gradient.dtype))
    return norm


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor on all ranks that hold a shard; return a full tensor as it is."""
    if not is_dtensor(tensor):
        return tensor.detach()
    from torch.distributed.tensor import Replicate  # half a second, not needed for full tensors

    placements = list(tensor.placements)
    # Slices along shard were cut last, from those along tensor, so they are gathered first.
    for axis in range(len(placements)):
        placements[axis] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local().detach()


def full_tensors(module: nn.Module, *, should_keep: bool) -> dict[str, Tensor]:
    """Gather weights and persistent buffers, tied ones under each of their names; all ranks call this.

    Gathered tensors are moved to the host, so that no device needs to hold all of them. If `should_keep` is
    false, each tensor is dropped as soon as it is gathered.
    """
    weights: dict[str, Tensor] = {}
    put_together: dict[int, Tensor] = {}
    for name, tensor in split_state_dict(module)[0].items():
        if id(tensor) not in put_together:
            together = full_tensor(tensor).cpu() if is_dtensor(tensor) else tensor.detach()
            put_together[id(tensor)] = together if should_keep else together.new_empty(0)
        if should_keep:
            weights[name] = put_together[id(tensor)]
    return weights


def apply_gradient_hooks(marks: WeightMetadata, weight: Tensor, gradient: Tensor) -> Tensor | None:
    """Apply a weight's hooks, which `marks` lists, to `gradient` and return the result.

    The result is None if the hooks remove the gradient, or update the weight themselves.
    """
    result = gradient.clone()
    for hook in marks.on_gradient:
        changed = hook(result)
        result = result if changed is None else changed
    twin = nn.Parameter(weight.clone())
    WeightMetadata(marks.attributes).copy_to(twin)
    twin.grad = result.detach()
    for after in marks.after_gradient:
        after(twin)
    is_changed = not bool((twin.detach() == weight).all())
    return None if is_changed else twin.grad


def is_close(ours: Tensor, theirs: Tensor) -> bool:
    """Check whether tensors are equal up to rounding, relative to the largest number in either tensor."""
    if not ours.numel():
        return True
    bound = 64 * torch.finfo(ours.dtype).eps * float(torch.maximum(ours.abs(), theirs.abs()).max())
    return bool(((ours - theirs).abs() <= bound).all())
