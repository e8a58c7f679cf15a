"""Gradients and weights that lie in parts on several ranks: added up where each rank has a share, measured
as one vector, put together under their own names.

The norm of all gradients counts every number once, wherever it lives: each rank adds the squares of what it
holds, divided by how many ranks hold the same, and one sum over all ranks is the square of the norm. That is
right for whole tensors beside DTensors, over any mesh. Read apply.py before.
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
    """Make every gradient that is a share on each rank of the mesh the sum of all shares.

    `partial` are such gradients of whole weights; DTensors say it themselves.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if not is_dtensor(gradient) or not is_dtensor(parameter):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    group = mesh.get_group()
    parts = [local_part(gradient) for gradient in partial]
    apply_in_buckets(parts, lambda flat: dist.all_reduce(flat, group=group))


def num_shards(tensor: Tensor) -> int:
    """Into how many different parts a tensor is cut: 1 for one that every rank holds whole."""
    if not is_dtensor(tensor):
        return 1
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, place in sizes if not place.is_replicate())


def clip_grad_norm_over_ranks(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    world_size: int,
    num_stages: int = 1,
    owners: Mapping[nn.Parameter, int] | None = None,
) -> Tensor:
    """Scale all gradients so that their common norm is at most `max_norm`; returns the norm before.

    Each of `num_stages` holds weights of its own; `owners` says of a weight that lives on several of them
    (a tied one) on how many. Every rank calls this once.
    """
    pairs = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    device = pairs[0][1].device if pairs else torch.device("cpu")
    square = torch.zeros((), dtype=torch.float64, device=device)
    for parameter, gradient in pairs:
        stages = num_stages / (owners or {}).get(parameter, 1)
        holders = world_size / (num_shards(gradient) * stages)
        part = local_part(gradient)
        numbers = torch.view_as_real(part) if part.is_complex() else part
        square += torch.linalg.vector_norm(numbers, dtype=torch.float64) ** 2 / holders
    if world_size > 1:
        dist.all_reduce(square)
    norm = square.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for _, gradient in pairs:
        part = local_part(gradient)
        part.mul_(factor.to(part.dtype))
    return norm


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor with its parts put together, by all ranks that hold some of it; a whole one as it is."""
    if not is_dtensor(tensor):
        return tensor.detach()
    from torch.distributed.tensor import Replicate  # half a second, which whole tensors do not pay

    placements = list(tensor.placements)
    # Slices over shard were cut last, from those over tensor: they are put together first.
    for axis in range(len(placements)):
        placements[axis] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local().detach()


def full_tensors(module: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Weights and persistent buffers with their parts put together, under every name; all ranks call this.

    What was in parts ends on the host: no device needs to hold it whole. Where `keep` is false they are
    dropped one by one.
    """
    weights: dict[str, Tensor] = {}
    put_together: dict[int, Tensor] = {}
    for name, tensor in split_state_dict(module)[0].items():
        if id(tensor) not in put_together:
            together = full_tensor(tensor).cpu() if is_dtensor(tensor) else tensor.detach()
            put_together[id(tensor)] = together if keep else together.new_empty(0)
        if keep:
            weights[name] = put_together[id(tensor)]
    return weights


def apply_gradient_hooks(marks: WeightMetadata, weight: Tensor, gradient: Tensor) -> Tensor | None:
    """What the hooks of a weight make of its first gradient. None where they take it away or change the
    weight: they step it themselves."""
    made = gradient.clone()
    for hook in marks.on_gradient:
        changed = hook(made)
        made = made if changed is None else changed
    twin = nn.Parameter(weight.clone())
    WeightMetadata(marks.attributes).copy_to(twin)
    twin.grad = made.detach()
    for after in marks.after_gradient:
        after(twin)
    is_changed = not bool((twin.detach() == weight).all())
    return None if is_changed else twin.grad


def is_close(ours: Tensor, theirs: Tensor) -> bool:
    """Up to rounding, relative to the largest number."""
    if not ours.numel():
        return True
    bound = 64 * torch.finfo(ours.dtype).eps * float(torch.maximum(ours.abs(), theirs.abs()).max())
    return bool(((ours - theirs).abs() <= bound).all())
