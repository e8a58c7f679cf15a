"""A model put on the device block by block, each block cut as soon as it is there, so that no device ever
holds more than one block beside its slices.

    fill      the values of the block, equal on all ranks   (fsdp/meta_init.py; a stage's lie on the host)
    split     my slice of every large layer, over tensor    (tensor/apply.py)
    shard     my slice of every weight, over shard          (fsdp/blocks.py)

fsdp shards, tensor splits, and hybrid does both: a layer is split as soon as it is filled, and a block is
sharded after its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from rankdeck.parallel.fsdp.blocks import Sharding
from rankdeck.parallel.tensor.apply import LayerSplit


def materialize_sharded(
    roots: Sequence[nn.Module],
    fill: Callable[[nn.Module], None],
    *,
    split: LayerSplit | None = None,
    sharding: Sharding | None = None,
) -> list[nn.Parameter]:
    """Fill and cut the model, or the stages of it that this rank holds, in place.

    `fill(part)` puts a part on the device and leaves alone what of it was filled before. Returns weights that
    every rank along shard holds whole (scalars).
    """

    def prepare(part: nn.Module) -> None:
        if split is not None:
            split.split(part, fill)
        fill(part)

    whole: list[nn.Parameter] = []
    for root in roots:
        if sharding is not None:
            whole += sharding.shard(root, prepare)
        else:
            prepare(root)
    if split is not None:
        split.finish()
    return whole
