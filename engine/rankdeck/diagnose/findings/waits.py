"""Rules about what steps wait for: data, and other ranks. Read rule_context.py before, pace.py next."""

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
"""Of a step: a loader that keeps up costs a few percent, and below a third it is not what to mend first."""
MIN_WAIT_S = 0.002
"""A step. Collating a small batch takes so long, and a worker process is no faster at it."""
SYNC_SHARE = 0.4
"""Of a step, that no computing hides: at less than that more devices still pay."""
MIN_SYNC_S = 0.005
"""A step. A few small collectives take so long whatever is sent."""
_MIN_SAMPLED = 5
_MIN_SCRIPT_STEPS, _MIN_SCRIPT_S = 20, 5.0
_MAX_WORKERS = 8


def find_input_bound(seen: RuleContext) -> Problem | None:
    """The rank that waits longest for its batches."""
    waits = _loader_waits(seen) or _sampled_waits(seen)
    if not waits:
        return None
    slowest = max(waits, key=lambda rank: waits[rank][0])
    share, wait_s, words = waits[slowest]
    if share < INPUT_SHARE or wait_s < MIN_WAIT_S:
        return None
    others = [waits[rank][0] for rank in waits if rank != slowest]
    rank = slowest if others and max(others) < share / 2 else None
    workers = _recommended_workers(seen)
    return make_finding(
        "input-bound",
        phrase(
            "Steps wait {share} of their time for data: {wait} of each.",
            share=format_percent(share),
            wait=format_seconds(wait_s),
        ),
        seen.rank_evidence(slowest, words),
        advice=_data_advice(seen, workers),
        rank=rank,
        changes={} if workers is None else {"data.workers": workers},
    )


def _loader_waits(seen: RuleContext) -> dict[int, tuple[float, float, str]]:
    """As a script's observer timed them, in every step."""
    script = seen.state.script
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


def _sampled_waits(seen: RuleContext) -> dict[int, tuple[float, float, str]]:
    waits: dict[int, list[tuple[float, float]]] = {}
    steps = [one for one in seen.sampled_steps if not one.simulated]
    for one in steps:
        step_s = {row.rank: row.step_s for row in one.rows if row.step_s > 0}
        for rank, phases in one.by_rank.items():
            if "data" in phases and rank in step_s:
                waits.setdefault(rank, []).append((phases["data"] / step_s[rank], phases["data"]))
    return {
        rank: (
            median(share for share, _ in found),
            median(wait_s for _, wait_s in found),
            phrase(
                "the phase data in the last {n} sampled steps, to step {step}",
                n=len(found),
                step=steps[-1].step,
            ),
        )
        for rank, found in waits.items()
        if len(found) >= _MIN_SAMPLED
    }


def _recommended_workers(seen: RuleContext) -> int | None:
    """How many more worker processes a rank of a configured run could have; None where it has them."""
    if seen.config is None or seen.cores is None:
        return None
    room = max(1, min(_MAX_WORKERS, seen.cores // max(1, len(seen.ranks))))
    return room if room > seen.config.data.workers else None


def _data_advice(seen: RuleContext, workers: int | None) -> str:
    if workers is not None:
        return phrase("Read batches in worker processes: data.workers = {workers}.", workers=workers)
    if not seen.is_observed:
        return phrase("Make reading a sample cheaper: decode and resize once, and keep the result.")
    has_workers = any(one.loader_workers for one in seen.state.script.observations.values())
    if has_workers:
        return phrase(
            "Give the DataLoader more num_workers as far as there are cores, persistent_workers=True, or "
            "make reading a sample cheaper."
        )
    return phrase(
        "Give the DataLoader num_workers=4 and persistent_workers=True, so that it reads while steps run."
    )


def find_comm_bound(seen: RuleContext) -> Problem | None:
    """What of a step is left of syncs that no computing hides, on the rank that waits least: a straggler
    makes the others wait. Ranks of a rehearsal wait for each other's cores: nothing is said of them."""
    found = _script_syncs(seen) or _sampled_syncs(seen)
    if found is None:
        return None
    share, sync_s, rank, words = found
    if share < SYNC_SHARE or sync_s < MIN_SYNC_S:
        return None
    return make_finding(
        "comm-bound",
        phrase(
            "Ranks send and receive for {share} of a step, {time} of it, while nothing is computed.",
            share=format_percent(share),
            time=format_seconds(sync_s),
        ),
        seen.rank_evidence(rank, words),
        advice=phrase(
            "Send less often: a larger batch per device, or gradient accumulation; send less: compressed "
            "gradients (strategy.compress of ddp); or look at the links: rankdeck doctor"
        )
        if not seen.is_observed
        else phrase(
            "Send less often: a larger batch per rank, or gradient accumulation under no_sync; or let "
            "DistributedDataParallel send while backward computes. What the links give: rankdeck doctor"
        ),
    )


def _sampled_syncs(seen: RuleContext) -> tuple[float, float, int, str] | None:
    exposed: dict[int, float] = {}
    if not seen.is_on_gpus or len(seen.sampled_steps) < _MIN_SAMPLED:
        return None
    for rank, told in seen.state.sync.items():
        syncs_s = [one.by_rank.get(rank, {}).get("all-reduce", 0.0) for one in seen.sampled_steps]
        if told.sync_s:
            hidden = min(1.0, (told.overlapped_s or 0.0) / told.sync_s)
            exposed[rank] = median(syncs_s) * (1.0 - hidden)
    if len(exposed) < 2:
        return None
    rank = min(exposed, key=lambda one: exposed[one])
    words = phrase(
        "the phase all-reduce of the last {n} sampled steps, to step {step}, less what backward hides of it",
        n=len(seen.sampled_steps),
        step=seen.sampled_steps[-1].step,
    )
    return exposed[rank] / seen.sampled_step_s, exposed[rank], rank, words


def _script_syncs(seen: RuleContext) -> tuple[float, float, int, str] | None:
    """Those that a script calls itself."""
    steps = seen.state.script.steps_by_rank
    told = {rank: sum(one.seconds.values()) for rank, one in seen.state.script.collectives.items()}
    known = {
        rank: seconds
        for rank, seconds in told.items()
        if rank in steps and steps[rank].num_steps > _MIN_SCRIPT_STEPS and steps[rank].timed_s > _MIN_SCRIPT_S
    }
    if len(known) < 2:
        return None
    rank = min(known, key=lambda one: known[one] / steps[one].timed_s)
    own = steps[rank]
    words = phrase(
        "{time} in collectives that it called itself, of {all} in steps to {last}",
        time=format_seconds(known[rank]),
        all=format_seconds(own.timed_s),
        last=own.last_step,
    )
    return known[rank] / own.timed_s, known[rank] / own.num_steps, rank, words


RULES = (
    FindingRule("input-bound", find_input_bound),
    FindingRule("comm-bound", find_comm_bound, unless=("straggler",)),
)
