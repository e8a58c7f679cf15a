"""tensor: every rank computes the same batch, each with its slice of every large layer.

    attention     my heads of query, key, value (columns) -> my rows of the output layer -> sum over ranks
    feed-forward  my columns of up                        -> my rows of down             -> sum over ranks

Where: each rank holds 1/n of the split weights with their gradients and optimizer state, and all other
weights (norms, positions) in full. It holds 1/n of the activations between the two layers of a pair, and the
whole residual stream between blocks (1/n with sequence_parallel). Sent per rank and step: 4 sums per block,
two in the forward pass and two in the backward pass, each 2(n-1)/n x A bytes for A = batch x tokens x width;
with a split vocabulary two more sums (the embedding's in the forward pass, the output layer's in the backward
pass), and the logits once (a few numbers per token with loss_parallel). Wins: layers too large for one
device, on links as fast as NVLink. Breaks: slow links, because computation waits for every sum; numbers of
heads that n does not divide; layers other than Linear and Embedding. Source: Shoeybi et al., "Megatron-LM"
(2019).

../parallel/tensor/plan.py decides what is split, and ../parallel/tensor/apply.py splits it. Read ddp.py
first, hybrid.py next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel

from rankdeck.config.catalog import TensorOptions
from rankdeck.parallel.sharded_init import materialize_sharded
from rankdeck.parallel.tensor.apply import LayerSplit
from rankdeck.parallel.tensor.gradients import reduce_partial_gradients
from rankdeck.parallel.tensor.loss import make_loss_parallel
from rankdeck.parallel.tensor.plan import cached_plan
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy
from rankdeck.strategies.facts import CollectiveFacts


class TensorParallel(Strategy):
    name = "tensor"
    axis = "tensor"
    communicates_in_forward = True
    forward_is_local = False
    is_sharded = True
    options: TensorOptions
    facts: CollectiveFacts

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.facts = CollectiveFacts()
        if self.options.loss_parallel:
            self.loss = make_loss_parallel(setup.loss)

    def reports_loss(self) -> bool:
        """Check whether this is rank 0: all ranks have the same loss, and only rank 0 reports it."""
        return self.setup.rank == 0

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Build the model layer by layer: rank 0 broadcasts each layer, and each rank keeps its slices."""
        setup, options = self.setup, self.options
        blank = self.meta_init_model(model_fn)
        self.module = blank.module
        with self.ledger.paused():  # the analysis computes on the CPU, not on virtual devices
            plan = cached_plan(
                setup.analysis, blank.module, setup.world_size, options.plan, self.sample_inputs()
            )
        self._split = LayerSplit(
            blank.module,
            plan,
            setup.backend.device_mesh(self.mesh(), self.device.type),
            options,
        )
        materialize_sharded([blank.module], blank.materialize, split=self._split)

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        split_classes = loss_parallel() if self.options.loss_parallel else contextlib.nullcontext()
        with self.facts.microstep(last=last), split_classes:
            return self.compute(self.module, batch, scale)

    def sync_gradients(self) -> None:
        """Sum, over all ranks, the gradients that cover only a slice of the sequence; all other gradients are
        complete after the backward pass."""
        with self.communication_phase():
            reduce_partial_gradients(
                self.module.parameters(), self._split.partial_gradients(), self._split.mesh
            )

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Evaluate on all ranks together: all have the same samples, and each computes its slice of every
        layer."""
        return self.compute_heldout(self.module, batch, num_valid)
