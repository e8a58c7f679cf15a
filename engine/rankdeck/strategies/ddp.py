"""ddp: one process per device, each with a full replica; gradients are summed in buckets, then every rank
takes the same optimizer step.

Where: weights, gradients, optimizer state in full on every device, plus buckets of the gradients' size. Sent
per rank and step, for G bytes of gradients on n ranks: 2(n-1)/n x G with `native` and `ring`, (n-1) x G with
`all-to-all`, and with `reduce-broadcast` (n-1) x G by rank 0 and G by each other rank. 16-bit compression
halves G, PowerSGD reduces it to a few per cent. Wins: whenever the model fits on one device. Breaks: a model
that does not fit; slow links with small batches.

`native` is torch's DistributedDataParallel, which sends buckets while the backward pass is still running. All
other syncs run after the backward pass, in parallel/collectives/grad_sync.py: they are slower for that
reason, but easier to read.

Uneven inputs: all ranks get the same number of training batches (a global batch that does not divide evenly
is refused), so torch's Join is not needed. The ranks' batches may hold different numbers of targets and, in
an epoch's last step, of samples: results are correct because losses are sums. Sequences of different lengths
change no gradient's shape. The last batch of an evaluation may be short or empty on some ranks. A batch norm
sees its rank's slice unless `sync_batchnorm` is set.

Source: Li et al., PyTorch Distributed, VLDB 2020. Read single.py first, fsdp.py next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankdeck.config.catalog import DdpOptions
from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.collectives.ddp_hooks import (
    load_powersgd_tensors,
    powersgd_tensors,
    register_compression_hook,
    single_bucket_mb,
)
from rankdeck.parallel.collectives.grad_sync import (
    GradientSync,
    collect_gradients,
    compressed_bytes,
    require_gradients,
)
from rankdeck.parallel.collectives.sync_batch_norm import convert_batch_norms
from rankdeck.strategies.base import (
    Batch,
    HeldoutSums,
    LossSum,
    Setup,
    Strategy,
    compile_forward,
    place_model,
)
from rankdeck.strategies.facts import DdpFacts, SyncFacts

_MIB = 2**20


class Ddp(Strategy):
    name = "ddp"
    needs_warm_up = True  # DistributedDataParallel rebuilds its buckets after the first backward
    options: DdpOptions
    facts: DdpFacts | SyncFacts

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._ddp: DistributedDataParallel | None = None
        self._sync: GradientSync | None = None
        self._powersgd: Any = None
        self._is_first_microstep = True

    @property
    def supports_sparse_gradients(self) -> bool:
        return self.options.sync == "native"

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Build the model on every rank, then broadcast rank 0's weights and buffers."""
        self.module = place_model(model_fn(), self.setup, self.device)
        if self.options.sync_batchnorm:
            self.module = convert_batch_norms(self.module, on_cpu=self.setup.is_rehearsal)
        if self.options.sync == "native":
            self._wrap_ddp()
        else:
            self._make_explicit_sync()

    def _wrap_ddp(self) -> None:
        """Wrap the model in DistributedDataParallel, which all-reduces each bucket as soon as the backward
        pass has filled it."""
        module, options = self.module, self.options
        with self.ledger.phase("communication"):
            self._ddp = self.setup.backend.wrap_ddp(
                module,
                device_ids=None if self.setup.is_rehearsal else [self.device],
                bucket_cap_mb=single_bucket_mb(module)
                if options.compress == "powersgd"
                else options.bucket_mb,
                find_unused_parameters=options.find_unused_parameters,
                static_graph=options.static_graph,
                gradient_as_bucket_view=options.gradient_as_bucket_view,
            )
        if options.compress != "none":
            self._powersgd = register_compression_hook(self._ddp, options.compress, options.powersgd_rank)
        self._compiled = compile_forward(self._ddp, self.setup)
        self.facts = DdpFacts(self._ddp, options, self.setup.world_size, self.spans)
        if self.ledger.can_track:
            # Before the module's own forward, the wrapper allocates buckets, and again in the second step.
            module.register_forward_pre_hook(lambda *_: self.ledger.end_phase("communication"))
        if self.spans.pace is not None:
            self.spans.pace.pace_backward(module)

    def _make_explicit_sync(self) -> None:
        """Broadcast rank 0's weights and create the gradient sync that `sync_gradients` runs."""
        module, options = self.module, self.options
        self._compiled = compile_forward(module, self.setup)
        with self.ledger.phase("communication"):
            broadcast_from_rank_0([*module.parameters(), *module.buffers()])
        self._sync = GradientSync(
            algorithm=options.sync,
            compress=options.compress,
            bucket_bytes=round(options.bucket_mb * _MIB),
            powersgd_rank=options.powersgd_rank,
        )
        self.facts = SyncFacts(self._sync)

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        if self._ddp is None:
            if self._is_first_microstep:  # as torch's wrapper does
                self.broadcast_buffers()
            # The microstep after a step's last one is the first of the next step.
            self._is_first_microstep = last
            with self.track_forward_state(batch, scale):
                return self.compute(self._compiled, batch, scale)
        # Only the last microstep's backward sends; before it, gradients accumulate on each rank.
        with (
            self.track_forward_state(batch, scale),
            contextlib.nullcontext() if last else self._ddp.no_sync(),
        ):
            # The wrapper divides gradients by the number of ranks, but those of a sum must not be divided.
            sums = self.compute(self._ddp_forward, batch, scale * self.setup.world_size)
            if last and not (self.options.find_unused_parameters or self.options.static_graph):
                # Before this rank joins another collective: the others may wait for its bucket for ever.
                require_gradients(self.module.named_parameters())
            return sums

    def _ddp_forward(self, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self.facts, DdpFacts)
        self.facts.before_forward()
        with self.ledger.phase("communication"):
            return self._compiled(*args, **kwargs)

    def sync_gradients(self) -> None:
        """Sum gradients across ranks, unless DistributedDataParallel has done so in the backward pass."""
        options = self.options
        if self._sync is None:
            return
        gradients = collect_gradients(self.module, find_unused=options.find_unused_parameters)
        num_bytes = compressed_bytes(gradients, options.compress, options.powersgd_rank)
        with self.communication_phase("all-reduce", num_bytes):
            self._sync.sync(gradients)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Evaluate the unwrapped module on this rank's samples, with the buffers that rank 0 will save."""
        self.broadcast_buffers()
        # Not the wrapper: its forward broadcasts buffers, for which the other ranks would wait where this one
        # has no samples.
        return self.compute_heldout(self.module, batch, num_valid)

    def extra_state(self) -> dict[str, Tensor]:
        """Return PowerSGD's state on this rank; empty without PowerSGD."""
        if self._sync is not None:
            return self._sync.state()
        return {} if self._powersgd is None else powersgd_tensors(self._powersgd)

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        if self._sync is not None:
            self._sync.load_state(state, self.device)
        elif self._powersgd is not None:
            load_powersgd_tensors(self._powersgd, state, self.device)
