"""Named axes over the ranks of a run, and where this rank stands on each.

Rank r of a mesh (data a, stage b) stands at r = data * b + stage: the last axis runs fastest, as in torch's
DeviceMesh. `device_mesh` makes torch's own, with a process group behind every axis; strategies take slices of
one and the same, so that layers cut along two axes know of each other.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rankdeck.config.mesh_sizes import AXES


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

    def lines(self, axis: str) -> list[list[int]]:
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
