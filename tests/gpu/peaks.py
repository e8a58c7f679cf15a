"""The planner against real tensors: peaks, and the time of a step, of 60 configurations on one device, and
the peaks of each kind of rank of 20 that have several.

One card holds one rank of many: the others exist only in a process group whose collectives are done at once,
and what they would send is whatever memory holds. So no loss is checked, and nothing waits. Every figure is
of a process of its own, after the steps in which buffers and optimizer state are made. Where a plan says
"fits", some are measured once more with no more memory than the smallest card on which it would say so.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rankdeck.base.units import format_bytes
from rankdeck.planner.accuracy import error_spread
from rankdeck.planner.candidates import Target
from rankdeck.planner.fake_pass import NUM_STEPS
from rankdeck.planner.planning_mode import planning_mode
from rankdeck.planner.pool import plan_candidates
from rankdeck.run.plan_lines import DOES_NOT_FIT, FITS, TIGHT_SHARE, PlanLine, PlannedDevice
from rankdeck.run_dir import EventWriter
from rankdeck.torch_compat.fake_tensors import init_fake_process_group
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.loop import Trainer
from tests.gpu.children import ChildError, in_child
from tests.gpu.configurations import MODELS, ON_ONE, OVER_RANKS, Configuration
from tests.gpu.device import AnyDevice
from tests.gpu.part import Part

MEDIAN_BAR, P95_BAR = 0.02, 0.05
NUM_TIMED = 3
TIMEOUT_S = 60.0
SQUEEZED_EVERY = 6
_HEADER = [
    "configuration",
    "verdict",
    "live: planned",
    "measured",
    "error",
    "reserved: planned",
    "measured",
    "error",
]


@dataclass(frozen=True)
class Measured:
    """One rank: the peak of live tensors in its last steps and in those before, what the allocator held at
    most (None on a CPU), and the seconds of a step."""

    peak_bytes: int
    peak_before_bytes: int
    reserved_bytes: int | None
    step_s: float

    def error_of(self, planned: PlannedDevice) -> float:
        return planned.active_bytes / self.peak_bytes - 1

    def reserved_error_of(self, planned: PlannedDevice) -> float | None:
        if planned.reserved_bytes is None or not self.reserved_bytes:
            return None
        return planned.reserved_bytes / self.reserved_bytes - 1


def measure(
    configuration: Configuration, target: Target, device: AnyDevice, rank: int, limit_bytes: int | None
) -> Measured:
    """Train a few steps as this rank. Call it in a process of its own."""
    workload = workloads.load(configuration.config(target, small=not device.is_real))
    has_ranks = configuration.num_ranks > 1
    if has_ranks:
        init_fake_process_group(rank, configuration.num_ranks)
    with contextlib.ExitStack() as inside:
        backend = (
            inside.enter_context(planning_mode(like_cuda=device.is_real, initial_values=True))
            if has_ranks
            else None
        )
        inside.enter_context(_nobody_answers())
        if limit_bytes is not None:
            inside.enter_context(device.limited(limit_bytes))
        watched = inside.enter_context(device.watching())
        trainer = assemble(
            workload,
            rank=rank,
            world_size=configuration.num_ranks,
            devices=[device.torch_device],
            device_indices=[rank],
            writer=EventWriter(Path(os.devnull)),
            backend=backend,
        )
        strategy = trainer.strategy
        num_first = NUM_STEPS + workload.config.strategy_spec.planning.extra_steps + strategy.num_fill_steps
        if strategy.owns_optimizer_step:
            num_first += 2 * configuration.num_ranks
        batches = iter(trainer.loader())
        for step in range(1, num_first + 1):
            trainer.step(step, batches, is_tracked=False)
        watched.next_section()
        begun_s = time.perf_counter()
        for step in range(num_first + 1, num_first + NUM_TIMED + 1):
            trainer.step(step, batches, is_tracked=False)
        device.synchronize()
        step_s = (time.perf_counter() - begun_s) / NUM_TIMED
    before, steady = watched.sections
    return Measured(steady.peak_bytes, before.peak_bytes, steady.reserved_bytes, step_s)


@contextlib.contextmanager
def _nobody_answers() -> Iterator[None]:
    """Stages need not vote on known shapes (in torch 2.11 they do not), and what nobody sent is no number."""
    from torch.distributed.pipelining import schedules

    def settled(_schedule: object, stages: list[Any], *_: object) -> None:
        for stage in stages:
            stage._inference_mode = schedules.InferenceMode.STATIC

    with contextlib.ExitStack() as changes:
        changes.enter_context(mock.patch.object(Trainer, "_check_loss", lambda *_: None))
        if hasattr(schedules, "InferenceMode"):
            changes.enter_context(mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", settled))
        yield


def line_of(configuration: Configuration, target: Target, *, small: bool) -> PlanLine:
    """The planner's line, made in processes of its own."""
    base = configuration.config(target, small=small)
    (line,) = plan_candidates(base, [configuration.candidate], target, timeout_s=TIMEOUT_S)
    return line


def measure_on_one(part: Part, device: AnyDevice, rows: int | None) -> None:
    """The part `peaks`."""
    part.header = [*_HEADER, "peak before", "step: predicted", "measured"]
    errors: list[float] = []
    reserved: list[float] = []
    in_range: list[bool] = []
    squeezed: list[int] = []
    for index, case in _in_time(part, ON_ONE, rows):
        target = device.target(part.facts)
        line = line_of(case, target, small=not device.is_real)
        measurement = _row(part, case, line, 0, device)
        if measurement is None:
            continue
        errors.append(measurement.error_of(line.devices[0]))
        reserved += filter(None.__ne__, [measurement.reserved_error_of(line.devices[0])])
        if line.step is not None:
            in_range.append(line.step.low_s <= measurement.step_s <= line.step.high_s)
        if index % SQUEEZED_EVERY == 0:
            squeezed += _squeeze(part, case, line, device)
    _tell_spread(part, "Peaks of live tensors", errors)
    _tell_spread(part, "What the allocator reserved", reserved)
    if in_range:
        part.figure(f"Measured steps within the predicted range: {sum(in_range)} of {len(in_range)}.")
    if squeezed:
        part.figure(
            f"On the smallest card for which the plan says fits: {sum(squeezed)} of {len(squeezed)} trained."
        )


def measure_over_ranks(part: Part, device: AnyDevice, rows: int | None) -> None:
    """The part `ranks`: one rank of each kind by its figures, and the last one, whatever its figures."""
    part.header = _HEADER
    errors: list[float] = []
    reserved: list[float] = []
    for _, case in _in_time(part, OVER_RANKS, rows):
        line = line_of(case, device.target(part.facts, case.num_ranks), small=not device.is_real)
        kinds = {
            (device_plan.active_bytes, device_plan.reserved_bytes): device_plan.device
            for device_plan in reversed(line.devices)
        }
        for rank in sorted({*kinds.values(), case.num_ranks - 1}):
            if part.left_s <= 0:
                part.leave_out(f"{case}, rank {rank}: no time left.")
                continue
            measurement = _row(part, case, line, rank, device)
            if measurement is not None:
                errors.append(measurement.error_of(line.devices[rank]))
                reserved += filter(None.__ne__, [measurement.reserved_error_of(line.devices[rank])])
    _tell_spread(part, "Peaks of live tensors, rank by rank", errors)
    _tell_spread(part, "What the allocator reserved, rank by rank", reserved)


def _in_time(
    part: Part, configurations: Sequence[Configuration], rows: int | None
) -> Iterator[tuple[int, Configuration]]:
    """Configurations as long as there is time for one like the longest so far; what is left out is said."""
    cases = list(configurations)[:rows]
    if len(cases) < len(configurations):
        part.leave_out(
            f"{len(configurations) - len(cases)} of {len(configurations)} configurations: not asked for."
        )
    longest_s = 0.0
    for index, case in enumerate(cases):
        if part.left_s < longest_s:
            part.leave_out(f"{len(cases) - index} configurations from {case} on: no time left.")
            return
        begun_s = time.monotonic()
        reason = _cannot_be(case, part)
        if reason is None:
            yield index, case
        else:
            part.leave_out(f"{case}: {reason}")
        longest_s = max(longest_s, time.monotonic() - begun_s)


def _cannot_be(case: Configuration, part: Part) -> str | None:
    if MODELS[case.model].is_hugging_face and not _has_transformers():
        return "bring transformers."
    return "fp16 needs a GPU." if case.way == "fp16" and part.dry_run else None


def _has_transformers() -> bool:
    import importlib.util

    return importlib.util.find_spec("transformers") is not None


def _row(part: Part, case: Configuration, line: PlanLine, rank: int, device: AnyDevice) -> Measured | None:
    """Measure a rank and tell it beside its plan; None where there is nothing to compare."""
    name = str(case) if case.num_ranks == 1 else f"{case}, rank {rank}"
    if line.is_bound or not line.devices:
        part.fail(f"{name} could not be planned: {line.reason}")
        return None
    if line.verdict == DOES_NOT_FIT:
        part.leave_out(f"{name}: the plan says that it does not fit here.")
        return None
    planned = line.devices[rank]
    target = device.target(part.facts, case.num_ranks)
    try:
        measurement: Measured = in_child(
            measure,
            case,
            target,
            device,
            rank,
            None,
            timeout_s=min(TIMEOUT_S, part.left_s + 15),
            log=part.log,
        )
    except ChildError as error:
        ran_out = error.name == torch.OutOfMemoryError.__name__
        if ran_out:
            part.miss(f'{name}: the plan says "{line.verdict}", and it ran out.')
        else:
            part.fail(f"{name}: {error}")
        return None
    cells = [name, line.verdict, format_bytes(planned.active_bytes), format_bytes(measurement.peak_bytes)]
    cells += [
        _percent(measurement.error_of(planned)),
        _bytes(planned.reserved_bytes),
        _bytes(measurement.reserved_bytes),
    ]
    cells.append(_percent(measurement.reserved_error_of(planned)))
    if case.num_ranks == 1:
        step = line.step
        predicted_range = (
            "unknown" if step is None else f"{step.low_s * 1e3:.1f} to {step.high_s * 1e3:.1f} ms"
        )
        cells += [
            format_bytes(measurement.peak_before_bytes),
            predicted_range,
            f"{measurement.step_s * 1e3:.1f} ms",
        ]
    part.row(*cells)
    return measurement


def _squeeze(part: Part, case: Configuration, line: PlanLine, device: AnyDevice) -> list[bool]:
    """Whether it trains on the smallest card for which the plan says "fits"; nothing where none is found."""
    card_bytes = math.ceil(line.devices[0].total_bytes / TIGHT_SHARE) + 1
    target = device.target(part.facts, total_bytes=card_bytes)
    again = line_of(case, target, small=not device.is_real)
    if again.verdict != FITS:
        part.leave_out(f"{case} on a card of {format_bytes(card_bytes)}: the plan says {again.verdict}.")
        return []
    limit_bytes = card_bytes - again.devices[0].constants_bytes
    text = f'{case}: on a card of {format_bytes(card_bytes)} the plan says "fits", and it'
    try:
        measurement: Measured = in_child(
            measure,
            case,
            target,
            device,
            0,
            limit_bytes,
            timeout_s=min(TIMEOUT_S, part.left_s + 15),
            log=part.log,
        )
    except ChildError as error:
        if error.name != torch.OutOfMemoryError.__name__:
            part.fail(f"{text} failed: {error}")
            return []
        part.miss(f"{text} ran out.")
        return [False]
    if max(measurement.peak_bytes, measurement.peak_before_bytes) > limit_bytes:
        part.miss(f"{text} needs more.")
        return [False]
    return [True]


def _tell_spread(part: Part, what: str, errors: Iterable[float]) -> None:
    """The spread of some errors, which is a miss where it is beyond the bar."""
    values = list(errors)
    spread = error_spread(values)
    if spread is None:
        return
    bar = f"bar {MEDIAN_BAR:.0%} and {P95_BAR:.0%}"
    sentence = (
        f"{what}: {len(values)} figures, median error {spread.median:.2%}, 95th percentile {spread.p95:.2%}, "
        f"worst {spread.worst:.2%} ({bar})."
    )
    part.figure(sentence)
    if spread.median > MEDIAN_BAR or spread.p95 > P95_BAR:
        part.miss(sentence)


def _bytes(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_bytes(num_bytes)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:+.2f} %"
