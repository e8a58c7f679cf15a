"""Which modules of a model repeat: what activation checkpointing wraps and fsdp shards one by one.

A model says so itself (`repeated_blocks()`, see models/base.py); of any other, the children of its largest
list are taken.
"""

from __future__ import annotations

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks in the order of the model; empty where it has no list with weights."""
    own = getattr(model, "repeated_blocks", None)
    if callable(own):
        return list(own())
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module)
    ]
    if not lists:
        return []
    # Of two lists with the same weights the inner one is the list of blocks; it comes later in modules().
    largest = max(reversed(lists), key=lambda module: sum(weight.numel() for weight in module.parameters()))
    return [child for child in largest.children() if any(True for _ in child.parameters())]
