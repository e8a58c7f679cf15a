"""What planning a rank imports, imported once and inherited by children that are forked then."""

from __future__ import annotations

import functools
import importlib

from rankdeck.base.garbage import freeze_new_objects
from rankdeck.config.catalog import STRATEGIES

_DISTRIBUTED_MODULES = (
    "torch._dynamo",  # a process group and a pipeline ask for it
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
)


@functools.cache
def preload() -> None:
    """Import torch, and what the plan of a single device needs. The second call does nothing."""
    with freeze_new_objects():
        import torch.fx.experimental.symbolic_shapes  # noqa: F401 - fake tensors import it

        import rankdeck.planner.rank_plan  # noqa: F401


@functools.cache
def preload_strategies() -> None:
    """Import what strategies of many devices need besides, which takes as long again."""
    with freeze_new_objects():
        for name in _DISTRIBUTED_MODULES:
            importlib.import_module(name)
        for card in STRATEGIES.values():
            importlib.import_module(card.target.partition(":")[0])
