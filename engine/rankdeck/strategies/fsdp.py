"""fsdp: every rank keeps a slice of every weight, and puts a block together only while it computes with it.

    block's forward:   gather its weights -> compute -> let them go
    block's backward:  gather again -> compute -> scatter the sums of gradients, so that each keeps its slice

Where: on each of n ranks 1/n of weights, gradients and optimizer state, plus one gathered block at a time
(with `reshard` off all of them, from forward to backward) and the root's group: what lies in no block. Sent
per rank and step, for P bytes of weights and G of gradients: (n-1)/n x (2P + G), with `reshard` off
(n-1)/n x (P + G); 2G instead of G on gloo. Accumulated parts gather anew, and hold whole gradients until the
last. With precision = bf16 weights travel and compute in 16 bits, while slices and sums stay fp32. Wins: a
model whose weights, gradients and optimizer state do not fit one device. Breaks: slow links; a model without
repeated blocks, which is gathered whole; ranks that use different weights, unless `find_unused_parameters`.

The model is built without memory except on rank 0's host (parallel/fsdp/blank.py). Source:
torch.distributed.fsdp.fully_shard; Zhao et al., PyTorch FSDP, VLDB 2023. Read ddp.py before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rankdeck.config.catalog import FsdpOptions
from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.collectives.grad_sync import GradientSync
from rankdeck.parallel.collectives.sync_batch_norm import convert_batch_norms
from rankdeck.parallel.fsdp.blocks import reshard_blocks, shard_blocks
from rankdeck.parallel.mesh import Mesh
from rankdeck.parallel.slices import fill_in_slices
from rankdeck.parallel.tensor.gradients import clip_over_ranks, whole_tensors
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy
from rankdeck.strategies.facts import ShardFacts
from rankdeck.torch_compat.dtensors import local_part


class Fsdp(Strategy):
    name = "fsdp"
    forwards_alone = False
    waits_inside = True
    options: FsdpOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._buffers_differ = False

    def mesh(self) -> Mesh:
        return Mesh.of(self.setup.rank, shard=self.setup.world_size)

    def data_shard(self) -> tuple[int, int]:
        mesh = self.mesh()
        return mesh.coordinate("shard"), mesh.size("shard")

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Rank 0's host holds the whole model for a moment; no device ever does."""
        setup, options = self.setup, self.options
        blank = self.blank_model(model_fn)
        if options.sync_batchnorm:
            blank.module = convert_batch_norms(blank.module, on_cpu=setup.is_rehearsal)
        half = setup.precision == "bf16"
        shard = functools.partial(
            shard_blocks,
            mesh=setup.backend.device_mesh(self.mesh(), self.device.type),
            reshard=options.reshard,
            half=half,
            find_unused=options.find_unused_parameters,
        )
        self._whole = fill_in_slices(blank, shard=shard)
        assert isinstance(blank.module, FSDPModule)
        self._module = blank.module
        self._whole_sync = GradientSync()
        backend = str(dist.get_backend())
        self.facts = ShardFacts(
            self._module,
            setup.world_size,
            parts=setup.accumulate,
            reshard=options.reshard,
            half=half,
            backend=backend,
            words=f"gather and scatter ({backend})",
        )

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        # Before the last part gradients add up whole on each rank; then their sums are scattered.
        self._module.set_requires_gradient_sync(last)
        self._buffers_differ = True
        return self.compute(self._module, batch, scale)

    def sync_gradients(self) -> None:
        """Weights that stay whole; all others met in backward."""
        gradients = [local_part(weight.grad) for weight in self._whole if weight.grad is not None]
        if gradients:
            with self.communicating():
                self._whole_sync.sync(gradients)

    def clip(self, max_norm: float) -> Tensor:
        return clip_over_ranks(self._module.parameters(), max_norm, world_size=self.setup.world_size)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """All ranks gather together, then give the gathered weights up again."""
        self._share_buffers()
        sums = self.compute_heldout(self._module, batch, num_valid, together=True)
        reshard_blocks(self._module)
        return sums

    def settle(self) -> None:
        """Any rank may write a buffer into a checkpoint: all have rank 0's."""
        self._share_buffers()

    def _share_buffers(self) -> None:
        """All evaluate with the running statistics that rank 0 will save."""
        buffers = list(self._module.buffers())
        if self._buffers_differ and buffers:
            with self.ledger.phase("communication"):
                broadcast_from_rank_0(buffers)
        self._buffers_differ = False

    def weights(self) -> dict[str, Tensor]:
        """Full tensors on rank 0; the other ranks help to put them together and keep none."""
        return whole_tensors(self._module, keep=self.setup.rank == 0)
