"""A rank of ddp whose gradients never meet: it still trains, and computes something else."""

from __future__ import annotations

from unittest import mock

from rankdeck.strategies.base import Batch, LossSum
from rankdeck.strategies.ddp import Ddp
from rankdeck.training import worker

_synced_forward_backward = Ddp.forward_backward


def _unsynced_forward_backward(self: Ddp, batch: Batch, scale: float, *, last: bool) -> LossSum:
    return _synced_forward_backward(self, batch, scale, last=False)


if __name__ == "__main__":
    with mock.patch.object(Ddp, "forward_backward", _unsynced_forward_backward):
        worker.main()
