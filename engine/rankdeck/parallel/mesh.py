"""Named axes over the ranks of a run, and this rank's coordinate on each.

In a mesh (data a, stage b), rank r has r = data * b + stage: the last axis varies fastest, as in torch's
DeviceMesh. `device_mesh` creates torch's own mesh, with a process group per axis. All strategies use slices
of the same mesh, so that torch can relate the axes of a layer that is sharded over two axes.
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
    """Sizes of the mesh axes and this rank's position.

    `sizes` maps each axis to its number of ranks, in the order of AXES; an axis that is left out has size 1.
    """

    sizes: tuple[tuple[str, int], ...]
    rank: int

    @classmethod
    def of(cls, rank: int, **sizes: int) -> Mesh:
        assert set(sizes) <= set(AXES), f"unknown mesh axis in {sorted(sizes)}"
        return cls(tuple((axis, sizes[axis]) for axis in AXES if axis in sizes), rank)

    @property
    def world_size(self) -> int:
        return math.prod(size for _, size in self.sizes)

    @property
    def random_stream(self) -> int:
        """Index of this rank's random stream.

        Ranks whose coordinates on the data, shard or stage axis differ draw different numbers. Ranks along
        the tensor axis draw the same numbers, because replicated activations must agree.
        """
        stream = 0
        for axis in ("data", "shard", "stage"):
            stream = stream * self.size(axis) + self.coordinate(axis)
        return stream

    def size(self, axis: str) -> int:
        return dict(self.sizes).get(axis, 1)

    def coordinate(self, axis: str) -> int:
        """Return this rank's coordinate on the axis, or 0 if the mesh has no such axis."""
        rest = self.rank
        coordinate = 0
        # The last axis varies fastest.
        for name, size in reversed(self.sizes):
            rest, here = divmod(rest, size)
            if name == axis:
                coordinate = here
        return coordinate

    def groups_along(self, axis: str) -> list[list[int]]:
        """Return all groups of ranks along one axis, each in the axis's order."""
        lines: dict[tuple[int, ...], list[int]] = {}
        others = [name for name, _ in self.sizes if name != axis]
        for rank in range(self.world_size):
            mesh = Mesh(self.sizes, rank)
            lines.setdefault(tuple(mesh.coordinate(other) for other in others), []).append(rank)
        return list(lines.values())


def device_mesh(mesh: Mesh, device_type: str) -> DeviceMesh:
    """Return torch's mesh over all ranks, with the axes of `mesh`.

    All ranks call this together. Equal meshes share process groups.
    """
    assert mesh.world_size == dist.get_world_size()
    return _device_mesh(mesh.sizes, device_type, dist.group.WORLD)


@functools.cache
def _device_mesh(sizes: tuple[tuple[str, int], ...], device_type: str, _: dist.ProcessGroup) -> DeviceMesh:
    names = tuple(axis for axis, _ in sizes)
    return init_device_mesh(device_type, tuple(size for _, size in sizes), mesh_dim_names=names)


# Calls to torch that a plan, whose tensors have no memory, has to replace. A run uses `Backend` as it is. The
# planner passes its own subclass (planner/planning_mode.py), so that it plans the very strategies that train.


class Backend:
    """Calls that a run passes straight to torch and that the planner replaces."""

    def build_model(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Build the whole model with its initial weights."""
        return model_fn()

    def build_on_meta(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Build the model on the meta device, or with real tensors if its factory needs them."""
        return build_on_meta(model_fn)

    def device_mesh(self, mesh: Mesh, device_type: str) -> DeviceMesh:
        """Return torch's mesh over all ranks, with a process group per axis."""
        return device_mesh(mesh, device_type)

    def wrap_ddp(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """Wrap a module in DistributedDataParallel, which broadcasts rank 0's weights.

        The module is wrapped at debug level INFO, so that DistributedDataParallel names parameters in its
        errors.
        """
        distributed: Any = dist  # its debug levels have no type stubs
        level = distributed.get_debug_level()
        # At OFF, DDP's errors about parameters give indices only; a level that the user chose is left alone.
        if level == distributed.DebugLevel.OFF:
            distributed.set_debug_level(distributed.DebugLevel.INFO)
        try:
            with without_compiler():
                return DistributedDataParallel(module, **options)
        finally:
            distributed.set_debug_level(level)
