"""Build a candidate's plan line from its ranks' plans; add memory outside the allocator and a verdict.

`plan_rank` runs in its own process (pool.py) and always returns a result. Of several equal ranks, only one is
planned. If a model cannot be traced, the line states this and contains only the memory of the persistent
state (weights, buffers, gradients, optimizer state). Read fake_pass.py first.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.phrases import TranslatableStruct, join_sentences, phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.config import RunConfig
from rankdeck.memory.entries import DeviceBytes
from rankdeck.planner.allocator import peak_reserved_bytes
from rankdeck.planner.candidates import Candidate, Target, bytes_outside_allocator, representative_ranks
from rankdeck.planner.fake_pass import NotTraceableError, PassRequest, PassResult, fake_pass
from rankdeck.planner.fake_values import VALUE_OPS
from rankdeck.planner.samples import UNIFORM, Samples
from rankdeck.planner.step_cost import Work, estimate_step_time
from rankdeck.planner.value_answers import (
    AnswerFn,
    FixedAnswer,
    largest_result,
    record_answers,
    trace_error_text,
)
from rankdeck.run.movement import Movement, Operation, has_private_peers
from rankdeck.run.plan_lines import (
    AT_LEAST,
    AT_MOST,
    CANNOT,
    DOES_NOT_FIT,
    FITS,
    TIGHT,
    TIGHT_SHARE,
    PlanLine,
    PlannedDevice,
    StepTime,
    verdict_of,
)

_PERSISTENT_KINDS = ("parameters", "gradients", "optimizer", "buffers")
_PERSISTENT_ONLY_NOTE = phrase("At least this much: only weights, gradients and optimizer state are counted.")
_CACHE_RELEASE_NOTE = phrase(
    "torch's allocator would fill the device and release unused cached memory when needed."
)
_LARGEST_SHAPES_NOTE = phrase(
    "At most this much: tensors whose shape depends on values are counted at their largest possible size."
)
_FIRST_SAMPLES_NOTE = phrase(
    "At least this much: the model branches on tensor values, and the plan follows the branches "
    "that the first samples take with the initial weights."
)
_FIXED_ANSWER_NOTES = {
    True: phrase(
        "At least this much: the model branches on tensor values, and the plan assumes that "
        "every value read is True or 1."
    ),
    False: phrase(
        "At least this much: the model branches on tensor values, and the plan assumes that "
        "every value read is False or 0."
    ),
}
_OTHER_ANSWER_NOTES = {
    True: tr_noop("{size} if every value read is True or 1."),
    False: tr_noop("{size} if every value read is False or 0."),
}
_DDP_FALLBACK_NOTE = phrase(
    "torch's DDP could not be traced: the estimate is for a single device plus one set of gradient buckets."
)


class RankPlan(TranslatableStruct):
    """Memory and work of one rank's devices in a step; if they are unknown, `reason` explains why.

    `bound` and `refusal` are described in PlanLine, `alike` in candidates.py, `operations` and `mesh` in
    run/movement.py.
    """

    devices: list[PlannedDevice] = msgspec.field(default_factory=list)
    work: list[Work] = msgspec.field(default_factory=list)
    alike: tuple[int, ...] = ()
    operations: list[Operation] = msgspec.field(default_factory=list)
    mesh: list[tuple[str, int]] = msgspec.field(default_factory=list)
    sent_bytes: int = 0
    bubble: float = 0.0
    notes: list[str] = msgspec.field(default_factory=list)
    reason: str | None = None
    refusal: Problem | None = None
    bound: str | None = None


def ranks_to_plan(
    config: RunConfig,
    num_devices: int,
    planned: Mapping[int, RankPlan] | None = None,
    *,
    movement: bool = False,
) -> list[int]:
    """Return one rank per group of equal ranks; rank 0's plan, if in `planned`, shows which weight slices are
    equal. If `movement` is true and equal ranks send to different peers, return all ranks instead."""
    if config.strategy_spec.one_process:
        return [0]
    if movement and any(
        has_private_peers(rank, rank_plan.operations, rank_plan.mesh)
        for rank, rank_plan in (planned or {}).items()
    ):
        return list(range(num_devices))
    return sorted(set(_rank_representatives(config, num_devices, planned or {}).values()))


def _rank_representatives(
    config: RunConfig, num_devices: int, planned: Mapping[int, RankPlan]
) -> dict[int, int]:
    alike = planned[0].alike if 0 in planned else ()
    equal_ranks = config.strategy_spec.planning.equal_ranks
    return representative_ranks(equal_ranks, config.strategy.options, num_devices, alike)


def plan_rank(config: RunConfig, rank: int, target: Target, samples: Samples = UNIFORM) -> RankPlan:
    """Return a rank's plan; any error is reported in the plan."""
    try:
        device = target.devices[min(rank, target.num_devices - 1)]
        request = PassRequest(config, target.num_devices, rank, target.like_cuda, device.rates, samples)
        return _plan_fake_pass(request, target)
    except RankdeckError as error:
        return RankPlan(reason=join_sentences((error.message, error.advice)), refusal=refusal_of(error))
    except NotTraceableError as error:
        answered = (
            None if error.num_weights is None else _plan_with_answers(request, target, error.num_weights)
        )
        if answered is not None:
            return answered
        certain = [
            _persistent_device(device_index, device) for device_index, device in error.persistent.items()
        ]
        if not certain:
            return RankPlan(reason=trace_error_text(error.cause))
        return RankPlan(
            certain, notes=[_PERSISTENT_ONLY_NOTE], reason=trace_error_text(error.cause), bound=AT_LEAST
        )
    except Exception as error:
        stand_in = config.strategy_spec.planning.stand_in(config.strategy.options)
        if stand_in is not None:
            return _from_stand_in(stand_in, config, target, samples)
        return RankPlan(reason=trace_error_text(error))


def _plan_with_answers(request: PassRequest, target: Target, num_weights: int) -> RankPlan | None:
    """Return a plan with a bound of the memory if the model reads tensor values; None if that fails too."""
    result = _try_plan(request, target, largest_result)
    if result is not None:
        return msgspec.structs.replace(result, bound=AT_MOST, notes=[*result.notes, _LARGEST_SHAPES_NOTE])
    recorded = record_answers(request.config, request.num_devices, num_weights, VALUE_OPS, request.samples)
    answered = {
        answer: needs
        for answer in (True, False)
        if (needs := _try_plan(request, target, FixedAnswer(answer))) is not None
    }
    computed = None if recorded is None else _try_plan(request, target, recorded)
    if computed is None and not answered:
        return None
    answer, largest = max(answered.items(), key=lambda item: _fullest_bytes(item[1]), default=(True, None))
    result = computed or largest
    assert result is not None
    notes = [*result.notes, _FIXED_ANSWER_NOTES[answer] if computed is None else _FIRST_SAMPLES_NOTE]
    if computed is not None and largest is not None and _fullest_bytes(largest) > _fullest_bytes(computed):
        notes.append(phrase(_OTHER_ANSWER_NOTES[answer], size=format_bytes(_fullest_bytes(largest))))
    return msgspec.structs.replace(result, bound=AT_LEAST, notes=notes)


def _try_plan(request: PassRequest, target: Target, answers: AnswerFn) -> RankPlan | None:
    try:
        return _plan_fake_pass(request, target, answers)
    except Exception:  # other answers may succeed
        return None


def _fullest_bytes(needs: RankPlan) -> int:
    return max(device.active_bytes for device in needs.devices)


def _persistent_device(device_index: int, device: DeviceBytes) -> PlannedDevice:
    """Return a device's persistent memory, without the other tensors that were live when the pass failed."""
    by_kind = {kind: device.live_by_kind[kind] for kind in _PERSISTENT_KINDS if device.live_by_kind[kind]}
    num_bytes = sum(by_kind.values())
    return PlannedDevice(device=device_index, active_bytes=num_bytes, total_bytes=num_bytes, by_kind=by_kind)


def _plan_fake_pass(request: PassRequest, target: Target, answers: AnswerFn | None = None) -> RankPlan:
    result = fake_pass(request, answers)
    facts = result.pipeline
    if request.config.strategy_spec.one_process:
        devices = [
            _plan_device(result, device_index, request.config, target, device_index)
            for device_index in result.devices
        ]
    else:  # it may represent other ranks, on any kind of device
        kinds = {device.kind: index for index, device in enumerate(target.devices)}
        devices = [
            _plan_device(result, request.rank, request.config, target, index) for index in kinds.values()
        ]
    return RankPlan(
        devices,
        list(result.work.values()),
        alike=result.equal_slices,
        operations=result.operations,
        mesh=list(result.mesh),
        sent_bytes=result.sent_bytes,
        bubble=(facts.theory_bubble if facts is not None else None) or 0.0,
        notes=list(result.notes),
        reason=join_sentences(result.omissions) or None,
        bound=AT_LEAST if result.omissions else None,
    )


def _plan_device(
    result: PassResult, device_index: int, config: RunConfig, target: Target, index: int
) -> PlannedDevice:
    """Return the memory that the pass's device `device_index` would need on the target's device `index`."""
    # cuBLAS workspaces are inside the allocator, from the first matmul on.
    peak_bytes, device = result.devices[device_index].peak_bytes, target.devices[index]
    by_kind = {
        kind: num_bytes for kind, num_bytes in result.devices[device_index].peak_by_kind.items() if num_bytes
    }
    if device.gpu is None:
        return PlannedDevice(device=index, active_bytes=peak_bytes, total_bytes=peak_bytes, by_kind=by_kind)
    workspace_bytes = device.gpu.workspace_bytes
    by_kind["temporary"] = by_kind.get("temporary", 0) + device.gpu.process_workspace_bytes

    def reserved(limit_bytes: int | None) -> int:
        return peak_reserved_bytes(
            result.logs[device_index],
            # Two cuBLAS handles have a workspace each: one for forward, one for backward.
            preallocated_bytes=[workspace_bytes, workspace_bytes],
            side_streams=config.strategy_spec.planning.has_side_streams,
            limit_bytes=limit_bytes,
        )

    reserved_at_most, needed_bytes = reserved(None), None
    if device.room_bytes is not None:
        constants_bytes = bytes_outside_allocator(config, device, target.num_devices)
        limit_bytes = device.room_bytes - constants_bytes
        tight_bytes = int(TIGHT_SHARE * device.room_bytes) - constants_bytes
        # The allocator releases cached segments only near its limit: only then is the log replayed again.
        if reserved_at_most > tight_bytes:
            needed_bytes, reserved_at_most = reserved(tight_bytes), reserved(limit_bytes)
    return PlannedDevice(
        device=index,
        active_bytes=peak_bytes + device.gpu.process_workspace_bytes,
        reserved_bytes=reserved_at_most,
        total_bytes=reserved_at_most,
        needed_bytes=needed_bytes,
        by_kind=by_kind,
    )


def _from_stand_in(strategy: str, config: RunConfig, target: Target, samples: Samples) -> RankPlan:
    """Plan a ddp rank as one device that runs `strategy` on its share of the batch, plus gradient buckets."""
    share = config.train.global_batch // target.num_devices
    changes = {"train.global_batch": share, "data.last": "drop"}  # full steps only, no shorter last one
    single = Candidate(strategy, changes=changes).make_config(config, target)
    rank_plan = plan_rank(single, 0, target, samples)
    for device in rank_plan.devices if rank_plan.reason is None else ():
        buckets_bytes = device.by_kind.get("parameters", 0)
        device.by_kind["communication"] = device.by_kind.get("communication", 0) + buckets_bytes
        device.active_bytes += buckets_bytes
        device.total_bytes += buckets_bytes
        if device.needed_bytes is not None:
            device.needed_bytes += buckets_bytes
        if device.reserved_bytes is not None:
            device.reserved_bytes += buckets_bytes
    return msgspec.structs.replace(rank_plan, notes=[*rank_plan.notes, _DDP_FALLBACK_NOTE])


def refusal_of(error: RankdeckError) -> Problem | None:
    """Return the error's problem if a run would fail with it; None if only planning causes the error."""
    # A context means that other code raised first, probably because its tensors were fake.
    return None if error.__context__ is not None else error.problem


def empty_line(candidate: Candidate, target: Target, error: RankdeckError | None = None) -> PlanLine:
    """Return a candidate's plan line without a prediction."""
    return PlanLine(
        strategy=candidate.strategy,
        options=dict(candidate.options),
        label=candidate.label,
        verdict=CANNOT,
        reason=None if error is None else join_sentences((error.message, error.advice)),
        refusal=None if error is None else refusal_of(error),
        target=target.name,
        configured=candidate.configured,
        changes=dict(candidate.changes),
    )


def build_plan_line(
    candidate: Candidate,
    config: RunConfig,
    target: Target,
    planned: Mapping[int, RankPlan],
    scale: float | None = None,
    samples: Samples = UNIFORM,
    *,
    movement: bool = False,
) -> PlanLine:
    """Build a candidate's line; `movement` adds the data moved in a step. For `scale` see step_cost.py."""
    line = empty_line(candidate, target)
    line.options = dict(config.strategy.options)
    for rank_plan in planned.values():
        line.phrases |= rank_plan.phrases
    notes = [note for rank_plan in planned.values() for note in rank_plan.notes]
    reason: str | None = None
    failed = next((rank_plan for rank_plan in planned.values() if rank_plan.reason is not None), None)
    if failed is None or failed.bound:
        line.devices = _planned_devices(config, target, planned)
        line.verdict, reason = verdict_of(line.devices, target.host_bytes)
        bounds = {rank_plan.bound for rank_plan in planned.values()} | (
            {AT_LEAST} if samples.is_bound else set()
        )
        line.bound = AT_LEAST if AT_LEAST in bounds else AT_MOST if AT_MOST in bounds else None
        line.is_bound = line.bound is not None
        notes.append(samples.note)
    if line.bound == AT_MOST and line.verdict == DOES_NOT_FIT:
        # The upper bound does not fit, but the run may need far less.
        line.verdict, reason = TIGHT, phrase("In the worst case: {reason}", reason=reason)
    if failed is not None:
        too_much = line.verdict == DOES_NOT_FIT
        reason = join_sentences((reason, failed.reason)) if too_much else failed.reason
        line.verdict = DOES_NOT_FIT if too_much else CANNOT
        line.refusal = failed.refusal
    elif line.verdict == FITS and any(device.needed_bytes is not None for device in line.devices):
        notes.append(_CACHE_RELEASE_NOTE)
    if failed is None:
        line.step = _step_time(config, target, planned, scale)
        line.movement = _build_movement(config, target.num_devices, planned) if movement else None
    return msgspec.structs.replace(line, reason=reason, notes=list(dict.fromkeys(filter(None, notes))))


def _build_movement(config: RunConfig, num_devices: int, planned: Mapping[int, RankPlan]) -> Movement | None:
    same_as = {0: 0}
    if not config.strategy_spec.one_process:
        same_as = _rank_representatives(config, num_devices, planned)
        same_as |= {rank: rank for rank in planned}
    operations = {rank: planned[rank].operations for rank in sorted(set(same_as.values()))}
    if not all(operations.values()):
        return None
    return Movement(operations, [same_as[rank] for rank in sorted(same_as)], planned[0].mesh)


def _planned_devices(
    config: RunConfig, target: Target, planned: Mapping[int, RankPlan]
) -> list[PlannedDevice]:
    if config.strategy_spec.one_process:
        by_device = dict(enumerate(planned[0].devices))
    else:
        same_as = _rank_representatives(config, target.num_devices, planned)
        by_device = {rank: _device_of_kind(planned[same], target, rank) for rank, same in same_as.items()}
    return [_complete_device(device, index, config, target) for index, device in by_device.items()]


def _device_of_kind(rank: RankPlan, target: Target, index: int) -> PlannedDevice:
    kind = target.devices[index].kind
    same = (device for device in rank.devices if target.devices[device.device].kind == kind)
    return next(same, rank.devices[0])


def _complete_device(planned: PlannedDevice, index: int, config: RunConfig, target: Target) -> PlannedDevice:
    device = target.devices[index]
    constants_bytes = bytes_outside_allocator(config, device, target.num_devices)
    return msgspec.structs.replace(
        planned,
        device=index,
        name=device.name,
        constants_bytes=constants_bytes,
        total_bytes=planned.total_bytes + constants_bytes,
        needed_bytes=None if planned.needed_bytes is None else planned.needed_bytes + constants_bytes,
        capacity_bytes=device.total_bytes,
        others_bytes=device.others_bytes,
    )


def _step_time(
    config: RunConfig, target: Target, planned: Mapping[int, RankPlan], scale: float | None
) -> StepTime | None:
    ranks = planned.values()
    gpu = target.devices[0].gpu
    return estimate_step_time(
        config.strategy.use,
        [work for rank_plan in ranks for work in rank_plan.work],
        sent_bytes=max(rank_plan.sent_bytes for rank_plan in ranks),
        link_bytes_per_s=None if gpu is None else gpu.link_bytes_per_s,
        bubble=max(rank_plan.bubble for rank_plan in ranks),
        scale=scale,
    )
