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

import contextlib
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.collectives.grad_sync import GradientSync
from rankdeck.parallel.collectives.sync_batch_norm import convert_batch_norms
from rankdeck.parallel.fsdp.blank import BlankModel
from rankdeck.parallel.fsdp.blocks import reshard_blocks, sent_bytes_per_step, shard_blocks
from rankdeck.parallel.mesh import Mesh, device_mesh
from rankdeck.parallel.tensor.gradients import clip_over_ranks, whole_tensors
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy, call, first_samples
from rankdeck.torch_compat.dtensors import local_part


class Fsdp(Strategy):
    name = "fsdp"
    forwards_alone = False
    waits_inside = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._reshard = bool(setup.options.get("reshard", True))
        self._half = setup.precision == "bf16"
        self._parts = 0
        self._parts_per_step = 1
        self._buffers_differ = False

    def mesh(self) -> Mesh:
        return Mesh.of(self.setup.rank, shard=self.setup.world_size)

    def data_shard(self) -> tuple[int, int]:
        mesh = self.mesh()
        return mesh.coordinate("shard"), mesh.size("shard")

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Rank 0's host holds the whole model for a moment; no device ever does."""
        setup = self.setup
        with contextlib.nullcontext() if setup.ledger is None else setup.ledger.paused():
            blank = BlankModel(
                model_fn,
                rank=setup.rank,
                device=self.device,
                dtype=setup.dtype if setup.precision == "fp64" else None,
            )
        if setup.options.get("sync_batchnorm"):
            blank.module = convert_batch_norms(blank.module, on_cpu=setup.is_rehearsal)
        self._whole = shard_blocks(
            blank.module,
            device_mesh(self.mesh(), self.device.type),
            reshard=self._reshard,
            half=self._half,
            find_unused=bool(setup.options.get("find_unused_parameters")),
            prepare=blank.fill,
        )
        assert isinstance(blank.module, FSDPModule)
        self._module = blank.module
        self._whole_sync = GradientSync()

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        inputs, targets = self.to_device(batch)
        # Before the last part gradients add up whole on each rank; then their sums are scattered.
        self._module.set_requires_gradient_sync(last)
        with self.autocast():
            with self.spans.phase(0, "forward"):
                outputs = call(self._module, inputs)
            with self.spans.phase(0, "loss"):
                total, count = self.loss.function(outputs, targets)
                del outputs
        with self.spans.phase(0, "backward"):
            (total * scale).backward()
        self._buffers_differ = True
        self._parts += 1
        if last:
            self._parts_per_step, self._parts = self._parts, 0
        return LossSum(total.detach(), count)

    def sync_gradients(self) -> None:
        """Weights that stay whole; all others met in backward."""
        gradients = [local_part(weight.grad) for weight in self._whole if weight.grad is not None]
        if gradients:
            with self.phase("communication"), self.spans.phase(0, "all-reduce"):
                self._whole_sync.sync(gradients)

    def clip(self, max_norm: float) -> Tensor:
        return clip_over_ranks(self._module.parameters(), max_norm, world_size=self.setup.world_size)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """All ranks gather together, so a rank whose share is all padding computes too, for nothing."""
        self._share_buffers()
        inputs, targets = self.to_device(first_samples(batch, max(num_valid, 1)))
        with self.evaluating():
            found = self.heldout_sums(call(self._module, inputs), targets)
        reshard_blocks(self._module)
        if num_valid == 0:
            return HeldoutSums(0.0, 0.0, None if self.loss.correct is None else 0.0)
        return found

    def settle(self) -> None:
        """Any rank may write a buffer into a checkpoint: all have rank 0's."""
        self._share_buffers()

    def _share_buffers(self) -> None:
        """All evaluate with the running statistics that rank 0 will save."""
        buffers = list(self._module.buffers())
        if self._buffers_differ and buffers:
            with self.phase("communication"):
                broadcast_from_rank_0(buffers)
        self._buffers_differ = False

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        backend = str(dist.get_backend())
        num_bytes = sent_bytes_per_step(
            self._module,
            self.setup.world_size,
            parts=self._parts_per_step,
            reshard=self._reshard,
            half=self._half,
            backend=backend,
        )
        return f"gather and scatter ({backend})", num_bytes, False

    def weights(self) -> dict[str, Tensor]:
        """Full tensors on rank 0; the other ranks help to put them together and keep none."""
        return whole_tensors(self._module, keep=self.setup.rank == 0)
