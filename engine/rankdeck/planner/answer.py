"""One row of a plan answered, in the process that calls it: passes, allocator, constants, verdict.

Every rank that differs from the others is passed; the rest have the figures of the one that stands for them.
What cannot be followed is said, with what is known for certain: weights, gradients and optimizer state. Read
fake_pass.py before, ask.py next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from rankdeck.config import RunConfig
from rankdeck.diagnose.exceptions import own_place
from rankdeck.errors import ConfigError, RankdeckError
from rankdeck.events import MEMORY_KINDS
from rankdeck.gpu_models import GpuModel
from rankdeck.plan_lines import CANNOT, PlanLine, PlannedDevice, verdict_of
from rankdeck.planner.allocator import reserved_bytes
from rankdeck.planner.fake_pass import Found, NotFollowedError, Question, fake_pass
from rankdeck.planner.rows import Row, representatives
from rankdeck.planner.step_time import Step, step_time
from rankdeck.planner.targets import Target, TargetDevice

_SIDE_STREAMS = ("fsdp", "hybrid")
_COMPILED = "train.compile is left out: what a compiled graph keeps is not known before it runs."
_BOUND = "At least this much: weights, gradients and optimizer state alone."
_DDP_FALLBACK = (
    "torch's DDP could not be followed: single's figures for a rank's batch, with a set of buckets."
)


def answer(base: RunConfig, row: Row, target: Target, scale: float | None = None) -> PlanLine:
    """The line of one row. Whatever goes wrong inside is said in the line.

    `scale` is measured over predicted step time, where a step of this model was measured on such a device.
    """
    started_s = time.monotonic()
    line = PlanLine(
        strategy=row.strategy,
        options=row.options,
        label=row.label,
        verdict=CANNOT,
        target=target.words,
        configured=row.configured,
        changes=row.changes,
        notes=[_COMPILED] if base.train.compile else [],
    )
    try:
        config = row.config(base, target)
        line.options = dict(config.strategy.options)
        _fill(line, config, target, scale)
    except RankdeckError as error:
        line.reason = " ".join(filter(None, (error.message, error.advice)))
    except NotFollowedError as error:
        _say_what_is_certain(line, error, target)
    except Exception as error:
        line.reason = in_words(error)
    line.seconds = time.monotonic() - started_s
    return line


def _fill(line: PlanLine, config: RunConfig, target: Target, scale: float | None) -> None:
    found = _passes(config, target, line)
    num_used = len(found) if len(found) > 1 else len(found[0].devices)
    line.devices = [
        _planned(_of_device(found, index), index, config, target, num_used) for index in range(num_used)
    ]
    line.verdict, line.reason = verdict_of(line.devices)
    line.notes += [note for one in found.values() for note in one.notes if note not in line.notes]
    line.step = step_time(_step(found, config, target), scale)


def _passes(config: RunConfig, target: Target, line: PlanLine) -> dict[int, Found]:
    """What was found by each rank, equal ones sharing theirs."""
    num_devices = target.num_devices
    if config.strategy_card.one_process:
        return {0: fake_pass(_question(config, target, 0))}
    stands_for = representatives(config.strategy.use, config.strategy.options, num_devices)
    passed: dict[int, Found] = {}
    for rank in sorted(set(stands_for.values())):
        try:
            passed[rank] = fake_pass(_question(config, target, rank))
        except (RankdeckError, NotFollowedError):
            raise
        except Exception:
            if config.strategy.use != "ddp" or config.strategy.options["sync"] != "native":
                raise
            passed[rank] = _ddp_from_single(config, target)
            line.notes.append(_DDP_FALLBACK)
    return {rank: passed[standing] for rank, standing in stands_for.items()}


def _question(config: RunConfig, target: Target, rank: int) -> Question:
    device = target.devices[min(rank, target.num_devices - 1)]
    return Question(config, target.num_devices, rank, like_cuda=target.like_cuda, rates=device.rates)


def _ddp_from_single(config: RunConfig, target: Target) -> Found:
    """A rank of ddp as a single device with its share of the batch, and buckets of the gradients' size."""
    row = Row("single", changes={"train.global_batch": config.train.global_batch // target.num_devices})
    found = fake_pass(_question(row.config(config, target), target, 0))
    device = found.devices[0]
    device.peak_by_kind["communication"] += device.peak_by_kind["parameters"]
    grown = type(device)(
        device=device.device,
        live_bytes=device.live_bytes,
        peak_bytes=sum(device.peak_by_kind.values()),
        live_by_kind=device.live_by_kind,
        peak_by_kind=device.peak_by_kind,
    )
    return Found({0: grown}, found.logs, found.work, found.sent_bytes)


def _of_device(found: Mapping[int, Found], index: int) -> tuple[Found, int]:
    """What was found that holds a device, and the device's place in it."""
    one = found.get(index, found[0])
    return one, index if index in one.devices else min(one.devices)


def _planned(
    of: tuple[Found, int], index: int, config: RunConfig, target: Target, num_used: int
) -> PlannedDevice:
    found, place = of
    device, bytes_of = target.devices[index], found.devices[place]
    by_kind = {kind: bytes_of.peak_by_kind[kind] for kind in MEMORY_KINDS if bytes_of.peak_by_kind[kind]}
    planned = PlannedDevice(
        device=index,
        name=device.name,
        active_bytes=bytes_of.peak_bytes,
        total_bytes=bytes_of.peak_bytes,
        capacity_bytes=device.total_bytes,
        others_bytes=device.others_bytes,
        by_kind=by_kind,
    )
    if device.gpu is not None:
        _add_constants(planned, device.gpu, found, place, config, num_used)
    return planned


def _add_constants(
    planned: PlannedDevice, gpu: GpuModel, found: Found, place: int, config: RunConfig, num_used: int
) -> None:
    """cuBLAS' workspaces inside the allocator; the context and NCCL's buffers beside it."""
    planned.active_bytes += gpu.workspaces_bytes
    planned.by_kind["temporary"] = planned.by_kind.get("temporary", 0) + gpu.workspaces_bytes
    planned.reserved_bytes = reserved_bytes(
        found.logs[place],
        held_bytes=[gpu.workspace_bytes, gpu.workspace_bytes],
        side_streams=config.strategy.use in _SIDE_STREAMS,
    )
    talks = num_used > 1 and config.strategy.use != "model"
    planned.constants_bytes = gpu.context_bytes + (gpu.nccl_bytes if talks else 0)
    planned.total_bytes = planned.reserved_bytes + planned.constants_bytes


def _step(found: Mapping[int, Found], config: RunConfig, target: Target) -> Step:
    bubbles = [one.pipeline.theory_bubble for one in found.values() if one.pipeline is not None]
    return Step(
        strategy=config.strategy.use,
        work=[work for one in found.values() for work in one.work.values()],
        sent_bytes=max(one.sent_bytes for one in found.values()),
        link_bytes_per_s=None if target.devices[0].gpu is None else target.devices[0].gpu.link,
        bubble=max((bubble for bubble in bubbles if bubble is not None), default=0.0),
    )


def _say_what_is_certain(line: PlanLine, error: NotFollowedError, target: Target) -> None:
    """The reason, and a bound from below. What is too much already does not fit, whatever comes on top."""
    line.reason = in_words(error.cause)
    line.is_bound = True
    line.notes.append(_BOUND)
    line.devices = [_bound(target.devices[place], place, error) for place in error.certain]
    verdict, reason = verdict_of(line.devices)
    if verdict == "does-not-fit":
        line.verdict, line.reason = verdict, f"{reason} {line.reason}"


def _bound(device: TargetDevice, place: int, error: NotFollowedError) -> PlannedDevice:
    num_bytes = error.certain[place].live_bytes
    constants_bytes = 0 if device.gpu is None else device.gpu.context_bytes
    kinds = {kind: size for kind, size in error.certain[place].live_by_kind.items() if size}
    return PlannedDevice(
        device=place,
        name=device.name,
        active_bytes=num_bytes,
        constants_bytes=constants_bytes,
        total_bytes=num_bytes + constants_bytes,
        capacity_bytes=device.total_bytes,
        others_bytes=device.others_bytes,
        by_kind=kinds,
    )


def in_words(error: BaseException) -> str:
    """What kept a model from being followed, with the place in a person's code where there is one."""
    while error.__cause__ is not None and not isinstance(error, ConfigError):
        error = error.__cause__
    name = type(error).__name__
    file, number = own_place(error)
    where = f" ({file}, line {number})" if file else ""
    if name in ("DataDependentOutputException", "DynamicOutputShapeException"):
        reads = name.startswith("Data")
        what = "reads the value of a tensor" if reads else "makes a tensor whose shape depends on values"
        return f"The model {what}, so that it cannot be followed without running it{where}."
    first = (str(error).strip().splitlines() or [""])[0]
    return f"The model cannot be followed without memory: {name}: {first[:200]}{where}"
