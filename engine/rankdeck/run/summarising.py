"""Makes the summary of a run (summary.py) from its fold and its other files: its end, its configuration, its
prediction. Every figure is the fold's.

Nothing is invented: what was not told is None, and notes say what was not seen of a script and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.masking import mask_arguments
from rankdeck.run.anatomy import totals_s
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.fold import Fold, read_fold
from rankdeck.run.imbalance import Imbalance, lead_of
from rankdeck.run.prediction import read_prediction
from rankdeck.run.problems import failed_problem, lost_problem, reading_problems, script_of, without_steps
from rankdeck.run.scaling import scaled
from rankdeck.run.script_figures import ScriptFigures
from rankdeck.run.summary import (
    BubbleShare,
    CollectiveSummary,
    CommSummary,
    DevicePhases,
    DeviceSummary,
    HeldOut,
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
from rankdeck.rundir import RunDir, read_labels

if TYPE_CHECKING:
    from rankdeck.config.script import ScriptConfig

_DATA_PARALLEL = (
    "DataParallel keeps gradients, optimizer and gathered outputs on its first device. "
    "With DistributedDataParallel and a rank for each device every one holds the same."
)


def summarise(run: RunDir, fold: Fold | None = None, *, attempt: int | None = None) -> RunSummary:
    """`fold` spares reading the events again. With `attempt`, the run as that attempt left it."""
    fold = fold or read_fold(run, attempt=attempt)
    is_past = attempt is not None and attempt < run.next_attempt() - 1
    ending = _past_ending(fold) if is_past else _ending(run)
    strategy, options, planned = _what_ran(run, fold)
    first, labels, script, config = fold.first_started, read_labels(run.path), fold.script, script_of(run)
    is_observed = script.is_observed or (fold.started is None and config is not None)
    return RunSummary(
        run=run.name,
        title=labels.name or run.own_title,
        tags=list(labels.tags),
        note=labels.note,
        archived=labels.is_archived,
        path=str(run.path),
        outcome=ending.outcome,
        reason=ending.reason,
        strategy=strategy,
        options=options,
        steps=fold.step or 0,
        attempts=fold.num_attempts,
        loss=LossRange(fold.first_loss(), newest_loss(fold)),
        loss_scaling=scaled(one.scaling for one in fold.attempts.values()),
        evaluation=_held_out(fold.evaluation),
        verified=verified_summary(fold.verified),
        samples_per_s=fold.samples_per_s(),
        step_s=StepSeconds(**fold.step_times()),
        estimated=not fold.is_exact(),
        first_step_s=_first_step_s(fold),
        devices=_devices(fold, _predicted_bytes(run, attempt)),
        imbalance=_imbalance(fold.imbalance()),
        comm=_comm(fold),
        bubble=None if fold.bubble is None else BubbleShare(*fold.bubble),
        pipeline=_pipeline(fold),
        anatomy=_sampled(fold),
        pace=fold.started.pace if fold.started else None,
        problems=problems_of(run, fold, ending.outcome),
        steps_measured=fold.num_steps_measured,
        steps_planned=planned,
        data=training_data(fold),
        source=fold.source,
        started=first.started if first else run.environment().get("started"),
        ended=ending.ended,
        exit_code=ending.exit_code,
        weights=str(run.weights) if files.is_regular(run.weights) and not is_past else None,
        missing_lines=fold.counts.missing,
        unreadable=fold.counts.unreadable + fold.refused,
        newer_events=fold.counts.newer,
        run_source=events.SCRIPT if is_observed else events.CONFIGURATION,
        script=_script_start(config),
        script_status=script.script_status,
        steps_per_s=fold.steps_per_s(),
        wait_share=script.wait_share,
        loss_step=(fold.newest("loss") or (None,))[0],
        not_finite=script.not_finite or None,
        observed=_observed(script),
        metrics=_metrics(fold),
        collectives=_collectives(script),
        notes=list(_notes(run, fold, config)) if is_observed else [],
    )


def problems_of(run: RunDir, fold: Fold, outcome: str) -> list[Problem]:
    """What was raised, and for a run that ended badly at least one cause."""
    found = list(fold.problems)
    if outcome == "lost":
        found.append(lost_problem(run))
    elif outcome == "failed" and not any(problem.severity == "error" for problem in found):
        # The supervisor names one cause for all ranks; without it, what the ranks saw is the best there is.
        found.extend(fold.rank_failures or [failed_problem(run)])
    return found + reading_problems(fold.counts, fold.refused)


def newest_loss(fold: Fold) -> float | None:
    """That of the last step; where losses are sampled, the newest that is known."""
    if fold.script.is_observed:
        newest = fold.newest("loss")
        return None if newest is None else newest[1]
    return finite(fold.last.loss if fold.last else None)


def training_data(fold: Fold) -> TrainingData | None:
    """None until a rank has told."""
    told = [one.data for one in fold.attempts.values() if one.data is not None]
    return TrainingData(told[-1].samples, told[-1].left_out) if told else None


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


class _Ending(NamedTuple):
    """Of a run or an attempt; `ended` is a Unix time."""

    outcome: str
    exit_code: int | None = None
    ended: float | None = None
    reason: str | None = None


def _ending(run: RunDir) -> _Ending:
    end = run.end()
    if end is None:
        return _Ending(run.outcome())
    return _Ending(run.outcome(), end.exit_code, end.ended, end.reason)


def _past_ending(fold: Fold) -> _Ending:
    """Of an attempt that another one followed."""
    last = max(fold.attempts, default=0)
    ended = fold.attempts[last].ended if last in fold.attempts else None
    return _Ending("lost") if ended is None else _Ending(ended.outcome, ended.exit_code)


def _predicted_bytes(run: RunDir, attempt: int | None) -> dict[int, int]:
    """The predicted peak of live tensors by device; nothing where only a bound is known."""
    line = read_prediction(run, attempt)
    if line is None or line.is_bound:
        return {}
    return {device.device: device.active_bytes for device in line.devices}


def _what_ran(run: RunDir, fold: Fold) -> tuple[str | None, dict[str, object], int | None]:
    """Strategy, its options and the planned steps; from the configuration for a run that never started."""
    if fold.started is not None:
        return fold.started.strategy, fold.started.options, fold.num_steps_planned
    try:
        config = run.config()
    except ConfigError:
        return None, {}, None
    return config.strategy.use, config.strategy.options, config.train.steps


def finite(value: float | None) -> float | None:
    """The value; None for one that is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _held_out(evaluation: events.Evaluation | None) -> HeldOut | None:
    if evaluation is None:
        return None
    return HeldOut(finite(evaluation.loss), evaluation.accuracy, evaluation.step, evaluation.samples)


def _first_step_s(fold: Fold) -> float | None:
    row, started = fold.first_row(), fold.first_started
    ended = fold.script.first_step_ended or (None if row is None else row.ended)
    return None if started is None or ended is None else finite(ended - started.started)


def _devices(fold: Fold, predicted: Mapping[int, int]) -> list[DeviceSummary]:
    return [_device(figures, predicted.get(figures.device)) for figures in fold.devices.values()]


def _device(figures: DeviceFigures, predicted_bytes: int | None) -> DeviceSummary:
    info = figures.info
    return DeviceSummary(
        device=figures.device,
        name=None if info is None else info.name,
        uuid=figures.uuid,
        kind=figures.kind,
        total_bytes=figures.total_bytes,
        host=None if info is None else info.host,
        utilisation_mean=figures.utilisation_mean,
        used_peak_bytes=figures.used_peak_bytes,
        lost_at=figures.lost_at,
        peak_bytes=figures.peak_bytes,
        peak_by_kind=figures.peak_by_kind,
        live_bytes=figures.live_bytes,
        live_by_kind=figures.live_by_kind,
        memory_source=figures.source,
        sampled_steps=figures.num_sampled or None,
        breakdown=figures.breakdown,
        predicted_peak_bytes=predicted_bytes,
    )


def _imbalance(found: Imbalance | None) -> ImbalanceSummary | None:
    return None if found is None else ImbalanceSummary(found.device, round(found.excess_bytes), found.ratio)


def _comm(fold: Fold) -> CommSummary | None:
    comm, sync = fold.comm, fold.sync
    if not comm:
        return None
    size = max(fold.started.world_size if fold.started else 0, max(comm) + 1)
    algorithms = dict.fromkeys(name for _, by_name in sorted(comm.items()) for name in by_name)
    synced = [sync.get(rank) for rank in range(size)]
    return CommSummary(
        algorithm=" + ".join(algorithms),
        sent_bytes_per_step=[sum(comm[rank].values()) if rank in comm else None for rank in range(size)],
        sync_s=[None if rank is None else rank.sync_s for rank in synced],
        overlapped_s=[None if rank is None else rank.overlapped_s for rank in synced],
    )


def _pipeline(fold: Fold) -> list[StageSummary] | None:
    stages = [
        StageSummary(
            one.rank, one.stages, one.microbatches, one.in_flight, one.weight_versions, one.staleness
        )
        for _, one in sorted(fold.pipeline.items())
    ]
    return stages or None


def _sampled(fold: Fold) -> SampledStep | None:
    last = fold.anatomy
    if last is None:
        return None
    devices = [DevicePhases(row.device, dict(totals_s(row))) for row in last.rows]
    return SampledStep(last.step, last.seconds, last.simulated, devices)


def _script_start(config: ScriptConfig | None) -> ScriptStart | None:
    if config is None:
        return None
    table = config.script
    args = mask_arguments(table.args)
    return ScriptStart(table.run, table.kind, args, table.folder, table.python, table.ranks, table.observe)


def _observed(script: ScriptFigures) -> ObservedScript | None:
    lead = script.lead
    if lead is None:
        return None
    facts = {name: getattr(lead, name) for name in ObservedScript.__struct_fields__ if name != "ranks"}
    return ObservedScript(**facts, ranks=list(_ranks(script)))


def _ranks(script: ScriptFigures) -> Iterable[ObservedRank]:
    has_wait = script.has_loader
    for number in sorted(script.seen.keys() | script.ranks.keys() | script.steps_by_rank.keys()):
        rank, steps = script.ranks.get(number), script.steps_by_rank.get(number)
        seen = script.seen.get(number)
        yield ObservedRank(
            rank=number,
            pid=None if rank is None else rank.pid,
            world_size=None if rank is None else rank.world_size,
            steps=0 if steps is None else steps.num_steps,
            skipped=None if seen is None else seen.skipped,
            wait_share=steps.wait_s / steps.timed_s if has_wait and steps and steps.timed_s else None,
        )


def _metrics(fold: Fold) -> dict[str, MetricSummary]:
    return {
        name: MetricSummary(found.last, found.step, found.count, found.through)
        for name, found in fold.metrics.items()
    }


def _collectives(script: ScriptFigures) -> list[CollectiveSummary] | None:
    found = [
        CollectiveSummary(rank, told.calls, told.num_bytes, told.seconds)
        for rank, told in script.collectives.items()
    ]
    return found or None


def _notes(run: RunDir, fold: Fold, config: ScriptConfig | None) -> Iterable[str]:
    """What a person has to know to read the figures."""
    script = fold.script
    if config is not None and config.script.observe == "none":
        yield "the script was not observed (--observe=none)"
    elif not fold.step:
        yield str(without_steps(began=bool(script.ranks), is_over=run.outcome() != "running"))
    yield from _parts_off(script.seen)
    for rank, observed in sorted(script.seen.items()):
        if observed.not_finite is not None:
            yield f"the loss of rank {rank} was not finite in step {observed.not_finite}"
    lead = script.lead
    if lead is not None and lead.skipped:
        yield f"a gradient scaler skipped {_count(lead.skipped, 'step')}"
    for name, count in (lead.other_optimizers if lead is not None else {}).items():
        yield f"{name.rpartition(':')[2]} stepped {_count(count, 'time')} besides the leading optimizer"
    for rank in script.alone:
        yield f"rank {rank} is a process that trained by itself (pid {script.ranks[rank].pid})"
    taken = {rank: steps.num_steps for rank, steps in script.steps_by_rank.items()}
    if (
        run.outcome() == "completed"
        and taken
        and max(taken.values()) - min(taken.values()) > max(1, 0.1 * max(taken.values()))
    ):
        yield "ranks took different numbers of steps: " + ", ".join(
            f"rank {rank} {count}" for rank, count in taken.items()
        )
    if script.num_names_cut:
        yield f"{_count(script.num_names_cut, 'name')} that the script logged were too many, and are not kept"
    if lead is not None and lead.wrapper == "DataParallel" and lead_of(fold.imbalance()) is not None:
        yield _DATA_PARALLEL


def _parts_off(seen: Mapping[int, events.Observed]) -> Iterable[str]:
    """One note for each part of the observer and its reason, with the ranks where not all say so."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, observed in sorted(seen.items()):
        for part, reason in observed.parts.items():
            ranks.setdefault((part, reason), []).append(rank)
    for (part, reason), told in ranks.items():
        some = "" if len(told) == len(seen) else f" on rank {', '.join(map(str, told))}"
        yield f"the observer's part {part} is off{some}: {reason}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
