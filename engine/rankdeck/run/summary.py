"""A run summed up: what `show --json` and exports say of it.

`summarise` is a contract: keys may be added, never changed. Unknown is None. Every figure is the fold's
(fold.py); what the run's other files say (its end, its configuration, its prediction) is added here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.run.anatomy import totals_s
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.fold import Fold, read_fold
from rankdeck.run.imbalance import Imbalance
from rankdeck.run.left_out import training_data
from rankdeck.run.prediction import read_prediction
from rankdeck.run.problems import failed_problem, lost_problem, reading_problems
from rankdeck.run.scaling import scaled
from rankdeck.run.script_summary import script_facts
from rankdeck.run.verified import verified_facts
from rankdeck.rundir import RunDir, read_labels


def summarise(run: RunDir, fold: Fold | None = None, *, attempt: int | None = None) -> dict[str, Any]:
    """What `rankdeck show --json` prints. `fold` spares reading the events again. With `attempt`, the run as
    that attempt left it."""
    fold = fold or read_fold(run, attempt=attempt)
    is_past = attempt is not None and attempt < run.next_attempt() - 1
    end = None if is_past else run.end()
    outcome, exit_code = _past_end(fold) if is_past else (run.outcome(), end.exit_code if end else None)
    strategy, options, planned = _what_ran(run, fold)
    predicted = _predicted_bytes(run, attempt)
    first, last_loss, labels = fold.first_started, newest_loss(fold), read_labels(run.path)
    return {
        "run": run.name,
        "title": labels.name or run.own_title,
        "tags": list(labels.tags),
        "note": labels.note,
        "archived": labels.is_archived,
        "path": str(run.path),
        "outcome": outcome,
        "reason": end.reason if end else None,
        "strategy": strategy,
        "options": options,
        "steps": fold.step or 0,
        "attempts": fold.num_attempts,
        "loss": {"first": fold.first_loss(), "last": last_loss},
        "loss_scaling": _loss_scaling(fold),
        "evaluation": _evaluation(fold.evaluation),
        "verified": None if fold.verified is None else verified_facts(fold.verified),
        "samples_per_s": fold.samples_per_s(),
        "step_s": fold.step_times(),
        "estimated": not fold.is_exact(),
        "first_step_s": _first_step_s(fold),
        "devices": [_device(device, predicted) for device in fold.devices.values()],
        "imbalance": _imbalance(fold.imbalance()),
        "comm": _comm(fold),
        "bubble": _bubble(fold),
        "pipeline": _pipeline(fold),
        "anatomy": _anatomy(fold),
        "pace": fold.started.pace if fold.started else None,
        "problems": [*map(problem_facts, problems_of(run, fold, outcome))],
        "steps_measured": fold.num_steps_measured,
        "steps_planned": planned,
        "data": training_data(fold),
        "source": fold.source,
        "started": first.started if first else run.environment().get("started"),
        "ended": end.ended if end else None,
        "exit_code": exit_code,
        "weights": str(run.weights) if files.is_regular(run.weights) and not is_past else None,
        "missing_lines": fold.counts.missing,
        "unreadable": fold.counts.unreadable + fold.refused,
        "newer_events": fold.counts.newer,
        **script_facts(run, fold),
    }


def problem_facts(problem: Problem) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(problem),
        "last_lines": list(problem.last_lines),
        "evidence": msgspec.to_builtins(problem.evidence),
    }


def _past_end(fold: Fold) -> tuple[str, int | None]:
    """(outcome, exit code) of an attempt that another one followed."""
    last = max(fold.attempts, default=0)
    ended = fold.attempts[last].ended if last in fold.attempts else None
    return (ended.outcome, ended.exit_code) if ended is not None else ("lost", None)


def problems_of(run: RunDir, fold: Fold, outcome: str) -> list[Problem]:
    """What was raised, and for a run that ended badly at least one cause."""
    found = list(fold.problems)
    if outcome == "lost":
        found.append(lost_problem(run))
    elif outcome == "failed" and not any(problem.severity == "error" for problem in found):
        # The supervisor names one cause for all ranks; without it, what the ranks saw is the best there is.
        found.extend(fold.rank_failures or [failed_problem(run)])
    return found + reading_problems(fold.counts, fold.refused)


def _predicted_bytes(run: RunDir, attempt: int | None) -> dict[int, int]:
    """The predicted peak of live tensors by device; nothing where only a bound is known."""
    line = read_prediction(run, attempt)
    if line is None or line.is_bound:
        return {}
    return {device.device: device.active_bytes for device in line.devices}


def _what_ran(run: RunDir, fold: Fold) -> tuple[str | None, dict[str, Any], int | None]:
    """Strategy, its options and the planned steps; from the configuration for a run that never started."""
    if fold.started is not None:
        return fold.started.strategy, fold.started.options, fold.num_steps_planned
    try:
        config = run.config()
    except ConfigError:
        return None, {}, None
    return config.strategy.use, config.strategy.options, config.train.steps


def newest_loss(fold: Fold) -> float | None:
    """That of the last step; of a script, which is sampled, the newest that is known."""
    if fold.script.is_script:
        newest = fold.newest("loss")
        return None if newest is None else newest[1]
    return _finite(fold.last.loss if fold.last else None)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _evaluation(evaluation: events.Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    return {
        "loss": _finite(evaluation.loss),
        "accuracy": evaluation.accuracy,
        "step": evaluation.step,
        "samples": evaluation.samples,
    }


def _loss_scaling(fold: Fold) -> dict[str, Any] | None:
    """Of fp16: what the loss is multiplied by, and how many steps were left out for it."""
    found = scaled(one.scaling for one in fold.attempts.values())
    return None if found is None else found._asdict()


def _first_step_s(fold: Fold) -> float | None:
    row, started = fold.first_row(), fold.first_started
    ended = fold.script.first_step_ended if fold.script.is_script else None if row is None else row.ended
    return None if started is None or ended is None else _finite(ended - started.started)


def _device(figures: DeviceFigures, predicted: Mapping[int, int]) -> dict[str, Any]:
    of_info, of_run = (
        ("name", "uuid", "kind", "total_bytes", "host"),
        ("utilisation_mean", "used_peak_bytes", "lost_at"),
    )
    return {
        "device": figures.device,
        **{key: getattr(figures.info, key, None) for key in of_info},
        **{key: getattr(figures, key) for key in of_run},
        "peak_bytes": figures.peak_bytes,
        "peak_by_kind": figures.peak_by_kind,
        "live_bytes": figures.live_bytes,
        "live_by_kind": figures.live_by_kind,
        "memory_source": figures.source,
        "sampled_steps": figures.num_sampled or None,
        "breakdown": figures.breakdown,
        "predicted_peak_bytes": predicted.get(figures.device),
    }


def _imbalance(found: Imbalance | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"device": found.device, "excess_bytes": round(found.excess_bytes), "ratio": found.ratio}


def _comm(fold: Fold) -> dict[str, Any] | None:
    comm, sync = fold.comm, fold.sync
    if not comm:
        return None
    size = max(fold.started.world_size if fold.started else 0, max(comm) + 1)
    algorithms = dict.fromkeys(name for _, by_name in sorted(comm.items()) for name in by_name)
    synced = [sync.get(rank) for rank in range(size)]
    return {
        "algorithm": " + ".join(algorithms),
        "sent_bytes_per_step": [sum(comm[rank].values()) if rank in comm else None for rank in range(size)],
        "sync_s": [None if rank is None else rank.sync_s for rank in synced],
        "overlapped_s": [None if rank is None else rank.overlapped_s for rank in synced],
    }


def _bubble(fold: Fold) -> dict[str, float | None] | None:
    """The share of a step that a pipeline's devices wait, measured and by the schedule's theory."""
    return None if fold.bubble is None else {"measured": fold.bubble[0], "theory": fold.bubble[1]}


def _pipeline(fold: Fold) -> list[dict[str, Any]] | None:
    """What each rank said of its stages."""
    if not fold.pipeline:
        return None
    keys = ("rank", "stages", "microbatches", "in_flight", "weight_versions", "staleness")
    return [{key: getattr(event, key) for key in keys} for _, event in sorted(fold.pipeline.items())]


def _anatomy(fold: Fold) -> dict[str, Any] | None:
    """Seconds by phase of each device in the last step that was sampled."""
    last = fold.anatomy
    if last is None:
        return None
    return {
        "step": last.step,
        "seconds": last.seconds,
        "simulated": last.simulated,
        "devices": [{"device": row.device, "seconds_by_phase": dict(totals_s(row))} for row in last.rows],
    }
