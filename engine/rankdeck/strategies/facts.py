"""Report facts about a strategy's steps: bytes sent, sync times, pipeline metrics, and how busy devices are.

The training loop asks for these facts at intervals (training/reporting.py); nothing here changes what is
computed. Skip this file on a first reading.
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

if TYPE_CHECKING:  # these imports take seconds; each strategy imports only its own
    from rankdeck.parallel.fsdp.blocks import Sharding
    from rankdeck.parallel.pipelining.communication import StageCommunication
    from rankdeck.parallel.pipelining.stages import Traffic
    from rankdeck.parallel.pipelining.versions import WeightVersions


@dataclass(frozen=True)
class SentBytes:
    """Bytes that this rank sends per step.

    `is_measured` means that bytes are counted rather than computed by formula. `by_peer` maps each receiving
    rank to the bytes sent to it, if sends are counted one by one.
    """

    algorithm: str
    num_bytes: int
    is_measured: bool = False
    by_peer: dict[str, int] | None = None


@dataclass(frozen=True)
class PipelineFacts:
    """Stages and schedule of a pipeline on one rank.

    `in_flight`: the largest number of microbatches whose activations the rank held at once. `theory_bubble`:
    the share of a step that ranks spend waiting according to the schedule; None for a pipeline without a
    flush. Only such a pipeline has `weight_versions` (the largest number of versions held at once) and
    `staleness` (the number of updates between the weights that a microbatch used and those that it updated).
    """

    stages: list[int]
    microbatches: int
    in_flight: int
    theory_bubble: float | None = None
    weight_versions: int | None = None
    staleness: int | None = None


class StrategyFacts:
    """Facts about a strategy that sends nothing. A method returns None if its value is unknown."""

    def microstep(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Wrap a microstep's forward and backward pass, in which some subclasses count the bytes moved."""
        return contextlib.nullcontext()

    def sent_bytes(self) -> SentBytes | None:
        return None

    def sync_times(self) -> SyncTimes | None:
        """Return the duration of a step's gradient sync, and how much of that overlaps with the backward
        pass."""
        return None

    def pipeline(self) -> PipelineFacts | None:
        """Return the stages and schedule of this rank's pipeline."""
        return None

    def busy_s(self) -> list[float] | None:
        """Return the CPU seconds of each device's thread; None if the rank drives a single device."""
        return None


class SyncFacts(StrategyFacts):
    """Facts about a gradient sync that runs after the backward pass and counts the bytes that it sends."""

    def __init__(self, sync: GradientSync, suffix: str = "") -> None:
        self._sync = sync
        self._suffix = suffix

    def sent_bytes(self) -> SentBytes:
        """Return the bytes of the last step: counted message by message, or computed by formula for the
        backend's own collectives."""
        sync, peers = self._sync, self._sync.peers
        if sync.algorithm == "native":
            label = _with_compression(f"native ({peers.backend})", sync.compress) + self._suffix
            return SentBytes(label, all_reduce_bytes(sync.compressed_bytes, peers.size))
        label = _with_compression(sync.algorithm, sync.compress) + self._suffix
        pairs = zip(peers.global_ranks, peers.sent_bytes, strict=True)
        by_peer = {str(rank): num_bytes for rank, num_bytes in pairs if num_bytes}
        return SentBytes(label, sum(peers.sent_bytes), is_measured=True, by_peer=by_peer)

    def sync_times(self) -> SyncTimes | None:
        return self._sync.times


def _with_compression(algorithm: str, compress: str) -> str:
    return algorithm if compress == "none" else f"{algorithm}, {compress}"


class DdpFacts(StrategyFacts):
    """Facts about torch's DistributedDataParallel, whose all-reduces overlap with the backward pass; torch
    logs their times."""

    def __init__(
        self, ddp: DistributedDataParallel, options: DdpOptions, world_size: int, spans: SpanRecorder
    ) -> None:
        self._ddp = ddp
        self._options = options
        self._world_size = world_size
        self._spans = spans
        spans.find_late_spans = self._late_spans

    def before_forward(self) -> None:
        """Make torch time this step's backward pass if the step's spans are recorded."""
        if self._spans.is_recording:
            set_backward_timing(self._ddp, True)

    def _late_spans(self) -> list[LateSpan]:
        """Return the sync span of the last backward pass, which torch reports in the next forward pass."""
        sync = last_sync_interval(self._ddp)
        # Only steps with recorded spans are timed.
        set_backward_timing(self._ddp, False)
        return [] if sync is None else [LateSpan(0, "all-reduce", *sync, num_bytes=self._compressed_bytes())]

    def _compressed_bytes(self) -> int:
        gradients: list[Tensor] = [p for p in self._ddp.parameters() if p.requires_grad]
        return compressed_bytes(gradients, self._options.compress, self._options.powersgd_rank)

    def sent_bytes(self) -> SentBytes:
        """Return the bytes of gradients; the buffers that torch broadcasts are not counted."""
        num_bytes = all_reduce_bytes(self._compressed_bytes(), self._world_size)
        return SentBytes(
            _with_compression(f"native ({dist.get_backend()})", self._options.compress), num_bytes
        )

    def sync_times(self) -> SyncTimes | None:
        return mean_sync_times(self._ddp)


@dataclass(frozen=True)
class ShardFacts(StrategyFacts):
    """Facts about a strategy with sharded weights; a formula in parallel/fsdp/blocks.py gives the bytes."""

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
    """Facts about all-reduces inside layers: their sizes are observed; the bytes that a ring all-reduce would
    send are computed by formula.

    Only the second step is counted: all steps send the same bytes, and the first one also sets up layouts.
    """

    def __init__(self) -> None:
        # Imported here, because it imports DTensor, which most strategies do without.
        from rankdeck.parallel.collectives.comm_counter import CollectiveCounter

        self.steps = 0
        self._counter = CollectiveCounter()

    @contextlib.contextmanager
    def microstep(self, *, last: bool) -> Iterator[None]:
        """Wrap a microstep's forward and backward pass; in the second step, count their all-reduces."""
        with self._counter if self.steps == 1 else contextlib.nullcontext():
            yield
        self.steps += last

    def sent_bytes(self) -> SentBytes | None:
        return SentBytes("all-reduces inside layers", self._counter.sent_bytes) if self.steps > 1 else None


class StageFacts(StrategyFacts):
    """Facts about a pipeline: sends are counted one by one; the bytes of tied weights are computed by
    formula."""

    def __init__(
        self,
        label: str,
        stages: StageCommunication,
        microbatches: int,
        traffic: Traffic,
        bubble: float = 0.0,
        versions: WeightVersions | None = None,
    ) -> None:
        """Create the facts; only a pipeline without a flush passes the `versions` of its weights."""
        self.steps = 0
        self.staleness: int | None = None
        self._label = label
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
    """Facts about dp in a rehearsal: bytes moved between virtual devices, and CPU time of their threads."""

    def __init__(self, threads: ReplicaThreads) -> None:
        self._threads = threads
        self._steps = self._moved_bytes = 0

    @contextlib.contextmanager
    def microstep(self, *, last: bool) -> Iterator[None]:
        """Count the bytes moved in a microstep's forward and backward pass; evaluations are not counted."""
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
        """Return CPU seconds by device.

        Device 0's time includes that of the calling thread, which scatters, gathers, computes the loss and
        steps the optimizer.
        """
        lead, *others = self._threads.busy_s
        return [lead + time.thread_time(), *others]


class LayerSplitFacts(StrategyFacts):
    """Facts about layers that one thread runs on several devices: each device's busy time, and the bytes that
    cross the cuts between devices."""

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
        """Attribute the thread's time to `device` from now on, and start a span of `phase` on that device.

        If `device` is None, the time until the next call is attributed to no device.
        """
        if (device, phase) == (self._device, self._phase):
            return
        self._spans.stop(self._span)
        self._span = None if device is None else self._spans.start(device, phase, stage=device)
        self._phase = phase
        # CPU time, so that waiting does not count.
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
        """Return CPU seconds of forward and backward passes by stage, without the optimizer's time."""
        return self._busy_s if self._is_rehearsal else None


class HybridFacts(StrategyFacts):
    """Facts summed over several axes; `is_measured` is True only if the bytes of every axis are measured."""

    def __init__(self, axes: list[StrategyFacts], collectives: CollectiveFacts) -> None:
        self._axes = axes
        self._collectives = collectives

    def sent_bytes(self) -> SentBytes | None:
        """Return the bytes of all axes; None until the second step has ended, because some axes count only
        that step."""
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
