"""Rules about time: a slow rank, an uneven pipeline, slow checkpoint saves, idle GPUs.

Metrics of sampled steps cover only the newest steps (anatomy.py). The rules about waits are in waits.py.
"""

from __future__ import annotations

from statistics import median

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.config import microbatches
from rankdeck.diagnose.findings.rule_context import (
    LOCAL_PHASES,
    FindingRule,
    RuleContext,
    format_percent,
    format_seconds,
    make_finding,
)

STRAGGLER_RATIO = 1.25
"""Minimum ratio of a straggler's time to that of the other ranks; smaller differences come from the samples
or from other load on the machine."""
STRAGGLER_STEPS_SHARE = 0.8
"""Minimum share of the sampled steps in which a straggler is slow; a rank that is slow only now and then is
not a straggler."""
STRAGGLER_STEP_SHARE = 0.05
"""Minimum delay caused by a straggler, as a share of a step; removing a smaller delay would not make steps
noticeably faster."""
BUBBLE_SHARE = 0.35
"""Minimum share of a step that a bubble must take to count as large. With the usual number of microbatches,
the theoretical bubble is at most a third, for any number of stages."""
BUBBLE_BEYOND_THEORY = 0.15
"""Minimum excess of the measured bubble over the theoretical one for stages to count as uneven; kernel
launches and transfers cause a smaller excess."""
MAX_SAVES_SHARE = 0.2
"""Share of the time since the first step above which saves count as slow; a one-minute save every half hour
takes 3 %."""
MIN_SAVES, MIN_SAVES_S = 3, 10.0
IDLE_SHARE = 0.3
"""Mean utilization below which GPUs count as idle; a GPU that trains without waiting is mostly busy."""
MIN_IDLE_S = 60.0
"""Minimum time since the first step for a report of idle GPUs; time before that step is not training."""
_MIN_SAMPLED, _MIN_STRAGGLER_SAMPLED = 5, 8
_NUM_BINS = 64


def find_straggler(context: RuleContext) -> Problem | None:
    """Find a slow rank in a DDP run. Other strategies are skipped, because their ranks wait inside phases or
    do different work."""
    strategy = None if context.state.started is None else context.state.started.strategy
    if strategy != "ddp" or len(context.sampled_steps) < _MIN_STRAGGLER_SAMPLED or len(context.ranks) < 2:
        return None
    steps = [
        {
            rank: sum(phases.get(name, 0.0) for name in LOCAL_PHASES)
            for rank, phases in anatomy.by_rank.items()
        }
        for anatomy in context.sampled_steps
    ]
    median_s = {rank: median(step.get(rank, 0.0) for step in steps) for rank in context.ranks}
    slowest = max(median_s, key=lambda rank: median_s[rank])
    others_s = median(median_s[rank] for rank in median_s if rank != slowest)
    excess_s = median_s[slowest] - others_s
    if (
        median_s[slowest] < STRAGGLER_RATIO * others_s
        or excess_s < STRAGGLER_STEP_SHARE * context.sampled_step_s
    ):
        return None
    slow = [step for step in steps if _is_slow(step, slowest)]
    if len(slow) < STRAGGLER_STEPS_SHARE * len(steps):
        return None
    return make_finding(
        "straggler",
        phrase(
            "Rank {rank} delays the other ranks: its own work takes {ratio:.1f} times as long "
            "per step as theirs ({slow} against {usual}).",
            rank=slowest,
            ratio=median_s[slowest] / others_s if others_s else float("inf"),
            slow=format_seconds(median_s[slowest]),
            usual=format_seconds(others_s),
        ),
        context.rank_evidence(
            slowest,
            phrase(
                "data, forward and loss were slow in {slow} of the last {all} sampled steps, "
                "up to step {step}",
                slow=len(slow),
                all=len(steps),
                step=context.sampled_steps[-1].step,
            ),
        ),
        advice=phrase(
            "Check its device for other processes, a lower clock or a higher temperature "
            "(rankdeck devices). Its samples may also be longer than those of the other ranks."
        ),
        rank=slowest,
    )


def _is_slow(step: dict[int, float], rank: int) -> bool:
    others = [work_s for other, work_s in step.items() if other != rank]
    return bool(others) and step.get(rank, 0.0) >= STRAGGLER_RATIO * median(others)


def find_large_bubble(context: RuleContext) -> Problem | None:
    """Find a large pipeline bubble, caused by too few microbatches or by stages with uneven work.

    In a rehearsal, the measured bubble includes the ranks' wait for CPU cores, so the schedule's theoretical
    bubble is used instead, unless time is simulated.
    """
    measured, theory = context.state.bubble or (None, None)
    is_timed = context.is_on_gpus or (
        context.state.started is not None and context.state.started.pace == "simulated"
    )
    if measured is None or measured < BUBBLE_SHARE or len(context.sampled_steps) < _MIN_SAMPLED:
        return None
    evidence = Evidence(
        phrase(
            "measured: {measured}; theoretical value for this schedule: {theory}",
            measured=format_percent(measured),
            theory=format_percent(theory or 0.0),
        ),
        context.event_file(0),
    )
    message = phrase("The pipeline's devices are idle for {share} of a step.", share=format_percent(measured))
    if theory is not None and theory >= BUBBLE_SHARE:
        more = _next_microbatches(context)
        return make_finding(
            "bubble-large",
            message,
            evidence,
            advice=phrase(
                "Use more microbatches to reduce the idle time: strategy.microbatches = {number}.",
                number=more,
            )
            if more is not None
            else phrase(
                "Use more microbatches to reduce the idle time; this needs a larger train.global_batch."
            ),
            changes={} if more is None else {"strategy.microbatches": more},
        )
    if is_timed and measured >= (theory or 0.0) + BUBBLE_BEYOND_THEORY:
        is_even = context.config is not None and context.config.strategy.options.get("balance") == "time"
        return make_finding(
            "bubble-large",
            message,
            evidence,
            advice=phrase(
                "The stages take different amounts of time: set strategy.cuts so that the "
                "slowest stage gets less work."
            )
            if is_even
            else phrase(
                'The stages take different amounts of time: strategy.balance = "time" balances them.'
            ),
            changes={} if is_even or context.config is None else {"strategy.balance": "time"},
        )
    return None


def _next_microbatches(context: RuleContext) -> int | None:
    """Return the smallest number of microbatches, at least twice the current one, that the configuration
    allows."""
    if context.config is None or context.config.strategy.use != "pipeline":
        return None
    train, now = (
        context.config.train,
        max(pipeline.microbatches for pipeline in context.state.pipeline.values()),
    )
    schedule = context.config.strategy.options["schedule"]
    part_batch = train.global_batch // train.accumulate
    possible = microbatches.microbatch_choices(schedule, len(context.state.devices), part_batch)
    return min((number for number in possible if number >= 2 * now), default=None)


def find_slow_saves(context: RuleContext) -> Problem | None:
    """Find scheduled checkpoint saves that take too large a share of the time since the first step."""
    attempt = context.attempt
    if attempt is None or attempt.num_saves < MIN_SAVES or attempt.saves_s < MIN_SAVES_S:
        return None
    first, last = attempt.table.first, context.state.last_row
    if first is None or last is None or not last.ended > first.ended:
        return None
    share = attempt.saves_s / (last.ended - first.ended)
    if share < MAX_SAVES_SHARE:
        return None
    every = 0 if context.config is None else context.config.train.checkpoint_every
    # Aims at a quarter of the threshold, so that the finding does not return at once.
    rarer = every * round(4 * share / MAX_SAVES_SHARE)
    return make_finding(
        "saves-slow",
        phrase("Saving checkpoints takes {share} of the time.", share=format_percent(min(1.0, share))),
        context.rank_evidence(
            0,
            plural_phrase(
                tr_noop("1 checkpoint, {each}, up to step {step}"),
                tr_noop("{n} checkpoints, {each} each, up to step {step}"),
                attempt.num_saves,
                each=format_seconds(attempt.saves_s / attempt.num_saves),
                step=last.step,
            ),
        ),
        advice=phrase("Save less often: train.checkpoint_every = {every}.", every=rarer)
        if every
        else phrase("Save less often, or to a faster disk."),
        changes={"train.checkpoint_every": rarer} if every else {},
    )


def find_idle_gpus(context: RuleContext) -> Problem | None:
    """Find GPUs that, according to the driver, have been mostly idle since the first step. The rule is
    skipped if another rule has found the reason."""
    started, first = context.state.first_started, context.state.first_row()
    gpus = [device for device in context.state.devices.values() if device.kind == "gpu"]
    if started is None or first is None or not gpus:
        return None
    began_s = first.ended - started.started
    shares = {}
    for device in gpus:
        history = device.utilisation_history
        last_s = history.last_x
        if last_s is None or not last_s - began_s >= MIN_IDLE_S:
            return None
        window = history.window(began_s, last_s, _NUM_BINS)
        shares[device.label] = float(((window.low + window.high) / 2).mean())
    busy = sum(shares.values()) / len(shares)
    if busy >= IDLE_SHARE:
        return None
    return make_finding(
        "gpu-idle",
        phrase("The GPUs are busy only {share} of the time.", share=format_percent(busy)),
        Evidence(
            phrase(
                "GPU utilisation since the first step, as read from the driver: {readings}",
                readings=", ".join(f"{label} {format_percent(share)}" for label, share in shares.items()),
            )
        ),
        advice=phrase(
            "Each step gives the GPUs too little work: use a larger batch per device, or "
            "train.compile = true, which launches fewer and larger kernels."
        )
        if not context.is_observed
        else phrase(
            "Each step gives the GPUs too little work: use a larger batch per rank or "
            "torch.compile, and avoid .item() and printing GPU tensors in every step."
        ),
    )


STRAGGLER_RULES = (FindingRule("straggler", find_straggler),)
RULES = (
    FindingRule("bubble-large", find_large_bubble),
    FindingRule("saves-slow", find_slow_saves),
    FindingRule(
        "gpu-idle", find_idle_gpus, unless=("input-bound", "comm-bound", "bubble-large", "saves-slow")
    ),
)
