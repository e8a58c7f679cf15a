"""Handle weights that some or all ranks do not use in a step, although each rank has a slice of them.

    before the reduce-scatter   a weight without a gradient on this rank gets zeros, so that every rank
                                reduces gradients of the same weights
    after the backward pass     ranks compare used weights: a weight that no rank used gets no gradient

All ranks gather blocks together, each rank in the order in which it computes them: if ranks computed
different blocks, slices of one block would be gathered into another block. A check after the backward pass
detects this and raises an error. Read blocks.py first. Source: torch_compat/fsdp.py.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.collectives.grad_sync import reduce_used_flags
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.torch_compat.fsdp import scatter_missing_as_zeros


class UsedWeights:
    """Record of which weights of sharded models a step uses on this rank.

    `replicated` are whole weights, whose gradients are summed over the ranks of `group` after `sync_used`.
    """

    def __init__(
        self, models: Sequence[nn.Module], replicated: Sequence[nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        weights = {weight: None for model in models for weight in model.parameters() if weight.requires_grad}
        self._weights = list(weights)
        self._replicated = [weight for weight in replicated if weight.requires_grad]
        self._group = group
        self._used: set[nn.Parameter] = set()
        self._block_order_hash = 0
        self._pending_check: Tensor | None = None
        for index, model in enumerate(models):
            for name, block in model.named_modules():
                if isinstance(block, FSDPModule):
                    scatter_missing_as_zeros(block, self._used.add)
                    entering = functools.partial(self._record_block, f"{index}.{name}".encode())
                    cast(nn.Module, block).register_forward_pre_hook(entering, prepend=True)

    def _record_block(self, name: bytes, *_: object) -> None:
        """Add the name of a block that is about to be gathered to the hash of the blocks' order."""
        if torch.is_grad_enabled():
            # A running checksum depends on the order and is one number to compare.
            self._block_order_hash = zlib.crc32(name, self._block_order_hash)

    def sync_used(self) -> None:
        """Make all ranks agree on the used weights after a step's backward pass. All ranks of the group call
        this together.

        Weights that no rank used get no gradient; replicated weights that only other ranks used get zeros.

        Raises: ModelError if ranks computed different blocks.
        """
        device = local_part(self._weights[0]).device
        # After backward, because a comparison before each gather would cost one more message per block.
        self._check_block_order(device)
        replicated = set(self._replicated)
        is_used = [
            weight.grad is not None if weight in replicated else weight in self._used
            for weight in self._weights
        ]
        used = reduce_used_flags(is_used, device, self._group)
        for weight, is_used_anywhere in zip(self._weights, used, strict=True):
            if not is_used_anywhere:
                weight.grad = None
            elif weight.grad is None and weight in replicated:
                weight.grad = torch.zeros_like(weight)
        self._used.clear()

    def _check_block_order(self, device: torch.device) -> None:
        """Compare the order of blocks across ranks.

        On a GPU the result is read in the next step, so that this step does not wait for it.
        """
        number = torch.tensor(self._block_order_hash, dtype=torch.int64, device=device)
        self._block_order_hash = 0
        pending, self._pending_check = self._pending_check, _all_equal(number, self._group)
        if device.type == "cpu":
            pending, self._pending_check = self._pending_check, None
        if pending is not None and not bool(pending):
            raise ModelError(
                phrase(
                    "Ranks ran different blocks of the model in the same step, but all ranks "
                    "must gather a block's sharded weights together."
                ),
                code="blocks-differ",
                path="strategy.use",
                advice=phrase(
                    'Run all blocks on every rank, or set strategy.use = "ddp" with '
                    "find_unused_parameters = true."
                ),
                changes={"strategy.use": "ddp", "strategy.find_unused_parameters": True},
            )


def _all_equal(number: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return, as a 0-dim tensor, whether all ranks of the group have the same integer `number`."""
    # The maximum of the negated values is minus the minimum, so one all-reduce finds both.
    both = torch.stack([number, -number])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    return both[0] == -both[1]
