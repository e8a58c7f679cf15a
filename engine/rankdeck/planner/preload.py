"""Import, before forking, the modules that planning a rank needs, so that child processes inherit them."""

from __future__ import annotations

import functools
import importlib

from rankdeck.base.garbage import freeze_new_objects
from rankdeck.config.catalog import STRATEGIES

_DISTRIBUTED_MODULES = (
    "torch._dynamo",  # process groups and pipelines import it
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
)


@functools.cache
def preload() -> None:
    """Import torch, and the modules for planning a single device. A second call does nothing."""
    with freeze_new_objects():
        import torch.fx.experimental.symbolic_shapes  # noqa: F401 - fake tensors import it

        import rankdeck.planner.rank_plan  # noqa: F401


@functools.cache
def preload_strategies() -> None:
    """Import the additional modules that multi-device strategies need, which takes as long as `preload`."""
    with freeze_new_objects():
        for name in _DISTRIBUTED_MODULES:
            importlib.import_module(name)
        for card in STRATEGIES.values():
            importlib.import_module(card.target.partition(":")[0])
