"""Named axes over the ranks of a run, and where this rank stands on each.

Rank r of a mesh (data a, stage b) stands at r = data * b + stage: the last axis runs fastest, as in torch's
DeviceMesh. `device_mesh` makes torch's own, with a process group behind every axis; strategies take slices of
one and the same, so that layers cut along two axes know of each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from rankdeck.config.mesh_sizes import AXES
from rankdeck.parallel.fsdp.meta_init import build_on_meta
from rankdeck.torch_compat.compiler import without_compiler


@dataclass(frozen=True)
class Mesh:
    """`sizes` maps an axis to its number of ranks, in the order of AXES; axes that are left out have one."""

    sizes: tuple[tuple[str, int], ...]
    rank: int

    @classmethod
    def of(cls, rank: int, **sizes: int) -> Mesh:
        assert set(sizes) <= set(AXES), f"unknown axis among {sorted(sizes)}"
        return cls(tuple((axis, sizes[axis]) for axis in AXES if axis in sizes), rank)

    @property
    def world_size(self) -> int:
        return math.prod(size for _, size in self.sizes)

    @property
    def random_stream(self) -> int:
        """Ranks that differ on data, shard or stage draw differently. Along tensor they draw alike, because
        replicated activations must agree."""
        stream = 0
        for axis in ("data", "shard", "stage"):
            stream = stream * self.size(axis) + self.coordinate(axis)
        return stream

    def size(self, axis: str) -> int:
        return dict(self.sizes).get(axis, 1)

    def coordinate(self, axis: str) -> int:
        """This rank's place on the axis, 0 where the mesh has no such axis."""
        rest = self.rank
        place = 0
        for name, size in reversed(self.sizes):
            rest, here = divmod(rest, size)
            if name == axis:
                place = here
        return place

    def groups_along(self, axis: str) -> list[list[int]]:
        """All ranks of the run in lines along one axis, each in the axis' order."""
        lines: dict[tuple[int, ...], list[int]] = {}
        others = [name for name, _ in self.sizes if name != axis]
        for rank in range(self.world_size):
            place = Mesh(self.sizes, rank)
            lines.setdefault(tuple(place.coordinate(other) for other in others), []).append(rank)
        return list(lines.values())


def device_mesh(mesh: Mesh, device_type: str) -> DeviceMesh:
    """Torch's mesh over all ranks with the same axes, made by all of them. Equal meshes share groups."""
    assert mesh.world_size == dist.get_world_size()
    return _device_mesh(mesh.sizes, device_type, dist.group.WORLD)


@functools.cache
def _device_mesh(sizes: tuple[tuple[str, int], ...], device_type: str, _: dist.ProcessGroup) -> DeviceMesh:
    names = tuple(axis for axis, _ in sizes)
    return init_device_mesh(device_type, tuple(size for _, size in sizes), mesh_dim_names=names)


# What strategies ask torch for that a plan on tensors without memory has to make in another way.
#
# A run uses `Backend` as it is. The planner passes one of its own (planner/planning_mode.py), so that the
# very strategies that train are those that are planned.


class Backend:
    """The real thing."""

    def build_model(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """The whole model, with its first weights."""
        return model_fn()

    def build_on_meta(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Its shapes alone, where it can be built so."""
        return build_on_meta(model_fn)

    def device_mesh(self, mesh: Mesh, device_type: str) -> DeviceMesh:
        """torch's mesh over all ranks, with a process group behind every axis."""
        return device_mesh(mesh, device_type)

    def wrap_ddp(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """torch's wrapper, which has given rank 0's weights to all. It knows the parameters by their names:
        an error about them says which."""
        distributed: Any = dist  # whose levels have no types
        level = distributed.get_debug_level()
        if level == distributed.DebugLevel.OFF:
            distributed.set_debug_level(distributed.DebugLevel.INFO)
        try:
            with without_compiler():
                return DistributedDataParallel(module, **options)
        finally:
            distributed.set_debug_level(level)
