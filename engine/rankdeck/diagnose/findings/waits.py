"""Rules about what steps wait for: data, and other ranks. Read rule_context.py first, pace.py next."""

from __future__ import annotations

from statistics import median

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.rule_context import (
    FindingRule,
    RuleContext,
    format_percent,
    format_seconds,
    make_finding,
)

INPUT_SHARE = 0.3
"""Minimum share of a step that a wait for data must take to be reported. A loader that keeps up costs a few
percent, and other fixes come first if the wait takes less than a third."""
MIN_WAIT_S = 0.002
"""Minimum wait for data per step to be reported; even a worker takes this long to collate a small batch."""
SYNC_SHARE = 0.4
"""Minimum share of a step that communication not hidden by computation must take to be reported; below this,
more devices still pay off."""
MIN_SYNC_S = 0.005
"""Minimum communication time per step to be reported; even a few small collectives take this long."""
_MIN_SAMPLED = 5
_MIN_SCRIPT_STEPS, _MIN_SCRIPT_S = 20, 5.0
_MAX_WORKERS = 8


def find_input_bound(context: RuleContext) -> Problem | None:
    """Find steps that wait for data, on the rank that waits longest."""
    waits = _loader_waits(context) or _sampled_waits(context)
    if not waits:
        return None
    slowest = max(waits, key=lambda rank: waits[rank][0])
    share, wait_s, text = waits[slowest]
    if share < INPUT_SHARE or wait_s < MIN_WAIT_S:
        return None
    others = [waits[rank][0] for rank in waits if rank != slowest]
    # One rank is blamed only if it waits far longer than the others; otherwise the loader is slow everywhere.
    rank = slowest if others and max(others) < share / 2 else None
    workers = _recommended_workers(context)
    return make_finding(
        "input-bound",
        phrase(
            "Steps spend {share} of their time waiting for data: {wait} per step.",
            share=format_percent(share),
            wait=format_seconds(wait_s),
        ),
        context.rank_evidence(slowest, text),
        advice=_data_advice(context, workers),
        rank=rank,
        changes={} if workers is None else {"data.workers": workers},
    )


def _loader_waits(context: RuleContext) -> dict[int, tuple[float, float, str]]:
    """Return each rank's wait for its loader, timed by a script's observer: (share of the time, seconds per
    step, text)."""
    script = context.state.script
    if not script.has_loader:
        return {}
    return {
        rank: (
            steps.wait_s / steps.timed_s,
            steps.wait_s / (steps.num_steps - 1),
            phrase(
                "waited {wait} of {all} for its DataLoader, in steps 2 to {last}",
                wait=format_seconds(steps.wait_s),
                all=format_seconds(steps.timed_s),
                last=steps.last_step,
            ),
        )
        for rank, steps in script.steps_by_rank.items()
        if steps.num_steps > _MIN_SCRIPT_STEPS and steps.timed_s > _MIN_SCRIPT_S
    }


def _sampled_waits(context: RuleContext) -> dict[int, tuple[float, float, str]]:
    waits: dict[int, list[tuple[float, float]]] = {}
    steps = [anatomy for anatomy in context.sampled_steps if not anatomy.simulated]
    for anatomy in steps:
        step_s = {row.rank: row.step_s for row in anatomy.rows if row.step_s > 0}
        for rank, phases in anatomy.by_rank.items():
            if "data" in phases and rank in step_s:
                waits.setdefault(rank, []).append((phases["data"] / step_s[rank], phases["data"]))
    return {
        rank: (
            median(share for share, _ in rank_waits),
            median(wait_s for _, wait_s in rank_waits),
            phrase(
                "data phase of the last {n} sampled steps, up to step {step}",
                n=len(rank_waits),
                step=steps[-1].step,
            ),
        )
        for rank, rank_waits in waits.items()
        if len(rank_waits) >= _MIN_SAMPLED
    }


def _recommended_workers(context: RuleContext) -> int | None:
    """Return how many worker processes each rank of a configured run should have; None if each rank already
    has at least that many, or if the number is unknown."""
    if context.config is None or context.cores is None:
        return None
    room = max(1, min(_MAX_WORKERS, context.cores // max(1, len(context.ranks))))
    return room if room > context.config.data.workers else None


def _data_advice(context: RuleContext, workers: int | None) -> str:
    if workers is not None:
        return phrase("Read batches in worker processes: data.workers = {workers}.", workers=workers)
    if not context.is_observed:
        return phrase("Make reading a sample cheaper: decode and resize once, and cache the result.")
    has_workers = any(
        observation.loader_workers for observation in context.state.script.observations.values()
    )
    if has_workers:
        return phrase(
            "Raise the DataLoader's num_workers as far as the number of cores allows, set "
            "persistent_workers=True, or make reading a sample cheaper."
        )
    return phrase(
        "Set num_workers=4 and persistent_workers=True in the DataLoader, so that it reads "
        "data while steps run."
    )


def find_comm_bound(context: RuleContext) -> Problem | None:
    """Find communication that no computation hides, on the rank that waits least: the others may be waiting
    for a straggler.

    Sampled phases are used only on GPUs, because in a rehearsal ranks also wait for CPU cores.
    """
    sync = _script_syncs(context) or _sampled_syncs(context)
    if sync is None:
        return None
    share, sync_s, rank, text = sync
    if share < SYNC_SHARE or sync_s < MIN_SYNC_S:
        return None
    return make_finding(
        "comm-bound",
        phrase(
            "Ranks communicate for {share} of a step ({time}) without computing.",
            share=format_percent(share),
            time=format_seconds(sync_s),
        ),
        context.rank_evidence(rank, text),
        advice=phrase(
            "Communicate less often (larger batch per device, gradient accumulation), or send "
            "less data (strategy.compress with ddp). Check the links with: rankdeck doctor"
        )
        if not context.is_observed
        else phrase(
            "Communicate less often (larger batch per rank, gradient accumulation under no_sync), or let "
            "DistributedDataParallel communicate during the backward pass. Check the links with: "
            "rankdeck doctor"
        ),
    )


def _sampled_syncs(context: RuleContext) -> tuple[float, float, int, str] | None:
    exposed: dict[int, float] = {}
    if not context.is_on_gpus or len(context.sampled_steps) < _MIN_SAMPLED:
        return None
    for rank, sync in context.state.sync.items():
        syncs_s = [anatomy.by_rank.get(rank, {}).get("all-reduce", 0.0) for anatomy in context.sampled_steps]
        if sync.sync_s:
            hidden = min(1.0, (sync.overlapped_s or 0.0) / sync.sync_s)
            exposed[rank] = median(syncs_s) * (1.0 - hidden)
    if len(exposed) < 2:
        return None
    # The minimum, because on other ranks the wait for a straggler counts as communication.
    rank = min(exposed, key=lambda key: exposed[key])
    text = phrase(
        "all-reduce phase of the last {n} sampled steps, up to step {step}, minus the part that overlaps "
        "the backward pass",
        n=len(context.sampled_steps),
        step=context.sampled_steps[-1].step,
    )
    return exposed[rank] / context.sampled_step_s, exposed[rank], rank, text


def _script_syncs(context: RuleContext) -> tuple[float, float, int, str] | None:
    """Return (share of the time, seconds per step, rank, text) of the rank that spends the smallest share of
    its time in collectives that the script calls itself."""
    steps = context.state.script.steps_by_rank
    seconds_by_rank = {
        rank: sum(collectives.seconds.values())
        for rank, collectives in context.state.script.collectives.items()
    }
    known_seconds = {
        rank: seconds
        for rank, seconds in seconds_by_rank.items()
        if rank in steps and steps[rank].num_steps > _MIN_SCRIPT_STEPS and steps[rank].timed_s > _MIN_SCRIPT_S
    }
    if len(known_seconds) < 2:
        return None
    rank = min(known_seconds, key=lambda key: known_seconds[key] / steps[key].timed_s)
    rank_steps = steps[rank]
    text = phrase(
        "{time} of {all} in collectives that the script calls itself, up to step {last}",
        time=format_seconds(known_seconds[rank]),
        all=format_seconds(rank_steps.timed_s),
        last=rank_steps.last_step,
    )
    return known_seconds[rank] / rank_steps.timed_s, known_seconds[rank] / rank_steps.num_steps, rank, text


RULES = (
    FindingRule("input-bound", find_input_bound),
    FindingRule("comm-bound", find_comm_bound, unless=("straggler",)),
)
