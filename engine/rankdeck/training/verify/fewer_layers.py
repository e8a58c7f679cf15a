"""A model with a few of its layers of each kind, for the check of one that is too large as it is.

What a strategy does with a layer it does with all others of its class and its shapes. Read scope.py next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from torch import nn

from rankdeck.models.blocks import repeated_blocks


def leave_out_layers(model: nn.Module, most: int) -> int:
    """Take from the model's repeated blocks those that come after `most` of the same kind; how many stay."""
    kinds: Counter[Hashable] = Counter()
    left_out = set()
    blocks = repeated_blocks(model)
    for block in blocks:
        kinds[_kind(block)] += 1
        if kinds[_kind(block)] > most:
            left_out.add(id(block))
    for row in model.modules():
        if isinstance(row, nn.ModuleList | nn.Sequential) and left_out & {id(block) for block in row}:
            stay = {name: block for name, block in row._modules.items() if id(block) not in left_out}
            if isinstance(row, nn.ModuleList):  # which counts its names
                stay = {str(index): block for index, block in enumerate(stay.values())}
            row._modules.clear()
            row._modules.update(stay)
    return len(blocks) - len(left_out)


def _kind(block: nn.Module) -> Hashable:
    tensors = [*block.named_parameters(), *block.named_buffers()]
    trained = tuple(weight.requires_grad for weight in block.parameters())
    return type(block), tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors), trained
