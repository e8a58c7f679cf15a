"""What a strategy says of its steps beside its mathematics: bytes that it sends, how long its sync takes, how
its pipeline runs, how busy its devices are. The loop asks now and then (training/reporting.py); nothing here
changes what is computed. Skip it on a first reading.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankdeck.config.catalog import DdpOptions
from rankdeck.parallel.collectives.ddp_hooks import last_sync_interval, mean_sync_times, set_backward_timing
from rankdeck.parallel.collectives.grad_sync import (
    GradientSync,
    SyncTimes,
    all_reduce_bytes,
    compressed_bytes,
)
from rankdeck.parallel.collectives.replica_threads import ReplicaThreads
from rankdeck.profiling.spans import LateSpan, PhaseSpan, SpanRecorder

if TYPE_CHECKING:  # seconds of imports, of which a strategy pays only its own
    from rankdeck.parallel.fsdp.blocks import Sharding
    from rankdeck.parallel.pipelining.communication import StageCommunication
    from rankdeck.parallel.pipelining.stages import Traffic
    from rankdeck.parallel.pipelining.versions import WeightVersions


@dataclass(frozen=True)
class SentBytes:
    """What this rank sends per step. `is_measured`: counted rather than by formula; `by_peer`: by the rank
    that receives it, where sends are counted one by one."""

    algorithm: str
    num_bytes: int
    is_measured: bool = False
    by_peer: dict[str, int] | None = None


@dataclass(frozen=True)
class PipelineFacts:
    """How a pipeline runs on one rank.

    `in_flight`: the most microbatches whose activations it held at once. `theory_bubble`: the share of a step
    that the schedule makes ranks wait, None where nothing is flushed. `weight_versions` (the most that it
    held) and `staleness` (updates between the weights that a microbatch saw and those it updated) belong to
    a pipeline without a flush.
    """

    stages: list[int]
    microbatches: int
    in_flight: int
    theory_bubble: float | None = None
    weight_versions: int | None = None
    staleness: int | None = None


class StrategyFacts:
    """What is known of a strategy that sends nothing. Every answer is None where nobody knows."""

    def microstep(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Forward and backward of a part of a step, for those that count in it."""
        return contextlib.nullcontext()

    def sent_bytes(self) -> SentBytes | None:
        return None

    def sync_times(self) -> SyncTimes | None:
        """How long a step's sync takes and how much of it backward hides."""
        return None

    def pipeline(self) -> PipelineFacts | None:
        """How this rank's stages run."""
        return None

    def busy_s(self) -> list[float] | None:
        """CPU seconds that each device's thread has worked; None where the whole rank is one device."""
        return None


class SyncFacts(StrategyFacts):
    """Of a sync after backward, which counts what it sends."""

    def __init__(self, sync: GradientSync, place: str = "") -> None:
        self._sync = sync
        self._suffix = place

    def sent_bytes(self) -> SentBytes:
        """In the last step, message by message; the backend's own sends follow from a formula."""
        sync, peers = self._sync, self._sync.peers
        if sync.algorithm == "native":
            words = _with_compression(f"native ({peers.backend})", sync.compress) + self._suffix
            return SentBytes(words, all_reduce_bytes(sync.compressed_bytes, peers.size))
        words = _with_compression(sync.algorithm, sync.compress) + self._suffix
        pairs = zip(peers.global_ranks, peers.sent_bytes, strict=True)
        by_peer = {str(rank): num_bytes for rank, num_bytes in pairs if num_bytes}
        return SentBytes(words, sum(peers.sent_bytes), is_measured=True, by_peer=by_peer)

    def sync_times(self) -> SyncTimes | None:
        return self._sync.times


def _with_compression(algorithm: str, compress: str) -> str:
    return algorithm if compress == "none" else f"{algorithm}, {compress}"


class DdpFacts(StrategyFacts):
    """Of torch's wrapper, whose all-reduces run under backward: it logs them itself."""

    def __init__(
        self, ddp: DistributedDataParallel, options: DdpOptions, world_size: int, spans: SpanRecorder
    ) -> None:
        self._ddp = ddp
        self._options = options
        self._world_size = world_size
        self._spans = spans
        spans.find_late_spans = self._late_spans

    def before_forward(self) -> None:
        """Have torch time the backward of a step whose spans are recorded."""
        if self._spans.is_recording:
            set_backward_timing(self._ddp, True)

    def _late_spans(self) -> list[LateSpan]:
        """torch tells of a backward one forward later."""
        sync = last_sync_interval(self._ddp)
        set_backward_timing(self._ddp, False)
        return [] if sync is None else [LateSpan(0, "all-reduce", *sync, num_bytes=self._compressed_bytes())]

    def _compressed_bytes(self) -> int:
        gradients: list[Tensor] = [p for p in self._ddp.parameters() if p.requires_grad]
        return compressed_bytes(gradients, self._options.compress, self._options.powersgd_rank)

    def sent_bytes(self) -> SentBytes:
        """Of gradients: buffers, which travel too where a model has some, are left out."""
        num_bytes = all_reduce_bytes(self._compressed_bytes(), self._world_size)
        return SentBytes(
            _with_compression(f"native ({dist.get_backend()})", self._options.compress), num_bytes
        )

    def sync_times(self) -> SyncTimes | None:
        return mean_sync_times(self._ddp)


@dataclass(frozen=True)
class ShardFacts(StrategyFacts):
    """Of weights in slices, by the formula of parallel/fsdp/blocks.py."""

    model: nn.Module
    sharding: Sharding
    num_microsteps: int
    backend: str
    label: str

    def sent_bytes(self) -> SentBytes:
        num_bytes = self.sharding.sent_bytes_per_step(
            self.model, num_microsteps=self.num_microsteps, backend=self.backend
        )
        return SentBytes(self.label, num_bytes)


class CollectiveFacts(StrategyFacts):
    """Of sums inside layers: each collective is seen with its bytes; what a ring sends for them is a formula.

    The second step is counted: all steps send the same, and the first also settles layouts.
    """

    def __init__(self) -> None:
        from rankdeck.parallel.collectives.comm_counter import CollectiveCounter

        self.steps = 0
        self._counter = CollectiveCounter()

    @contextlib.contextmanager
    def microstep(self, *, last: bool) -> Iterator[None]:
        """Forward and backward of a part of a step."""
        with self._counter if self.steps == 1 else contextlib.nullcontext():
            yield
        self.steps += last

    def sent_bytes(self) -> SentBytes | None:
        return SentBytes("sums inside layers", self._counter.sent_bytes) if self.steps > 1 else None


class StageFacts(StrategyFacts):
    """Of a pipeline: counted where tensors are handed to the network; tied weights by formula."""

    def __init__(
        self,
        words: str,
        stages: StageCommunication,
        microbatches: int,
        traffic: Traffic,
        bubble: float = 0.0,
        versions: WeightVersions | None = None,
    ) -> None:
        """`versions` of its weights and their `staleness` are those of a pipeline without a flush."""
        self.steps = 0
        self.staleness: int | None = None
        self._label = words
        self._stages = stages
        self._microbatches = microbatches
        self._traffic = traffic
        self._bubble = bubble
        self._versions = versions

    def sent_bytes(self) -> SentBytes | None:
        if not self.steps:
            return None
        num_bytes = round(self._traffic.sent_bytes / self.steps) + self._stages.tied_bytes()
        return SentBytes(self._label, num_bytes, is_measured=True)

    def pipeline(self) -> PipelineFacts:
        return PipelineFacts(
            stages=self._stages.local_stages,
            microbatches=self._microbatches,
            in_flight=self._traffic.max_in_flight,
            theory_bubble=self._bubble,
            weight_versions=None if self._versions is None else self._versions.max_live,
            staleness=self.staleness,
        )


class FanOutFacts(StrategyFacts):
    """Of a rehearsal's replicas: the threads behind its devices count."""

    def __init__(self, threads: ReplicaThreads) -> None:
        self._threads = threads
        self._steps = self._moved_bytes = 0

    @contextlib.contextmanager
    def microstep(self, *, last: bool) -> Iterator[None]:
        """Forward and backward of a part of a step; what an evaluation moves is no step's."""
        moved = self._threads.devices.moved_bytes
        before = sum(moved.values())
        yield
        self._moved_bytes += sum(moved.values()) - before
        self._steps += last

    def sent_bytes(self) -> SentBytes | None:
        if not self._steps:
            return None
        per_step = round(self._moved_bytes / self._steps)
        return SentBytes("scatter, replicate, gather, reduce", per_step, is_measured=True)

    def busy_s(self) -> list[float]:
        """Device 0's share includes the calling thread: it scatters, gathers, computes the loss and steps."""
        lead, *others = self._threads.busy_s
        return [lead + time.thread_time(), *others]


class LayerSplitFacts(StrategyFacts):
    """Of layers on several devices of one thread: which of them it works for, and what crosses the cuts."""

    def __init__(self, num_devices: int, spans: SpanRecorder, *, is_rehearsal: bool) -> None:
        self.steps = 0
        self.moved_bytes = 0
        self._is_rehearsal = is_rehearsal
        self._busy_s = [0.0] * num_devices
        self._spans = spans
        self._span: PhaseSpan | None = None
        self._device: int | None = None
        self._phase = ""
        self._started_s = 0.0

    @contextlib.contextmanager
    def count_busy(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.switch_to(None)

    def switch_to(self, device: int | None, phase: str = "") -> None:
        """From now on the thread works for `device`; its phase is marked, each stage on its own device."""
        if (device, phase) == (self._device, self._phase):
            return
        self._spans.stop(self._span)
        self._span = None if device is None else self._spans.start(device, phase, stage=device)
        self._phase = phase
        now_s = time.thread_time()
        if self._device is not None:
            self._busy_s[self._device] += now_s - self._started_s
        self._device, self._started_s = device, now_s

    def sent_bytes(self) -> SentBytes | None:
        if len(self._busy_s) == 1 or self.steps == 0:
            return None
        per_step = round(self.moved_bytes / self.steps)
        return SentBytes("activations and their gradients", per_step, is_measured=True)

    def busy_s(self) -> list[float] | None:
        """By stage of forward and backward; the optimizer's time is nobody's."""
        return self._busy_s if self._is_rehearsal else None


class HybridFacts(StrategyFacts):
    """Of several axes: what each of them sends, added up; by formula unless all of it was counted."""

    def __init__(self, axes: list[StrategyFacts], collectives: CollectiveFacts) -> None:
        self._axes = axes
        self._collectives = collectives

    def sent_bytes(self) -> SentBytes | None:
        """None before the second step is over: some axes count it."""
        axes = [sent for axis in self._axes if (sent := axis.sent_bytes()) is not None]
        if self._collectives.steps < 2 or not axes:
            return None
        return SentBytes(
            "; ".join(sent.algorithm for sent in axes),
            sum(sent.num_bytes for sent in axes),
            all(sent.is_measured for sent in axes),
        )

    def pipeline(self) -> PipelineFacts | None:
        return next((facts for axis in self._axes if (facts := axis.pipeline()) is not None), None)
