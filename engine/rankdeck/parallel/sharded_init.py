"""Materialize a model on the device block by block; split or shard each block as soon as its values are set.

No device ever holds more than one full block in addition to its slices.

    fill      set the block's values, equal on all ranks: with fsdp/meta_init.py, or from the host for
              pipeline stages
    split     keep this rank's slice of every large layer, along the tensor axis    (tensor/apply.py)
    shard     keep this rank's slice of every weight, along the shard axis          (fsdp/blocks.py)

The fsdp strategy shards, the tensor strategy splits, and hybrid does both: it splits each layer as soon as
the layer is filled, and shards a block once all layers of the block are split.
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
    """Fill, split and shard the model, or this rank's stages of it, in place.

    `fill(part)` puts a part on the device and skips modules that are already filled. Return the weights that
    are replicated along the shard axis (scalars and other weights that cannot be sharded).
    """

    def prepare(submodule: nn.Module) -> None:
        if split is not None:
            split.split(submodule, fill)
        fill(submodule)

    replicated: list[nn.Parameter] = []
    for root in roots:
        if sharding is not None:
            replicated += sharding.shard(root, prepare)
        else:
            prepare(root)
    if split is not None:
        split.finish()
    return replicated
