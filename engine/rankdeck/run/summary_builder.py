"""Build a run's summary (summary.py) from its state, exit record, configuration and prediction.

All metrics come from the run state. Values that were not reported are None; notes list what was not observed,
and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.masking import mask_arguments
from rankdeck.run.anatomy import seconds_by_phase
from rankdeck.run.devices import DeviceState
from rankdeck.run.hang_warning import is_hang_problem
from rankdeck.run.imbalance import Imbalance, lead_device
from rankdeck.run.prediction import read_prediction
from rankdeck.run.problems import (
    failed_problem,
    lost_problem,
    no_steps_text,
    read_script_config,
    reading_problems,
)
from rankdeck.run.run_state import RunState, read_run_state
from rankdeck.run.scaling import summarize_loss_scaling
from rankdeck.run.script_state import ScriptState
from rankdeck.run.summary import (
    BubbleShare,
    CollectiveSummary,
    CommSummary,
    DevicePhases,
    DeviceSummary,
    EvaluationSummary,
    ImbalanceSummary,
    LossRange,
    MetricSummary,
    ObservedRank,
    ObservedScript,
    RunSummary,
    SampledStep,
    ScriptStart,
    StageSummary,
    StepSeconds,
    TrainingData,
    VerifiedSummary,
)
from rankdeck.run.verified import verified_text
from rankdeck.run_dir import RunDir, read_labels

if TYPE_CHECKING:
    from rankdeck.config.script import ScriptConfig

_DATA_PARALLEL = (
    "DataParallel keeps gradients, optimizer state and gathered outputs on its first device. "
    "DistributedDataParallel, with one rank per device, uses the same memory on every device."
)


def summarize(run: RunDir, state: RunState | None = None, *, attempt: int | None = None) -> RunSummary:
    """Summarize a run, or its state after `attempt`. Passing `state` avoids reading the events again."""
    state = state or read_run_state(run, attempt=attempt)
    is_past = attempt is not None and attempt < run.next_attempt() - 1
    ending = _past_end(state) if is_past else _read_end(run)
    strategy, options, planned = _strategy_and_steps(run, state)
    labels, script, config = read_labels(run.path), state.script, read_script_config(run)
    is_observed = script.is_observed or (state.started is None and config is not None)  # before any event
    return RunSummary(
        run=run.name,
        title=labels.name or run.attempt_title,
        tags=list(labels.tags),
        note=labels.note,
        archived=labels.is_archived,
        path=str(run.path),
        outcome=ending.outcome,
        reason=ending.reason,
        strategy=strategy,
        options=options,
        steps=state.step or 0,
        attempts=state.num_attempts,
        loss=LossRange(state.first_loss(), newest_loss(state)),
        loss_scaling=summarize_loss_scaling(run_attempt.scaling for run_attempt in state.attempts.values()),
        evaluation=_evaluation_summary(state.evaluation),
        verified=verified_summary(state.verified),
        samples_per_s=state.samples_per_s(),
        step_s=StepSeconds(**state.step_times()),
        estimated=not state.is_exact(),
        first_step_s=_first_step_s(state),
        devices=_device_summaries(state, _predicted_bytes(run, attempt)),
        imbalance=_imbalance_summary(state.imbalance()),
        comm=_comm_summary(state),
        bubble=None if state.bubble is None else BubbleShare(*state.bubble),
        pipeline=_stage_summaries(state),
        anatomy=_sampled_step(state),
        pace=state.started.pace if state.started else None,
        problems=problems_of(run, state, ending.outcome),
        steps_measured=state.num_measured_steps,
        steps_planned=planned,
        data=training_data_summary(state),
        source=state.source,
        started=_start_time(run, state),
        ended=ending.ended,
        exit_code=ending.exit_code,
        weights=str(run.weights) if files.is_regular(run.weights) and not is_past else None,
        missing_lines=state.counts.missing,
        unreadable=state.counts.unreadable + state.num_rejected,
        newer_events=state.counts.newer,
        run_source=events.SCRIPT if is_observed else events.CONFIGURATION,
        script=_script_start(config),
        script_status=script.script_status,
        steps_per_s=state.steps_per_s(),
        wait_share=script.wait_share,
        loss_step=(state.newest_value("loss") or (None,))[0],
        not_finite=script.first_nonfinite_step or None,
        observed=_observed_script(script),
        metrics=_metric_summaries(state),
        collectives=_collective_summaries(script),
        notes=list(_notes(run, state, config)) if is_observed else [],
    )


def _start_time(run: RunDir, state: RunState) -> float | None:
    first = state.first_started
    return first.started if first else run.environment().get("started")


def problems_of(run: RunDir, state: RunState, outcome: str) -> list[Problem]:
    """Return the problems that were raised; for a failed or lost run, these include at least one cause."""
    has_moved_on = outcome == "completed" or state.has_moved_on
    problems = [problem for problem in state.problems if not (has_moved_on and is_hang_problem(problem))]
    if outcome == "lost":
        problems.append(lost_problem(run))
    elif outcome == "failed" and not any(problem.severity == "error" for problem in problems):
        # The supervisor names one cause for all ranks; without it, the ranks' own failures tell most.
        problems.extend(state.rank_failures or [failed_problem(run)])
    return problems + reading_problems(state.counts, state.num_rejected)


def newest_loss(state: RunState) -> float | None:
    """Return the last step's loss; if losses are sampled, the newest known loss."""
    if state.script.is_observed:
        newest = state.newest_value("loss")
        return None if newest is None else newest[1]
    return finite_or_none(state.last_row.loss if state.last_row else None)


def training_data_summary(state: RunState) -> TrainingData | None:
    """Summarize the training data; None until a rank has reported the number of samples."""
    data_events = [attempt.data for attempt in state.attempts.values() if attempt.data is not None]
    return TrainingData(data_events[-1].samples, data_events[-1].left_out) if data_events else None


def verified_summary(verified: events.Verified | None) -> VerifiedSummary | None:
    if verified is None:
        return None
    return VerifiedSummary(
        outcome=verified.outcome,
        cause=verified.cause,
        names=verified.names,
        largest=verified.largest,
        precision=verified.precision,
        samples=verified.samples,
        steps=verified.steps,
        layers=verified.layers,
        seconds=verified.seconds,
        text=str(verified_text(verified)),
    )


class _AttemptEnd(NamedTuple):
    outcome: str
    exit_code: int | None = None
    ended: float | None = None  # Unix time
    reason: str | None = None


def _read_end(run: RunDir) -> _AttemptEnd:
    end = run.exit_record()
    if end is None:
        return _AttemptEnd(run.outcome())
    return _AttemptEnd(run.outcome(), end.exit_code, end.ended, end.reason)


def _past_end(state: RunState) -> _AttemptEnd:
    """Return how the last attempt in `state` ended; the run may have later attempts that `state` omits."""
    last = max(state.attempts, default=0)
    ended = state.attempts[last].ended if last in state.attempts else None
    return _AttemptEnd("lost") if ended is None else _AttemptEnd(ended.outcome, ended.exit_code)


def _predicted_bytes(run: RunDir, attempt: int | None) -> dict[int, int]:
    """Return the predicted peak of live tensors by device; empty if the prediction is only a bound."""
    line = read_prediction(run, attempt)
    if line is None or line.is_bound:
        return {}
    return {device.device: device.active_bytes for device in line.devices}


def _strategy_and_steps(run: RunDir, state: RunState) -> tuple[str | None, dict[str, object], int | None]:
    """Return strategy, options and planned step count, from the configuration if the run never started."""
    if state.started is not None:
        return state.started.strategy, state.started.options, state.num_steps_planned
    try:
        config = run.config()
    except ConfigError:
        return None, {}, None
    return config.strategy.use, config.strategy.options, config.train.steps


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _evaluation_summary(evaluation: events.Evaluation | None) -> EvaluationSummary | None:
    if evaluation is None:
        return None
    return EvaluationSummary(
        finite_or_none(evaluation.loss), evaluation.accuracy, evaluation.step, evaluation.samples
    )


def _first_step_s(state: RunState) -> float | None:
    row, started = state.first_row(), state.first_started
    ended = state.script.first_step_time or (None if row is None else row.ended)
    return None if started is None or ended is None else finite_or_none(ended - started.started)


def _device_summaries(state: RunState, predicted: Mapping[int, int]) -> list[DeviceSummary]:
    return [_device_summary(device, predicted.get(device.device)) for device in state.devices.values()]


def _device_summary(device: DeviceState, predicted_bytes: int | None) -> DeviceSummary:
    info = device.info
    return DeviceSummary(
        device=device.device,
        name=None if info is None else info.name,
        uuid=device.uuid,
        kind=device.kind,
        total_bytes=device.total_bytes,
        host=None if info is None else info.host,
        utilisation_mean=device.utilisation_mean,
        used_peak_bytes=device.used_peak_bytes,
        lost_at=device.lost_at,
        peak_bytes=device.peak_bytes,
        peak_by_kind=device.peak_by_kind,
        live_bytes=device.live_bytes,
        live_by_kind=device.live_by_kind,
        memory_source=device.source,
        sampled_steps=device.num_sampled or None,
        breakdown=device.breakdown,
        predicted_peak_bytes=predicted_bytes,
    )


def _imbalance_summary(imbalance: Imbalance | None) -> ImbalanceSummary | None:
    return (
        None
        if imbalance is None
        else ImbalanceSummary(imbalance.device, round(imbalance.excess_bytes), imbalance.ratio)
    )


def _comm_summary(state: RunState) -> CommSummary | None:
    comm, sync = state.comm, state.sync
    if not comm:
        return None
    size = max(state.started.world_size if state.started else 0, max(comm) + 1)
    algorithms = dict.fromkeys(name for _, by_name in sorted(comm.items()) for name in by_name)
    synced = [sync.get(rank) for rank in range(size)]
    return CommSummary(
        algorithm=" + ".join(algorithms),
        sent_bytes_per_step=[sum(comm[rank].values()) if rank in comm else None for rank in range(size)],
        sync_s=[None if rank is None else rank.sync_s for rank in synced],
        overlapped_s=[None if rank is None else rank.overlapped_s for rank in synced],
    )


def _stage_summaries(state: RunState) -> list[StageSummary] | None:
    stages = [
        StageSummary(
            pipeline.rank,
            pipeline.stages,
            pipeline.microbatches,
            pipeline.in_flight,
            pipeline.weight_versions,
            pipeline.staleness,
        )
        for _, pipeline in sorted(state.pipeline.items())
    ]
    return stages or None


def _sampled_step(state: RunState) -> SampledStep | None:
    last = state.anatomy
    if last is None:
        return None
    devices = [DevicePhases(row.device, dict(seconds_by_phase(row))) for row in last.rows]
    return SampledStep(last.step, last.seconds, last.simulated, devices)


def _script_start(config: ScriptConfig | None) -> ScriptStart | None:
    if config is None:
        return None
    table = config.script
    args = mask_arguments(table.args)  # they may contain secrets
    return ScriptStart(table.run, table.kind, args, table.folder, table.python, table.ranks, table.observe)


def _observed_script(script: ScriptState) -> ObservedScript | None:
    lead = script.lead_observation
    if lead is None:
        return None
    facts = {name: getattr(lead, name) for name in ObservedScript.__struct_fields__ if name != "ranks"}
    return ObservedScript(**facts, ranks=list(_observed_ranks(script)))


def _observed_ranks(script: ScriptState) -> Iterable[ObservedRank]:
    has_wait = script.has_loader
    for number in sorted(script.observations.keys() | script.ranks.keys() | script.steps_by_rank.keys()):
        rank, steps = script.ranks.get(number), script.steps_by_rank.get(number)
        observation = script.observations.get(number)
        yield ObservedRank(
            rank=number,
            pid=None if rank is None else rank.pid,
            world_size=None if rank is None else rank.world_size,
            steps=0 if steps is None else steps.num_steps,
            skipped=None if observation is None else observation.skipped,
            wait_share=steps.wait_s / steps.timed_s if has_wait and steps and steps.timed_s else None,
        )


def _metric_summaries(state: RunState) -> dict[str, MetricSummary]:
    return {
        name: MetricSummary(metric.last, metric.step, metric.count, metric.through)
        for name, metric in state.metrics.items()
    }


def _collective_summaries(script: ScriptState) -> list[CollectiveSummary] | None:
    summaries = [
        CollectiveSummary(rank, totals.calls, totals.num_bytes, totals.seconds)
        for rank, totals in script.collectives.items()
    ]
    return summaries or None


def _notes(run: RunDir, state: RunState, config: ScriptConfig | None) -> Iterable[str]:
    """Yield the notes that a reader needs to interpret the metrics."""
    script = state.script
    if config is not None and config.script.observe == "none":
        yield "the script was not observed (--observe=none)"
    elif not state.step:
        yield str(no_steps_text(has_started=bool(script.ranks), is_over=run.outcome() != "running"))
    yield from _disabled_parts_notes(script.observations)
    for rank, observed in sorted(script.observations.items()):
        if observed.not_finite is not None:
            yield f"the loss of rank {rank} was not finite in step {observed.not_finite}"
    lead = script.lead_observation
    if lead is not None and lead.skipped:
        yield f"a gradient scaler skipped {_count_text(lead.skipped, 'step')}"
    for name, count in (lead.other_optimizers if lead is not None else {}).items():
        times = _count_text(count, "time")
        yield f"{name.rpartition(':')[2]} also stepped {times}, in addition to the main optimizer"
    for rank in script.standalone_ranks:
        yield f"rank {rank} is a process that trained on its own (pid {script.ranks[rank].pid})"
    taken = {rank: steps.num_steps for rank, steps in script.steps_by_rank.items()}
    if (
        run.outcome() == "completed"
        and taken
        and max(taken.values()) - min(taken.values()) > max(1, 0.1 * max(taken.values()))
    ):
        yield "ranks took different numbers of steps: " + ", ".join(
            f"rank {rank} {count}" for rank, count in taken.items()
        )
    if script.num_cut_names:
        cut = _count_text(script.num_cut_names, "name")
        yield f"the script logged too many names: the values of {cut} were not stored"
    if lead is not None and lead.wrapper == "DataParallel" and lead_device(state.imbalance()) is not None:
        yield _DATA_PARALLEL


def _disabled_parts_notes(observations: Mapping[int, events.Observed]) -> Iterable[str]:
    """Yield a note for each reason why a part of the observer is disabled; the note names the ranks that
    report it, unless all ranks do."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, observed in sorted(observations.items()):
        for part, reason in observed.parts.items():
            ranks.setdefault((part, reason), []).append(rank)
    for (part, reason), affected in ranks.items():
        some = "" if len(affected) == len(observations) else f" on rank {', '.join(map(str, affected))}"
        yield f"the observer's part {part} is off{some}: {reason}"


def _count_text(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
