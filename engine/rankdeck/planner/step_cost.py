"""Count a device's work in a step (FLOPs, memory traffic, kernels) and estimate the step time.

    roofline of a step = sum over operations of max(FLOPs / rate, bytes / bandwidth)

No step reaches the roofline, so the time is a range: at best a step runs at 90 % of the roofline's speed, at
worst at 35 %, plus the launch time of every kernel. Read fake_pass.py first.

Source: Williams et al., "Roofline" (2009); torch.utils.flop_counter for the FLOPs of an operation.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.gpu_models import Rates
from rankdeck.parallel.collectives.comm_counter import ring_bytes
from rankdeck.profiling.simulated_pace import flops_formula
from rankdeck.profiling.spans import PhaseSpan
from rankdeck.run.movement import RECEIVE, SEND, Operation, merge_operations
from rankdeck.run.plan_lines import StepTime
from rankdeck.torch_compat.collectives import Collective, parse_collective
from rankdeck.torch_compat.dispatch import VIEWS, Kwargs, classify_effect, overload_packet

if TYPE_CHECKING:
    from rankdeck.planner.plan_ledger import PlanLedger


_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Work:
    """One device's work in a step. `roofline_s` is None if the device's rates are unknown."""

    flops: int = 0
    moved_bytes: int = 0
    num_kernels: int = 0
    roofline_s: float | None = None


class WorkCounter:
    """Counter of each device's work; an operation is attributed to the device of its first tensor."""

    def __init__(self, ledger: PlanLedger, rates: Rates | None) -> None:
        self.by_device = [Work(roofline_s=None if rates is None else 0.0) for _ in range(ledger.num_devices)]
        self._ledger = ledger
        self._rates = rates
        self._formulas: dict[Any, Callable[..., int] | bool] = {}

    def add(
        self, func: Any, args: tuple[Any, ...], kwargs: Kwargs | None, out: Any
    ) -> tuple[int, int] | None:
        """Count an operation and return its device and FLOPs; None if it launches no kernel."""
        formula = self._formulas.get(func)
        if formula is None:
            formula = self._formulas[func] = self._formula(func)
        if formula is False:
            return None
        tensors = [value for value in _flatten(args) if isinstance(value, Tensor)]
        outputs = [value for value in _flatten((out,)) if isinstance(value, Tensor)]
        moved = sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *outputs))
        flops = formula(*args, **(kwargs or {}), out_val=out) if callable(formula) else 0
        device = self._device_of(tensors)
        work = self.by_device[device]
        work.flops += flops
        work.moved_bytes += moved
        work.num_kernels += 1
        if self._rates is not None and work.roofline_s is not None:
            compute_s = flops / _rate(self._rates, func, outputs[0].dtype) if flops and outputs else 0.0
            work.roofline_s += max(compute_s, moved / self._rates.bytes_per_s)
        return device, flops

    def _formula(self, func: Any) -> Callable[..., int] | bool:
        """Return an operation's FLOP formula; False if it does no work, True if it only moves bytes."""
        if getattr(func, "namespace", "") != "aten" or classify_effect(func) == VIEWS:
            return False
        return flops_formula(overload_packet(func)) or True

    def _device_of(self, tensors: list[Tensor]) -> int:
        for tensor in tensors:
            device = self._ledger.device_of(tensor)
            if device is not None:
                return device
        return 0


def _rate(rates: Rates, func: Any, dtype: torch.dtype) -> float:
    """Return the FLOPs per second of a matmul or convolution in `dtype`.

    The result for fp32 is the TF32 rate if torch's settings select TF32 for this operation.
    """
    if dtype in _HALVES:
        return rates.half_flops_per_s
    is_convolution = "convolution" in func.__name__
    backends: Any = torch.backends
    switch = backends.cudnn.conv if is_convolution else backends.cuda.matmul
    in_tf32 = dtype == torch.float32 and switch.fp32_precision == "tf32"
    return rates.tf32_flops_per_s if in_tf32 else rates.flops_per_s


def _flatten(values: Any) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            flat.extend(value)
        else:
            flat.append(value)
    return flat


# Range of the step time, from what devices compute, wait for and send.
#
#     single, model       the sum of what each device computes: one after the other
#     dp                  the slowest device, plus what device 0 transfers alone
#     ddp, fsdp, tensor   the slowest rank; sends overlap with it at best, and are added to it at worst
#     pipeline            the slowest stage, longer by its bubble
#
# Good enough to rank strategies, not to promise a time. `calibrated`: a measured step of the same model on
# the same device has set the scale.

BEST_EFFICIENCY, WORST_EFFICIENCY = 0.9, 0.35
KERNEL_LAUNCH_S = 6e-6


def estimate_step_time(
    strategy: str,
    work: Sequence[Work],
    *,
    sent_bytes: int = 0,
    link_bytes_per_s: float | None = None,
    bubble: float = 0.0,
    scale: float | None = None,
) -> StepTime | None:
    """Return the range of the step time; None if the device's rates are unknown.

    `work` has one entry per device, `sent_bytes` is the number of bytes that the busiest rank sends, and
    `scale` is the ratio of measured to predicted time.
    """
    rooflines = [device_work.roofline_s for device_work in work]
    known_rooflines = [roofline for roofline in rooflines if roofline is not None]
    if not known_rooflines or len(known_rooflines) < len(rooflines):
        return None
    planning = STRATEGIES[strategy].planning
    compute_s = sum(known_rooflines) if planning.is_sequential else max(known_rooflines)
    kernels = [device_work.num_kernels for device_work in work]
    launches_s = KERNEL_LAUNCH_S * (sum(kernels) if planning.has_one_thread else max(kernels))
    sends_s = sent_bytes / link_bytes_per_s if link_bytes_per_s else 0.0
    waits_best_s = sends_s if planning.waits_for_sends else 0.0
    low_s = max(compute_s / BEST_EFFICIENCY / (1 - bubble) + waits_best_s, sends_s)
    # At worst a link reaches half of its bandwidth, and nothing hides the sends.
    high_s = (compute_s / WORST_EFFICIENCY + launches_s) / (1 - bubble) + sends_s / 0.5
    if scale is None:
        return StepTime(low_s=low_s, high_s=high_s)
    middle_s = (low_s * high_s) ** 0.5 * scale
    return StepTime(low_s=middle_s * 0.85, high_s=middle_s * 1.15, calibrated=True)


# Recording what one rank's devices compute and send in the last step, which runs on shapes only.
#
#     marks of phases (profiling/spans.py)  +  operations with their FLOPs  +  collectives, sends and copies
#       -> operations of the rank, device by device, in order (run/movement.py)
#
# All three have timestamps: an operation belongs to its device's phase at that time, and a transfer splits a
# phase in two.


class StepRecorder:
    """Recorder of one rank's step. `device_indices` are the indices of the rank's devices in the run."""

    def __init__(self, work: WorkCounter, device_indices: Sequence[int]) -> None:
        self._work = work
        self._device_indices = device_indices
        self._computed: list[list[tuple[float, int]]] = [[] for _ in device_indices]
        self._moved: list[list[tuple[float, Operation]]] = [[] for _ in device_indices]

    def add(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs | None, out: Any) -> None:
        """Record an operation that ran on fake tensors."""
        sent = parse_collective(func, args)
        if sent is not None:
            self.record_collective(sent)
        done = self._work.add(func, args, kwargs, out)
        if done is not None:
            device, flops = done
            self._computed[device].append((time.perf_counter(), flops))

    def record_collective(self, sent: Collective) -> None:
        """Record a point-to-point send, or a collective with the bytes that a ring algorithm sends."""
        if sent.peer is not None:
            self._add_operation(0, sent.kind, sent.num_bytes, [sent.peer])
        elif len(sent.group) > 1:
            num_bytes = ring_bytes(sent.kind, len(sent.group), sent.num_bytes)
            self._add_operation(0, sent.kind, num_bytes, list(sent.group))

    def record_copy(self, source: int, target: int, num_bytes: int) -> None:
        """Record a copy between two of the rank's devices."""
        self._add_operation(source, SEND, num_bytes, [self._device_indices[target]])
        self._add_operation(target, RECEIVE, num_bytes, [self._device_indices[source]])

    def _add_operation(self, device: int, name: str, num_bytes: int, peers: list[int]) -> None:
        operation = Operation(name, self._device_indices[device], num_bytes=num_bytes, peers=peers)
        self._moved[device].append((time.perf_counter(), operation))

    def operations(self, marks: Sequence[PhaseSpan]) -> list[Operation]:
        """Return all operations, grouped by device, each group in the order in which its operations ran.

        `marks` are the spans of the step's phases.
        """
        operations: list[Operation] = []
        for device in range(len(self._device_indices)):
            operations += merge_operations(
                self._operations_of(device, [mark for mark in marks if mark.device == device])
            )
        return operations

    def _operations_of(self, device: int, marks: list[PhaseSpan]) -> list[Operation]:
        """Return a device's operations in the order in which they ran.

        The start or end of a phase in `marks`, or a transfer, ends the current operation and starts the next.
        """
        timeline: list[tuple[float, PhaseSpan | Operation, bool]] = [
            *((mark.start, mark, True) for mark in marks),
            *((mark.end, mark, False) for mark in marks),
            *((at, operation, True) for at, operation in self._moved[device]),
        ]
        timeline.sort(key=lambda entry: entry[0])
        times = [at for at, _ in self._computed[device]]
        sums = [0]
        for _, flops in self._computed[device]:
            sums.append(sums[-1] + flops)
        operations: list[Operation] = []
        inside: list[PhaseSpan] = []
        since = 0.0
        for at, what, is_start in timeline:
            if inside:
                mark = inside[-1]
                flops = sums[bisect_right(times, at)] - sums[bisect_right(times, since)]
                device_index = self._device_indices[device]
                operations.append(
                    Operation(mark.name, device_index, flops, stage=mark.stage, microbatch=mark.microbatch)
                )
            since = at
            if isinstance(what, Operation):
                operations.append(what)
            elif is_start:
                inside.append(what)
            else:
                inside.remove(what)
        return operations
