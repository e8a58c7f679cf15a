"""Whether ranks that hold the same weight, or the same slice of one, have the same numbers in it and in its
gradient.

Rank 0's weights would not show for a step that others went another way. A few numbers per tensor travel.
Read trial.py before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.torch_compat.dtensors import is_dtensor, local_part

_Numbers = tuple[float, float]
"""Of a tensor its norm, and its sum with signs of its own."""


@torch.no_grad()
def apart(module: nn.Module, world_size: int, *, in_gradients: bool) -> dict[str, float]:
    """By name how far ranks are apart, in gradients or in weights, relative to the norm; where they agree to
    the last bit nothing. All ranks of a run call this together."""
    if world_size == 1:
        return {}
    own = list(_numbers(module, in_gradients=in_gradients))
    everyone: list[list[tuple[str, Hashable, _Numbers]]] = [[] for _ in range(world_size)]
    dist.all_gather_object(everyone, own)
    held = defaultdict(list)
    for name, place, numbers in (found for rank in everyone for found in rank):
        held[name, place].append(numbers)
    distances: dict[str, float] = {}
    for (name, _), found in held.items():
        if any(numbers != found[0] for numbers in found):
            distances[name] = max(distances.get(name, 0.0), _distance(found))
    return distances


def _numbers(module: nn.Module, *, in_gradients: bool) -> Iterator[tuple[str, Hashable, _Numbers]]:
    for name, weight in module.named_parameters():
        tensor = weight.grad if in_gradients else weight.detach()
        if tensor is None or tensor.is_sparse:
            continue
        part = local_part(tensor)
        wide = torch.view_as_real(part) if part.is_complex() else part
        flat = (wide if wide.is_floating_point() else wide.double()).reshape(-1)
        signed = flat[2::3].sum(dtype=torch.float64) - flat[::3].sum(dtype=torch.float64)
        norm = torch.linalg.vector_norm(flat, dtype=torch.float64)
        yield name, _place(weight), (float(norm), float(signed))


def _place(weight: Tensor) -> Hashable:
    """Which slice of a weight a rank holds: where it stands along each axis that cuts it."""
    if not is_dtensor(weight):
        return None
    coordinates: Sequence[int] = weight.device_mesh.get_coordinate() or ()
    return tuple(
        coordinate if not placement.is_replicate() else None
        for coordinate, placement in zip(coordinates, weight.placements, strict=False)
    )


def _distance(found: list[_Numbers]) -> float:
    first = found[0]
    largest = max(norm for norm, _ in found)
    distances = [math.dist(first, other) for other in found[1:]]
    return max(distances) / largest if largest > 0 and math.isfinite(largest) else math.inf
