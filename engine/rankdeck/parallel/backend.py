"""What strategies ask torch for that a plan on tensors without memory has to make in another way.

A run uses `Backend` as it is. The planner passes one of its own (planner/planned_torch.py), so that the very
strategies that train are those that are planned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from rankdeck.parallel.fsdp.blank import model_on_meta
from rankdeck.parallel.mesh import Mesh, device_mesh


class Backend:
    """The real thing."""

    def model(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """The whole model, with its first weights."""
        return model_fn()

    def model_without_memory(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Its shapes alone, where it can be built so."""
        return model_on_meta(model_fn)

    def device_mesh(self, mesh: Mesh, device_type: str) -> DeviceMesh:
        """torch's mesh over all ranks, with a process group behind every axis."""
        return device_mesh(mesh, device_type)

    def replicate(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """torch's wrapper, which has given rank 0's weights to all. It knows the parameters by their names:
        an error about them says which."""
        distributed: Any = dist  # whose levels have no types
        level = distributed.get_debug_level()
        if level == distributed.DebugLevel.OFF:
            distributed.set_debug_level(distributed.DebugLevel.INFO)
        try:
            return DistributedDataParallel(module, **options)
        finally:
            distributed.set_debug_level(level)
