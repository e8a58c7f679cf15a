"""tensor: every rank computes the same batch, each with its slice of every large layer.

    attention     my heads of query, key, value (columns) -> my rows of the output layer -> sum over ranks
    feed-forward  my columns of up                        -> my rows of down             -> sum over ranks

Where: each rank holds 1/n of the split weights with their gradients and optimizer state, and all of the rest
(norms, positions); activations between the two layers of a pair are 1/n, the stream between blocks is whole
(1/n of it too with sequence_parallel). Sent per rank and step: 4 sums per block, two in forward and two in
backward, each 2(n-1)/n x A bytes for A = batch x tokens x width; with a split vocabulary one sum more for
the embedding, and the logits once (a few numbers per token with loss_parallel). Wins: layers too large for
one device, on links as fast as NVLink. Breaks: slow links, since every sum is waited for; heads that do not
divide; what is no Linear or Embedding. Source: Shoeybi et al., "Megatron-LM" (2019).

What is split is data in ../parallel/tensor/plan.py; how is ../parallel/tensor/apply.py. Read ddp.py before,
hybrid.py after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel

from rankdeck.models.blocks import repeated_blocks
from rankdeck.parallel.collectives.counted import CountedCollectives
from rankdeck.parallel.fsdp.blank import BlankModel
from rankdeck.parallel.mesh import Mesh, device_mesh
from rankdeck.parallel.tensor.apply import LayerSplit
from rankdeck.parallel.tensor.gradients import add_up_partial, clip_over_ranks, whole_tensors
from rankdeck.parallel.tensor.loss import over_split_classes
from rankdeck.parallel.tensor.plan import make_plan
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy, call, first_samples


class TensorParallel(Strategy):
    name = "tensor"
    waits_inside = True
    forwards_alone = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._loss_parallel = bool(setup.options.get("loss_parallel"))
        if self._loss_parallel:
            self.loss = over_split_classes(setup.loss)
        self._steps = 0
        self._counted = CountedCollectives()

    def mesh(self) -> Mesh:
        return Mesh.of(self.setup.rank, tensor=self.setup.world_size)

    def reports_loss(self) -> bool:
        """All ranks hold the same loss; one tells it."""
        return self.mesh().coordinate("tensor") == 0

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Block by block: rank 0's weights to all, of which each rank keeps its slices."""
        setup = self.setup
        with contextlib.nullcontext() if setup.ledger is None else setup.ledger.paused():
            blank = BlankModel(
                model_fn,
                rank=setup.rank,
                device=self.device,
                dtype=setup.dtype if setup.precision == "fp64" else None,
            )
        self._module = blank.module
        self._split = LayerSplit(
            blank.module,
            make_plan(blank.module, setup.world_size, setup.options.get("plan")),
            device_mesh(self.mesh(), self.device.type),
            sequence_parallel=bool(setup.options.get("sequence_parallel")),
            loss_parallel=self._loss_parallel,
        )
        for part in (*repeated_blocks(blank.module), blank.module):
            blank.fill(part)
            self._split.split(part)
        self._split.finish()

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        inputs, targets = self.to_device(batch)
        with self._counting(), loss_parallel() if self._loss_parallel else contextlib.nullcontext():
            with self.autocast():
                with self.spans.phase(0, "forward"):
                    outputs = call(self._module, inputs)
                with self.spans.phase(0, "loss"):
                    total, count = self.loss.function(outputs, targets)
                    del outputs
            with self.spans.phase(0, "backward"):
                (total * scale).backward()
        self._steps += last
        return LossSum(total.detach(), count)

    def _counting(self) -> contextlib.AbstractContextManager[object]:
        """The second step is counted: all steps send the same, and the first also settles layouts."""
        return self._counted if self._steps == 1 else contextlib.nullcontext()

    def sync_gradients(self) -> None:
        """Sums of the sequence's parts, which no layer's backward has made. Nothing else is missing."""
        with self.phase("communication"), self.spans.phase(0, "all-reduce"):
            add_up_partial(self._module.parameters(), self._split.partial_gradients(), self._split.mesh)

    def clip(self, max_norm: float) -> Tensor:
        return clip_over_ranks(self._module.parameters(), max_norm, world_size=self.setup.world_size)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Every rank holds the same samples, so all of them are here together."""
        if num_valid == 0:
            return HeldoutSums(0.0, 0.0, None if self.loss.correct is None else 0.0)
        inputs, targets = self.to_device(first_samples(batch, num_valid))
        with self.evaluating():
            return self.heldout_sums(call(self._module, inputs), targets)

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        """Each collective is seen with its bytes; what a ring sends for them is a formula."""
        if self._steps < 2:
            return None
        return "sums inside layers", self._counted.sent_bytes, False

    def weights(self) -> dict[str, Tensor]:
        """Full tensors on rank 0; the other ranks help to put them together and keep none."""
        return whole_tensors(self._module, keep=self.setup.rank == 0)
