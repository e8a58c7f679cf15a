"""A context in which strategies build and train on fake tensors, as in a run.

What torch does differently there is in torch_compat/planned.py and ddp.py. What strategies ask for themselves
they get from `PlannedBackend`: meshes are made for real, ddp wraps with PlannedDdp, no model is built on
"meta", and Hugging Face's masks are made as in a run. Where DDP cannot be followed, ddp falls back to
single's figures with a set of buckets (see figures.py). Read fake_pass.py first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from rankdeck.parallel.backend import Backend
from rankdeck.parallel.mesh import Mesh
from rankdeck.planner.questions import name_modules
from rankdeck.planner.values import MASKING
from rankdeck.torch_compat import planned as changes
from rankdeck.torch_compat.ddp import PlannedDdp
from rankdeck.torch_compat.replaced import Replaced


@contextlib.contextmanager
def planned(
    *, like_cuda: bool, initial_values: bool = False, built: Callable[[], None] = lambda: None
) -> Iterator[Backend]:
    """A context in which strategies build and train on fake tensors, as over NCCL or as over gloo; it gives
    the backend for them. `built` is called whenever a model has been made.

    With `initial_values` real tensors do as well: then weights are filled.
    """
    replaced = Replaced()
    try:
        changes.weights_in_place(replaced)
        if not initial_values:
            changes.no_initial_values(replaced)
        changes.copies_of_shapes(replaced)
        changes.files_of_shapes(replaced)
        changes.meshes_for_real(replaced)
        changes.one_empty_slice(replaced)
        changes.own_objects_only(replaced)
        if not like_cuda:
            changes.sends_hold(replaced)
        yield PlannedBackend(replaced, built)
    finally:
        replaced.put_back()


class PlannedBackend(Backend):
    """What strategies get on fake tensors."""

    def __init__(self, replaced: Replaced, built: Callable[[], None]) -> None:
        self._replaced = replaced
        self._built = built

    def model(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Hugging Face's masks take fake tensors for a graph that is traced, and are never left out then."""
        model = name_modules(changes.without_memory(model_fn()))
        self._built()
        masking = sys.modules.get(MASKING)
        if masking is not None and hasattr(masking, "is_tracing"):
            self._replaced.put(masking, "is_tracing", lambda tensor=None: False)
        return model

    def model_without_memory(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """A model on "meta" holds tensors that are not fake; a fake one costs as little."""
        return changes.without_memory(model_fn())

    def device_mesh(self, mesh: Mesh, device_type: str) -> DeviceMesh:
        made: DeviceMesh = changes.for_real(super().device_mesh)(mesh, device_type)
        return made

    def replicate(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        return PlannedDdp(module, **options)
