"""A context in which strategies build and train on fake tensors, as in a run.

What torch does differently there is in torch_compat/planned.py and ddp.py. Four functions of this engine are
exchanged as well: meshes are made for real, ddp wraps with PlannedDdp, no model is built on "meta", and
Hugging Face's masks are made as in a run. Where DDP cannot be followed, ddp falls back to single's figures
with a set of buckets (see figures.py). Read fake_pass.py first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from rankdeck.planner.values import MASKING
from rankdeck.torch_compat import planned as changes
from rankdeck.torch_compat.ddp import PlannedDdp
from rankdeck.torch_compat.planned import Replaced


@contextlib.contextmanager
def planned(*, like_cuda: bool, initial_values: bool = False) -> Iterator[None]:
    """A context in which strategies build and train on fake tensors, as over NCCL or as over gloo.

    With `initial_values` real tensors do as well: then weights are filled.
    """
    replaced = Replaced()
    try:
        changes.weights_in_place(replaced)
        if not initial_values:
            changes.no_initial_values(replaced)
        changes.meshes_for_real(replaced)
        changes.own_objects_only(replaced)
        _own_functions(replaced)
        if not like_cuda:
            changes.sends_hold(replaced)
        yield
    finally:
        replaced.put_back()


def _own_functions(replaced: Replaced) -> None:
    import rankdeck.parallel.fsdp.blank as blank
    import rankdeck.parallel.mesh
    import rankdeck.strategies.ddp as ddp

    replaced.put(rankdeck.parallel.mesh, "init_device_mesh", changes.for_real(init_device_mesh))
    replaced.put(ddp, "DistributedDataParallel", PlannedDdp)
    # A model on "meta" holds tensors that are not fake; a fake one costs as little.
    replaced.put(blank, "_on_meta", lambda model_fn: model_fn())
    _masks_as_in_a_run(replaced)


def _masks_as_in_a_run(replaced: Replaced) -> None:
    """Hugging Face's masks take fake tensors for a graph that is traced, and are never left out then."""
    import rankdeck.training.user_code as user_code

    build = user_code.build_model

    def built(*args: Any, **kwargs: Any) -> nn.Module:
        model = build(*args, **kwargs)
        masking = sys.modules.get(MASKING)
        if masking is not None and hasattr(masking, "is_tracing"):
            replaced.put(masking, "is_tracing", lambda tensor=None: False)
        return model

    replaced.put(user_code, "build_model", built)
