"""Rules for the mesh sizes of the hybrid strategy, checked before a run starts. Nothing here imports torch.

data x shard x stage x tensor = number of devices;  data x shard = number of batch slices
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import Phrase, phrase

AXES = ("data", "shard", "stage", "tensor")
_MAX_CHOICES = 6


def sizes_of(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of every axis; 1 if it is not set."""
    return {axis: int(options.get(axis, 1)) for axis in AXES}


def num_batch_slices(options: Mapping[str, Any]) -> int:
    """Return the number of batch slices; ranks of one pipeline or tensor group share a slice."""
    sizes = sizes_of(options)
    return sizes["data"] * sizes["shard"]


def default_mesh_sizes(num_devices: int) -> dict[str, int]:
    """Return the default mesh: two-stage pipelines if the number of devices is even and above 2, else
    replicas."""
    if num_devices > 2 and num_devices % 2 == 0:
        return {"data": num_devices // 2, "stage": 2}
    return {"data": num_devices}


def mesh_problem(options: Mapping[str, Any], num_devices: int) -> Problem | None:
    """Return a problem with suggested sizes if the product of the sizes is not the number of devices; else
    None."""
    sizes = sizes_of(options)
    product = math.prod(sizes.values())
    if product == num_devices:
        return None
    named = {axis: size for axis, size in sizes.items() if size > 1}
    sizes_text = " x ".join(f"{axis} {size}" for axis, size in named.items()) or "data 1"
    axes = tuple(named) if len(named) > 1 else ("data", *(named or {"stage": 1}))
    # A suggestion needs two axes; with data alone, both would be data.
    axes = tuple(dict.fromkeys(axes)) if len(set(axes)) > 1 else ("data", "stage")
    # Suggest sizes that use all of these axes first.
    choices = sorted(_factors(num_devices, len(axes)), key=lambda sizes: (sizes.count(1), sizes))
    suggestions = [
        ", ".join(f"{axis} = {size}" for axis, size in zip(axes, sizes, strict=True))
        for sizes in choices[:_MAX_CHOICES]
    ]
    if product > 1:
        suggestions.append(f"devices.use = cpu:{product}")
    return Problem(
        "mesh",
        _mesh_message(sizes_text, product, num_devices),
        path=f"strategy.{next(iter(named), axes[0])}",
        advice=phrase("In [strategy], set {choices}.", choices="; or ".join(suggestions)),
        cure={f"strategy.{axis}": size for axis, size in zip(axes, choices[0], strict=True)},
    )


def _mesh_message(sizes: str, mesh_size: int, devices: int) -> Phrase:
    if devices == 1:
        return phrase(
            "The mesh of strategy.use = hybrid needs {sizes} = {places} devices, but there is only 1.",
            sizes=sizes,
            places=mesh_size,
        )
    if mesh_size == 1:
        return phrase(
            "The mesh of strategy.use = hybrid covers {sizes} = 1 device, but there are {devices}.",
            sizes=sizes,
            devices=devices,
        )
    return phrase(
        "The mesh of strategy.use = hybrid needs {sizes} = {places} devices, but there are {devices}.",
        sizes=sizes,
        places=mesh_size,
        devices=devices,
    )


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as an ordered product of `count` factors."""
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in _factors(number // first, count - 1):
                yield (first, *rest)
