"""The rule that finds ranks whose weights have drifted apart, and the cause. Read rule_context.py first."""

from __future__ import annotations

from collections.abc import Iterator

from rankdeck import events
from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, make_finding
from rankdeck.diagnose.findings.samples import DDP_WRAPPER, GROUP_OPTIONS
from rankdeck.run.script_weights import WeightComparison, WeightDifference

_EQUAL_HOOKS = ("allreduce_hook", "fp16_compress", "bf16_compress", "powerSGD_hook")
"""Communication hooks after which all ranks have the same gradients."""
_BYTES_TOLERANCE = 0.02
"""Maximum relative difference between the bytes that a script itself averages per step and the bytes of its
gradients; if the difference is larger, the script averages other tensors."""
_MAX_NAMES = 3
_MIN_STEPS = 10


def find_drifted_ranks(context: RuleContext) -> Problem | None:
    """Find ranks that train the same model but have different weights."""
    comparison = context.state.script.weights.differing
    if comparison is None or comparison.difference is None:
        return _find_ranks_without_steps(context)
    difference = comparison.difference
    is_ddp = _is_ddp(context)
    cause = _find_cause(context, comparison, difference)
    # Without a cause, ranks that average their weights now and then (local SGD) would be reported.
    if cause is None and not (is_ddp and _has_equal_gradients(context)):
        return None
    # Ranks that exchange nothing may each train a model of their own.
    is_averaged = _averages(context, comparison.num_bytes) or _leaves_out(context, comparison)
    if not is_ddp and not is_averaged:
        return None
    text, advice, evidence = cause or _unknown_cause()
    ranks = ", ".join(map(str, difference.ranks[:8]))
    return make_finding(
        "ranks-drifted",
        phrase(
            "The ranks' weights began to differ {when}: {cause}", when=_format_start(difference), cause=text
        ),
        Evidence(
            phrase(
                "on rank {ranks}, {num} of {total} parameters differ from those on rank 0: {names}",
                num=len(difference.names),
                total=difference.num_parameters,
                ranks=ranks,
                names=", ".join(difference.names[:_MAX_NAMES])
                + (", …" if len(difference.names) > _MAX_NAMES else ""),
            )
        ),
        *evidence,
        advice=advice,
    )


def _find_ranks_without_steps(context: RuleContext) -> Problem | None:
    """Find ranks that have never called optimizer.step, although others of the same group have."""
    script, attempt = context.state.script, context.attempt
    # Only a rank that steps is observed, and DDP's backward passes need all ranks of the run.
    if not context.is_over or attempt is None or attempt.started is None or not script.ranks:
        return None
    num_ranks = attempt.started.world_size
    missing = [rank for rank in range(num_ranks) if rank not in script.ranks]
    is_group = all(rank.world_size == num_ranks for rank in script.ranks.values())
    num_steps = max((steps.num_steps for steps in script.steps_by_rank.values()), default=0)
    if not missing or not is_group or not _is_ddp(context) or num_steps < _MIN_STEPS:
        return None
    return make_finding(
        "ranks-drifted",
        plural_phrase(
            tr_noop("Rank {ranks} has never called optimizer.step, so its weights are not trained."),
            tr_noop("Ranks {ranks} have never called optimizer.step, so their weights are not trained."),
            len(missing),
            ranks=", ".join(map(str, missing[:8])),
        ),
        Evidence(phrase("{num} steps on the other ranks", num=num_steps)),
        advice=phrase(
            "Call optimizer.step() on every rank: DistributedDataParallel averages gradients and does not "
            "send weights. Only logging and saving belong inside `if rank == 0`."
        ),
    )


def _format_start(difference: WeightDifference) -> str:
    if difference.step == 0:
        return phrase("before the first step")
    # Few steps have digests: the change was somewhere after the last step with equal ones.
    first = 1 if difference.last_equal_step is None else difference.last_equal_step + 1
    if first == difference.step:
        return phrase("in step {step}", step=first)
    return phrase("between steps {first} and {last}", first=first, last=difference.step)


def _is_ddp(context: RuleContext) -> bool:
    observations = context.state.script.observations.values()
    # Ranks of different groups may train different models.
    return all(
        observation.wrapper == DDP_WRAPPER and not GROUP_OPTIONS & observation.wrapper_options.keys()
        for observation in observations
    )


def _has_equal_gradients(context: RuleContext) -> bool:
    """Check whether all ranks have the same gradients after every communication hook."""
    hooks = _all_anomalies(context, "comm-hook")
    return all(name.startswith(_EQUAL_HOOKS) for event in hooks for name in event.names)


def _averages(context: RuleContext, num_bytes: int | None) -> bool:
    """Check whether the script itself averages gradients of `num_bytes` bytes in each step."""
    script = context.state.script
    # Tensor-parallel ranks also call all_reduce in each step, but on activations, which have another size.
    for rank, totals in script.collectives.items():
        steps = script.steps_by_rank.get(rank)
        if not num_bytes or steps is None or not steps.num_steps:
            return False
        share = totals.num_bytes.get("all_reduce", 0) / steps.num_steps / num_bytes
        if abs(share - 1) > _BYTES_TOLERANCE:
            return False
    return bool(script.collectives)


def _all_anomalies(context: RuleContext, code: str) -> list[events.Anomaly]:
    by_rank = context.state.script.anomalies.get(code, {})
    return [event for rank in sorted(by_rank) for event in by_rank[rank]]


_Cause = tuple[str, str, list[Evidence]]


def _leaves_out(context: RuleContext, comparison: WeightComparison) -> bool:
    """Check whether the script itself averages the gradients of some parameters, but not of others."""
    return bool(comparison.left_out_names) and _averages(context, comparison.equal_bytes)


def _find_cause(
    context: RuleContext, comparison: WeightComparison, difference: WeightDifference
) -> _Cause | None:
    causes = _causes(context, comparison, difference)
    return next((cause for cause in causes if cause is not None), None)


def _causes(
    context: RuleContext, comparison: WeightComparison, difference: WeightDifference
) -> Iterator[_Cause | None]:
    # First, because it also explains a difference before the first step.
    yield _loaded_on_some(context, difference)
    if difference.step == 0:
        yield (
            phrase("they were initialised differently, and were not broadcast."),
            phrase(
                "Set the same seed on all ranks before the model is created, or broadcast the parameters "
                "from rank 0 before the first step; do not change weights after DistributedDataParallel "
                "was created."
            ),
            [],
        )
    yield _bypassed(context)
    yield _not_reduced(context, difference)
    yield _left_out(context, comparison)
    yield _averaged_late(comparison)
    yield _different_rates(difference)
    yield _changed_outside(context, difference)
    yield _stepped_differently(context)


def _loaded_on_some(context: RuleContext, difference: WeightDifference) -> _Cause | None:
    since = -1 if difference.last_equal_step is None else difference.last_equal_step
    loaded = [
        event for event in _all_anomalies(context, "weights-loaded") if since <= event.step <= difference.step
    ]
    ranks = sorted({event.rank for event in loaded})
    # Weights that all ranks load, as a resume does, are the same everywhere.
    if not loaded or len(ranks) == len(context.state.script.observations):
        return None
    first = min(loaded, key=lambda event: event.step)
    return (
        phrase(
            "after step {step}, weights were loaded into the model on rank {rank} only.",
            step=first.step,
            rank=ranks[0],
        ),
        phrase(
            "Load the same weights on every rank, or broadcast the parameters from that rank afterwards: "
            "DistributedDataParallel averages gradients, not weights."
        ),
        [_line_evidence(first, phrase("load_state_dict on rank {rank}", rank=first.rank))],
    )


def _bypassed(context: RuleContext) -> _Cause | None:
    events_found = _all_anomalies(context, "wrapper-bypassed")
    if not events_found:
        return None
    return (
        phrase("the forward pass bypasses DistributedDataParallel, so no gradients are averaged."),
        phrase("Call the wrapped model (ddp(x)), not the module inside it (ddp.module(x))."),
        [_line_evidence(events_found[0], phrase("optimizer.step after a forward pass without the wrapper"))],
    )


def _not_reduced(context: RuleContext, difference: WeightDifference) -> _Cause | None:
    found = [
        event
        for event in _all_anomalies(context, "gradients-not-reduced")
        if event.step <= difference.step + 1
    ]
    if not found:
        return None
    first = min(found, key=lambda event: event.step)
    # The forward pass decides: a backward pass outside of no_sync() does not reduce what began inside.
    return (
        phrase("the last backward pass before optimizer.step ran under no_sync()."),
        phrase(
            "Do not use no_sync() for the last micro-batch before optimizer.step: enter it only while "
            "(micro + 1) % accumulate != 0. Both the forward and the backward pass must be outside."
        ),
        [
            _line_evidence(
                first,
                phrase("optimizer.step with gradients that were not averaged, step {step}", step=first.step),
            )
        ],
    )


def _left_out(context: RuleContext, comparison: WeightComparison) -> _Cause | None:
    # Each rank trains on different samples, so parameters that changed equally had averaged gradients.
    if not _leaves_out(context, comparison):
        return None
    return (
        phrase("the script averages the gradients of some parameters and leaves out the others."),
        phrase(
            "Average the gradients of all trainable parameters between the backward pass and "
            "optimizer.step, including parameters that were added or replaced later; or let "
            "DistributedDataParallel do it."
        ),
        [],
    )


def _averaged_late(comparison: WeightComparison) -> _Cause | None:
    # Averaged weights would have made the ranks equal again.
    if not comparison.is_averaged_late:
        return None
    return (
        phrase("the script averages gradients after optimizer.step, which has used them already."),
        phrase("Call all_reduce on the gradients after the backward pass and before optimizer.step."),
        [],
    )


def _different_rates(difference: WeightDifference) -> _Cause | None:
    # Those at the first difference: a scheduler may make them equal later.
    by_rate = sorted((rate, rank) for rank, rate in difference.rates.items())
    if not by_rate or by_rate[0][0] == by_rate[-1][0]:
        return None
    return (
        phrase(
            "their learning rates differ: {low:g} on rank {low_rank}, {high:g} on rank {high_rank}.",
            low=by_rate[0][0],
            low_rank=by_rate[0][1],
            high=by_rate[-1][0],
            high_rank=by_rate[-1][1],
        ),
        phrase(
            "Compute the learning rate from values that are the same on all ranks: a scheduler that follows "
            "a metric (ReduceLROnPlateau) needs the metric's average over the ranks."
        ),
        [],
    )


def _changed_outside(context: RuleContext, difference: WeightDifference) -> _Cause | None:
    found = [event for event in _all_anomalies(context, "weights-changed") if event.step <= difference.step]
    if not found:
        return None
    ranks = sorted({event.rank for event in found})
    is_everywhere = len(ranks) == len(context.state.script.observations)
    first = min(found, key=lambda event: event.step)
    return (
        phrase("weights were changed outside of optimizer.step, differently on each rank.")
        if is_everywhere
        else phrase("weights were changed outside of optimizer.step, on rank {rank} only.", rank=ranks[0]),
        phrase(
            "Make the same change on every rank (an EMA copied back, clamping, noise, re-initialising): with "
            "the same seed, or on one rank before a broadcast of the parameters."
        ),
        [
            Evidence(
                phrase(
                    "rank {rank}: {num} of {total} parameters changed between steps {step} and {next}",
                    rank=first.rank,
                    num=int(first.numbers.get("names", 0)),
                    total=int(first.numbers.get("parameters", 0)),
                    step=first.step,
                    next=first.step + 1,
                )
            )
        ],
    )


def _stepped_differently(context: RuleContext) -> _Cause | None:
    # Ranks that still run differ by the steps that are not written yet.
    if not context.is_over:
        return None
    by_count = sorted((steps.num_steps, rank) for rank, steps in context.state.script.steps_by_rank.items())
    if not by_count or by_count[0][0] == by_count[-1][0]:
        return None
    return (
        phrase(
            "rank {few_rank} has called optimizer.step {few} times, but rank {many_rank} "
            "has called it {many} times.",
            few=by_count[0][0],
            few_rank=by_count[0][1],
            many=by_count[-1][0],
            many_rank=by_count[-1][1],
        ),
        phrase(
            "Make all ranks take the same decision to step or to skip a batch: average the loss or the "
            "gradient norm over the ranks (all_reduce) before you compare it with a limit."
        ),
        [],
    )


def _unknown_cause() -> _Cause:
    return (
        phrase("their gradients are averaged, so weights must have been changed outside of optimizer.step."),
        phrase(
            "Look for code that changes weights on some ranks only (an EMA copied back, loading, clamping, "
            "re-initialising), and for optimizers or learning rates that differ between ranks."
        ),
        [],
    )


def _line_evidence(event: events.Anomaly, text: str) -> Evidence:
    path, _, line = event.line.rpartition(":")
    return Evidence(text, path or None, int(line) if line.isdecimal() else None)


RULES = (FindingRule("ranks-drifted", find_drifted_ranks),)
