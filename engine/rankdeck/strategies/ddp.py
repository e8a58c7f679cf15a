"""ddp: one process per device, each with a full replica; gradients meet in buckets, then all step alike.

Where: weights, gradients, optimizer state in full on every device, plus buckets of the gradients' size. Sent
per rank and step, for G bytes of gradients on n ranks: 2(n-1)/n x G by `native` and `ring`, (n-1) x G by
`all-to-all`, and with `reduce-broadcast` (n-1) x G by rank 0 and G by each other. 16-bit compression halves
G, PowerSGD makes it a few per cent. Wins: whenever the model fits one device. Breaks: a model that does not;
slow links with small batches.

`native` is torch's wrapper: its buckets travel while backward still runs. Every other sync is
parallel/collectives/grad_sync.py after backward: slower for that, and readable.

Uneven inputs: training never gives ranks unequal numbers of batches (sizes that do not divide are refused, an
epoch's tail is dropped), so torch's Join has nothing to join. What may differ is what a batch holds: ranks
with different numbers of targets are right by the sum form, sequences of different lengths change no
gradient's shape, and an evaluation's last batch may be short or empty on some ranks. Batch norm sees its
rank's slice unless `sync_batchnorm`.

Source: Li et al., PyTorch Distributed, VLDB 2020. Read single.py before, fsdp.py after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.collectives.ddp_hooks import (
    backward_times,
    compress_with_hook,
    last_sync,
    one_bucket_mb,
    powersgd_tensors,
    put_powersgd_tensors,
    time_every_backward,
)
from rankdeck.parallel.collectives.grad_sync import (
    GradientSync,
    SyncTimes,
    all_reduce_bytes,
    gradients_of,
    travelling_bytes,
)
from rankdeck.parallel.collectives.sync_batch_norm import convert_batch_norms
from rankdeck.profiling.spans import LateSpan
from rankdeck.strategies.base import (
    Batch,
    HeldoutSums,
    LossSum,
    Setup,
    Strategy,
    call,
    compiled,
    first_samples,
    place,
)

_MIB = 2**20


class Ddp(Strategy):
    name = "ddp"
    warms_up = True  # the wrapper orders its buckets anew after its first backward

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options = setup.options
        self._algorithm: str = options.get("sync", "native")
        self._compress: str = options.get("compress", "none")
        self._powersgd_rank: int = options.get("powersgd_rank", 4)
        self._bucket_mb: float = options.get("bucket_mb", 25.0)
        self._find_unused = bool(options.get("find_unused_parameters"))
        self._ddp: DistributedDataParallel | None = None
        self._sync: GradientSync | None = None
        self._powersgd: Any = None
        self._begins_step = True
        self._buffers_differ = False

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Every rank builds; rank 0's weights and buffers then go to all."""
        module = place(model_fn(), self.setup, self.device)
        if self.setup.options.get("sync_batchnorm"):
            module = convert_batch_norms(module, on_cpu=self.setup.is_rehearsal)
        self._module = module
        if self._algorithm == "native":
            self._ddp = self._wrap(module)
            self._compiled = compiled(self._ddp, self.setup)
            self.spans.late = self._late_spans
            if self.spans.pace is not None:
                self.spans.pace.spread_backward(module)
            return
        self._compiled = compiled(module, self.setup)
        with self.phase("communication"):
            broadcast_from_rank_0([*module.parameters(), *module.buffers()])
        self._sync = GradientSync(
            algorithm=self._algorithm,
            compress=self._compress,
            bucket_bytes=round(self._bucket_mb * _MIB),
            powersgd_rank=self._powersgd_rank,
        )

    def _wrap(self, module: nn.Module) -> DistributedDataParallel:
        """Torch's wrapper. Its constructor makes buckets, and its second forward makes them anew."""
        options = self.setup.options
        one_bucket = self._compress == "powersgd"
        with self.phase("communication"):
            ddp = DistributedDataParallel(
                module,
                device_ids=None if self.setup.is_rehearsal else [self.device],
                bucket_cap_mb=one_bucket_mb(module) if one_bucket else self._bucket_mb,
                find_unused_parameters=self._find_unused,
                static_graph=bool(options.get("static_graph")),
                gradient_as_bucket_view=bool(options.get("gradient_as_bucket_view")),
            )
        if self._compress != "none":
            self._powersgd = compress_with_hook(ddp, self._compress, None, self._powersgd_rank)
        if self.setup.ledger is not None:
            ledger = self.setup.ledger
            module.register_forward_pre_hook(lambda *_: ledger.end_phase("communication"))
        return ddp

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        inputs, targets = self.to_device(batch)
        if self._ddp is None:
            self._share_buffers_before(last)
        # Only the last part's backward sends: before it, gradients just add up on each rank.
        waiting = contextlib.nullcontext() if last or self._ddp is None else self._ddp.no_sync()
        with waiting:
            with self.autocast():
                with self.spans.phase(0, "forward"):
                    outputs = self._forward(inputs)
                with self.spans.phase(0, "loss"):
                    total, count = self.loss.function(outputs, targets)
                    del outputs
            # The wrapper divides by the number of ranks; a sum must not be divided.
            divided_by = 1 if self._ddp is None else self.setup.world_size
            with self.spans.phase(0, "backward"):
                (total * (scale * divided_by)).backward()
        self._buffers_differ = True
        return LossSum(total.detach(), count)

    def _forward(self, inputs: Any) -> Any:
        if self._ddp is None:
            return call(self._compiled, inputs)
        if self.spans.is_recording:
            time_every_backward(self._ddp, True)
        with self.phase("communication"):
            return call(self._compiled, inputs)

    def _late_spans(self) -> list[LateSpan]:
        """The wrapper's own all-reduces, which ran under backward; torch tells one forward later."""
        found = None if self._ddp is None else last_sync(self._ddp)
        if self._ddp is not None:
            time_every_backward(self._ddp, False)
        if found is None:
            return []
        num_bytes = travelling_bytes(list(self._module.parameters()), self._compress, self._powersgd_rank)
        return [LateSpan(0, "all-reduce", *found, num_bytes=num_bytes)]

    def _share_buffers_before(self, last: bool) -> None:
        """Rank 0's buffers to all before a step's first part, as torch's wrapper does."""
        if self._begins_step:
            self._share_buffers()
        self._begins_step = last

    def sync_gradients(self) -> None:
        if self._sync is None:
            return
        gradients = gradients_of(self._module, find_unused=self._find_unused)
        num_bytes = travelling_bytes(gradients, self._compress, self._powersgd_rank)
        with self.phase("communication"), self.spans.phase(0, "all-reduce", num_bytes=num_bytes):
            self._sync.sync(gradients)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Each rank runs the plain module on its own samples, all with the buffers that rank 0 will save."""
        self._share_buffers()
        if num_valid == 0:
            return HeldoutSums(0.0, 0.0, None if self.loss.correct is None else 0.0)
        inputs, targets = self.to_device(first_samples(batch, num_valid))
        with self.evaluating():
            return self.heldout_sums(call(self._module, inputs), targets)

    def settle(self) -> None:
        """Any rank may write a buffer into a checkpoint: all have rank 0's."""
        self._share_buffers()

    def _share_buffers(self) -> None:
        buffers = list(self._module.buffers())
        if self._buffers_differ and buffers:
            with self.phase("communication"):
                broadcast_from_rank_0(buffers)
        self._buffers_differ = False

    def extra_state(self) -> dict[str, Tensor]:
        """What PowerSGD left out so far, on this rank."""
        if self._sync is not None:
            return self._sync.state()
        return {} if self._powersgd is None else powersgd_tensors(self._powersgd)

    def put_extra_state(self, state: Mapping[str, Tensor]) -> None:
        if self._sync is not None:
            self._sync.put_state(state, self.device)
        elif self._powersgd is not None:
            put_powersgd_tensors(self._powersgd, state, self.device)

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        """Of gradients: buffers, which travel too where a model has some, are left out."""
        if self._sync is not None:
            return self._sync.describe(), self._sync.sent_bytes, self._sync.is_measured
        gradients: list[Tensor] = [p for p in self._module.parameters() if p.requires_grad]
        num_bytes = travelling_bytes(gradients, self._compress, self._powersgd_rank)
        words = f"native ({dist.get_backend()})" + ("" if self._compress == "none" else f", {self._compress}")
        return words, all_reduce_bytes(num_bytes, self.setup.world_size), False

    def sent_by_peer(self) -> dict[str, int] | None:
        return None if self._sync is None else self._sync.sent_by_peer()

    def sync_times(self) -> SyncTimes | None:
        if self._sync is not None:
            return self._sync.times
        return None if self._ddp is None else backward_times(self._ddp)
