"""A model filled with rank 0's weights block by block, each block cut as soon as it is there, so that no
device ever holds more than one block beside its slices.

    fill      rank 0's values of the block to all ranks     (fsdp/blank.py)
    split     my slice of every large layer, over tensor    (tensor/apply.py)
    shard     my slice of every weight, over shard          (fsdp/blocks.py)

fsdp shards, tensor splits, and hybrid does both: what is split is sharded after it.
"""

from __future__ import annotations

from torch import nn

from rankdeck.models.blocks import repeated_blocks
from rankdeck.parallel.fsdp.blank import BlankModel
from rankdeck.parallel.fsdp.blocks import Sharding
from rankdeck.parallel.tensor.apply import LayerSplit


def fill_in_slices(
    blank: BlankModel,
    *,
    split: LayerSplit | None = None,
    sharding: Sharding | None = None,
) -> list[nn.Parameter]:
    """Fill and cut the model, in place; returns weights that every rank along shard holds whole (scalars)."""

    def prepare(part: nn.Module) -> None:
        blank.fill(part)
        if split is not None:
            split.split(part)

    whole: list[nn.Parameter] = []
    if sharding is not None:
        whole = sharding.shard(blank.module, prepare)
    else:
        for part in (*repeated_blocks(blank.module), blank.module):
            prepare(part)
    if split is not None:
        split.finish()
    return whole
