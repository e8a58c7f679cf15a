"""fsdp: every rank keeps a shard of every weight, and holds a block's full weights only while it computes
with them.

    block's forward:   all-gather its weights -> compute -> free them
    block's backward:  all-gather again -> compute -> reduce-scatter gradients: each rank keeps its shard

Where: each of n ranks holds 1/n of weights, gradients and optimizer state, the gathered weights of one block
at a time (with `reshard` off, of all blocks until their backward pass), and those of the root's group, which
are the weights outside blocks. Sent per rank and step, for P bytes of weights and G of gradients: (n-1)/n x
(2P + G), with `reshard` off (n-1)/n x (P + G); 2G instead of G on gloo. Each accumulated microstep gathers
again, and gradients stay full until the last microstep. With precision = bf16, weights are sent and used in
16 bits, while shards and sums stay fp32. Wins: a model whose weights, gradients and optimizer state do not
fit on one device. Breaks: slow links; a model without repeated blocks, which is gathered whole; ranks that
compute different blocks; batch norms, which see their rank's slice, unless `sync_batchnorm` is set.

Only rank 0's host holds the built model in memory (parallel/fsdp/meta_init.py). Source:
torch.distributed.fsdp.fully_shard; Zhao et al., PyTorch FSDP, VLDB 2023. Read ddp.py first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.config.catalog import FsdpOptions
from rankdeck.parallel.collectives.grad_sync import GradientSync
from rankdeck.parallel.collectives.sync_batch_norm import convert_batch_norms
from rankdeck.parallel.fsdp.blocks import Sharding, reshard_blocks, sharded_modules
from rankdeck.parallel.fsdp.used_weights import UsedWeights
from rankdeck.parallel.sharded_init import materialize_sharded
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Strategy
from rankdeck.strategies.facts import ShardFacts
from rankdeck.torch_compat.dtensors import local_part


class Fsdp(Strategy):
    name = "fsdp"
    axis = "shard"
    forward_is_local = False
    communicates_in_forward = True
    is_sharded = True
    options: FsdpOptions

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Build and shard the model. Rank 0's host briefly holds the whole model; no device ever does."""
        setup, options = self.setup, self.options
        blank = self.meta_init_model(model_fn)
        if options.sync_batchnorm:
            # Before sharding: on GPUs the conversion creates new modules, which FSDP would not know.
            blank.module = convert_batch_norms(blank.module, on_cpu=setup.is_rehearsal)
        mesh = setup.backend.device_mesh(self.mesh(), self.device.type)
        half = setup.precision == "bf16"
        sharding = Sharding(mesh, options.reshard, half, self.sample_inputs())
        self._replicated = materialize_sharded([blank.module], blank.materialize, sharding=sharding)
        self.module = blank.module
        self._used_weights = UsedWeights([self.module], self._replicated, mesh.get_group())
        self._replicated_sync = GradientSync()
        backend = str(dist.get_backend())
        label = f"all-gather and reduce-scatter ({backend})"
        self.facts = ShardFacts(self.module, sharding, setup.accumulate, backend, label)

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        # Before the last microstep gradients accumulate in full on each rank; then they are reduce-scattered.
        for module in sharded_modules(self.module):
            module.set_requires_gradient_sync(last, recurse=False)
        with self.track_forward_state(batch, scale):
            return self.compute(self.module, batch, scale)

    def sync_gradients(self) -> None:
        """Sum the gradients of unsharded weights; the backward pass has summed those of sharded weights."""
        self._used_weights.sync_used()
        gradients = [local_part(weight.grad) for weight in self._replicated if weight.grad is not None]
        if gradients:
            with self.communication_phase():
                self._replicated_sync.sync(gradients)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Evaluate on all ranks together, because they gather weights from each other; then reshard the
        weights."""
        self.broadcast_buffers()
        sums = self.compute_heldout(self.module, batch, num_valid, runs_on_all_ranks=True)
        # Weights that stay gathered after a forward are freed only in backward, and an evaluation has none.
        reshard_blocks(self.module)
        return sums
