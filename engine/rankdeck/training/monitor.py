"""Select the steps that are tracked in detail, and report memory, device phases, bytes sent, and how busy
threads are.

Memory readings come from the ledger or from a GPU's allocator. Most steps are not sampled and cost nothing
extra. The ledger and the span recorder record only sampled steps; each of the two has its own share of the
run's time (sampling_budget.py). A batch with shapes that no tracked batch covers causes its step to be
tracked. A rehearsal's simulated capacity is compared with the tracked memory. Read loop.py first.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict

from torch.optim import Optimizer

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.config import RunConfig
from rankdeck.diagnose.fixes import with_fix
from rankdeck.memory.batch_shapes import TrackedBatches, shape_of
from rankdeck.memory.by_module import count_by_module, failing_module
from rankdeck.memory.entries import DeviceBytes
from rankdeck.memory.torch_memory import OwnerBytes, read_gpu_bytes, reset_gpu_peaks
from rankdeck.parallel.pytree import tensor_leaves
from rankdeck.run_dir import EventWriter
from rankdeck.strategies.base import Batch, Strategy
from rankdeck.training.reporting import StepFacts, UtilizationMeter
from rankdeck.training.sampling_budget import ALWAYS_RECORDED_STEPS, SamplingBudget, SpanBudget

GPU_MEMORY_INTERVAL_S = 0.2
"""Seconds between two readings of a GPU's allocator."""
_COMM_REPORT_STEP = 3
"""Step, counted from 1 in this process, after which the bytes sent are known; they are reported after this
step and after the last step."""


class StepMonitor:
    """Monitor of one rank's steps.

    `device_indices` are the indices of the rank's devices in the run; `nth` counts steps from 1 in this
    process.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: Optimizer,
        writer: EventWriter,
        *,
        rank: int,
        device_indices: list[int],
        sampling: SamplingBudget,
        config: RunConfig | None = None,
    ) -> None:
        self._strategy = strategy
        self._writer = writer
        self._rank = rank
        self._device_indices = device_indices
        self._sampling = sampling
        # A pipeline needs all its memory only once it is full.
        self._sampling.always_until_step += strategy.num_fill_steps
        self._config = config
        self._capacity_bytes = None if config is None else config.capacity_bytes
        self._tracked_batches = TrackedBatches()
        self._tracking_context = contextlib.ExitStack()
        self._is_tracked = False
        self._is_in_step = False
        self._is_new_batch = False
        self._cpu_started_s = 0.0
        self._is_recorded = False
        self._spans, self._span_budget = strategy.spans, SpanBudget()
        # The run's sampler measures the process of a rank with one device. From outside, the threads of a
        # rank with several devices cannot be distinguished.
        has_threads = strategy.setup.is_rehearsal and len(device_indices) > 1
        self._utilization_meter = UtilizationMeter(writer, rank, device_indices) if has_threads else None
        self._optimizer = optimizer
        self._owner_bytes = OwnerBytes(strategy.module, optimizer)
        self._last_gpu_read_s = 0.0

    def start_step(self, step: int, nth: int, *, is_last: bool) -> bool:
        """Start step `step`, the `nth` step of this process; return whether the ledger should track it."""
        self._cpu_started_s = time.process_time()
        # Decided before the batch is read, so that neither loading nor spans are delayed.
        followed = self._strategy.ledger.can_track and self._sampling.should_track(nth)
        self._start_spans(step, nth, followed, is_last)
        return followed

    def _start_spans(self, step: int, nth: int, followed: bool, is_last: bool) -> None:
        """Start recording spans, if a recording is due.

        The run's last step is skipped, unless it is among the first steps: the times of some phases are known
        only during a later step.
        """
        is_due = self._span_budget.should_record(nth, is_tracked=followed)
        is_due = is_due and (not is_last or nth < ALWAYS_RECORDED_STEPS[-1])
        pace = self._spans.pace
        self._is_recorded = is_due and (pace is None or pace.is_holding)
        self._spans.start_step(step, record=self._is_recorded, is_tracked=followed)

    def enter_step(self, *, is_tracked: bool) -> None:
        """Enter a step that lasts until `exit_step`.

        The ledger tracks the step from its start if `is_tracked`, otherwise from the first batch with shapes
        that no tracked batch covers.
        """
        self._is_tracked = self._is_new_batch = False
        self._is_in_step = True
        if is_tracked:
            self._start_tracking()

    def exit_step(self) -> None:
        if self._is_tracked:
            self._tracking_context.close()

    def report_memory(self, step: int) -> None:
        """Report the memory that the ledger observed in the step, if it tracked the step."""
        self._is_in_step = False
        if self._is_tracked:
            readings = self._strategy.ledger.devices()
            self._write_memory(step, events.MEASURED_IN_REHEARSAL, readings)
            self._check_capacity(step, readings)

    def _start_tracking(self) -> None:
        self._is_tracked = True
        self._tracking_context.enter_context(self._strategy.ledger.tracking())
        self._strategy.ledger.reset_peaks()

    def on_batch(self, batch: Batch) -> None:
        """Handle the step's next batch; start tracking if no tracked batch covers its shapes.

        Any earlier, untracked microsteps of the step had shapes that tracked batches cover.
        """
        if not self._strategy.ledger.can_track:
            return
        shape = shape_of(tensor_leaves(batch))
        if not self._is_tracked and shape not in self._tracked_batches:
            self._is_new_batch = not self._tracked_batches.covers(shape)
            if self._is_new_batch or self._sampling.can_afford():
                self._start_tracking()
                self._spans.mark_tracked()
        if self._is_tracked:
            self._tracked_batches.add(shape)

    def end_step(self) -> None:
        """End the step, and write sampled steps whose phases are known by now."""
        self._spans.end_step()
        if self._spans.is_waiting:
            self.write_spans(wait=False)

    def report(self, facts: StepFacts, nth: int, *, is_last: bool) -> None:
        """Add the step's time, `facts.step_s`, to the sampling budgets, and write the reports that are
        due."""
        followed, is_typical = self._is_tracked, not self._is_new_batch
        cpu_s = time.process_time() - self._cpu_started_s
        self._sampling.record(nth, facts.step_s, is_tracked=followed, is_typical=is_typical, cpu_s=cpu_s)
        self._span_budget.add_step(nth, facts.step_s, is_recorded=self._is_recorded)
        if self._utilization_meter is not None and self._utilization_meter.is_due():
            self._utilization_meter.report(self._strategy.facts.busy_s())
        if (
            not self._strategy.setup.is_rehearsal
            and time.monotonic() - self._last_gpu_read_s >= GPU_MEMORY_INTERVAL_S
        ):
            self._write_gpu_memory(facts.step)
        if nth == _COMM_REPORT_STEP or (nth > _COMM_REPORT_STEP and is_last):
            self._write_facts(facts.step)

    def write_spans(self, *, wait: bool) -> None:
        """Write sampled steps whose phases are known; if `wait` is True, all sampled steps."""
        started_s = time.thread_time()
        for event, marks_cost_s in self._spans.take_samples(self._rank, self._device_indices, wait=wait):
            self._writer.write(event)
            ended_s = time.thread_time()
            self._span_budget.add_cost(ended_s - started_s + marks_cost_s)
            started_s = ended_s

    def _write_gpu_memory(self, step: int) -> None:
        self._last_gpu_read_s = time.monotonic()
        readings = []
        for device in self._strategy.setup.devices:
            readings.append(read_gpu_bytes(device, self._owner_bytes))
            # Each report has the peak since the last one.
            reset_gpu_peaks(device)
        self._write_memory(step, events.MEASURED_ON_GPU, readings)

    def report_out_of_memory(self, error: BaseException, allocation: Allocation, step: int) -> None:
        """Report the devices' memory. Call it while the exception's frames still keep the tensors alive."""
        event = events.OutOfMemory(rank=self._rank, step=step, allocation=allocation)
        strategy, device = self._strategy, None
        event.module = failing_module(error, strategy.module)
        if not strategy.setup.is_rehearsal:
            event.source = events.MEASURED_ON_GPU
            event.devices = self._device_memory(
                [read_gpu_bytes(torch_device, self._owner_bytes) for torch_device in strategy.setup.devices]
            )
            index = allocation.device
            device = next(
                (torch_device for torch_device in strategy.setup.devices if torch_device.index == index), None
            )
        elif self._is_tracked and self._is_in_step:
            event.source = events.MEASURED_IN_REHEARSAL
            event.devices = self._device_memory(strategy.ledger.devices())
        if device is not None:
            event.device = self._device_indices[strategy.setup.devices.index(device)]
        elif len(self._device_indices) == 1:
            event.device = self._device_indices[0]
        event.modules = count_by_module(strategy.module, self._optimizer, device)
        self._writer.write(event, sync=True)

    def _device_memory(self, readings: list[DeviceBytes]) -> list[events.DeviceMemory]:
        """Return one reading per device of the rank, in the order of the devices."""
        return [
            events.DeviceMemory(**(asdict(reading) | {"device": device_index}))
            for device_index, reading in zip(self._device_indices, readings, strict=True)
        ]

    def _write_memory(self, step: int, source: str, readings: list[DeviceBytes]) -> None:
        devices = self._device_memory(readings)
        self._writer.write(events.Memory(rank=self._rank, step=step, source=source, devices=devices))

    def _check_capacity(self, step: int, readings: list[DeviceBytes]) -> None:
        """Warn once if a device used more memory than the rehearsal's simulated capacity."""
        capacity_bytes = self._capacity_bytes
        if capacity_bytes is None:
            return
        fullest = max(readings, key=lambda reading: reading.peak_bytes)
        if fullest.peak_bytes <= capacity_bytes:
            return
        self._capacity_bytes = None
        device_index = self._device_indices[readings.index(fullest)]
        problem = Problem(
            "over-capacity",
            phrase(
                "Virtual device {place} used {peak} in step {step}, but rehearsal.capacity is {capacity}.",
                place=device_index,
                peak=format_bytes(fullest.peak_bytes),
                step=step,
                capacity=format_bytes(capacity_bytes),
            ),
            advice=phrase(
                "A GPU with that capacity would have run out of memory. To see what fits, run: rankdeck plan"
            ),
            severity="warning",
            path="rehearsal.capacity",
        )
        if self._config is not None:
            problem = with_fix(problem, self._config)
        self._writer.write(events.ProblemRaised(problem=problem))

    def _write_facts(self, step: int) -> None:
        """Report the bytes that the strategy sends, its sync times, and its pipeline metrics."""
        facts = self._strategy.facts
        sent, times, pipeline = facts.sent_bytes(), facts.sync_times(), facts.pipeline()
        if sent is not None:
            self._writer.write(
                events.Comm(
                    rank=self._rank,
                    step=step,
                    algorithm=sent.algorithm,
                    sent_bytes=sent.num_bytes,
                    measured=sent.is_measured,
                    by_peer=sent.by_peer,
                    sync_s=None if times is None else times.seconds,
                    overlapped_s=None if times is None else times.overlapped_s,
                )
            )
        if pipeline is not None:
            self._writer.write(events.Pipeline(rank=self._rank, step=step, **asdict(pipeline)))
