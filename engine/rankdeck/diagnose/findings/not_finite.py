"""The rule about a loss that becomes NaN or infinite. Read rule_context.py first.

The finding reports the step of the first such loss. In that step, the observer of the affected rank checks
which values are not finite, and does so only once: see observer/not_finite.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.diagnose.findings.anomaly_rules import list_names, number_of
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, make_finding


def find_loss_not_finite(context: RuleContext) -> Problem | None:
    """Find a user script whose loss became NaN or infinite; a configured run itself fails with this
    problem."""
    script = context.state.script
    step = script.first_nonfinite_step
    if step is None or context.attempt is None:
        return None
    ranks = sorted(rank for rank, observed in script.observations.items() if observed.not_finite == step)
    examined = [event for events_ in script.anomalies.get("not-finite", {}).values() for event in events_]
    event = min(examined, key=_order_by_cause, default=None)
    # The observer records losses of sampled steps, but on a CPU it reads all of them.
    if event is not None and event.numbers.get("loss") and event.step <= step:
        step, ranks = event.step, [event.rank]
    rank = ranks[0]
    undivided = script.anomalies.get("accumulation-not-divided", {}).get(rank)
    last, values = _values_before(context, step, event)
    is_exact = last >= step - 1 or (event is not None and event.numbers.get("exact"))
    return make_finding(
        "loss-not-finite",
        _describe_start(step, None if is_exact else last + 1, ranks),
        None if event is None else context.rank_evidence(event.rank, _describe(event)),
        context.rank_evidence(rank, values) if values else None,
        advice=_advise(step, int(undivided[0].numbers.get("backwards", 0)) if undivided else 0, event),
        rank=rank if is_exact or len(ranks) == 1 else None,
    )


def _order_by_cause(event: events.Anomaly) -> tuple[int, bool, int]:
    """Order by step. Within a step, a rank whose weights are not finite received them from another rank."""
    return event.step, bool(event.numbers.get("weights")), event.rank


def _describe_start(step: int, since: int | None, ranks: Sequence[int]) -> str:
    """Return the message; `since`: the first step that may be affected, None if it is `step`."""
    if since is None:
        return phrase(
            "The loss is NaN or infinite from step {step} on, first on rank {rank}.", step=step, rank=ranks[0]
        )
    return plural_phrase(
        tr_noop("The loss became NaN or infinite between steps {since} and {step}, first on rank {ranks}."),
        tr_noop("The loss became NaN or infinite between steps {since} and {step}, on ranks {ranks}."),
        len(ranks),
        since=since,
        step=step,
        ranks=", ".join(map(str, ranks[:8])),
    )


def _values_before(context: RuleContext, step: int, event: events.Anomaly | None) -> tuple[int, str]:
    """Return the last step before `step` with a finite loss, rate or norm, and these values as text."""
    assert context.attempt is not None
    table = context.attempt.table
    steps = table.column("step")
    is_before = steps < step
    values: list[str] = []
    last = 0
    for name, label in (
        ("loss", phrase("loss")),
        ("lr", phrase("learning rate")),
        ("grad_norm", phrase("gradient norm")),
    ):
        pairs = zip(steps[is_before][::-1], table.column(name)[is_before][::-1], strict=True)
        at, value = next(((int(at), float(value)) for at, value in pairs if math.isfinite(value)), (0, None))
        last = max(last, at)
        if value is not None:
            values.append(phrase("{name} {value:.4g}", name=label, value=value))
    if event is not None and "scale" in event.numbers:
        scale = event.numbers["scale"]
        values.append(phrase("{name} {value:.4g}", name=phrase("gradient scaler's scale"), value=scale))
    text = ", ".join(values)
    # A script's losses are recorded in some of its steps only.
    if not text or last >= step - 1:
        return last, phrase("just before: {values}", values=text) if text else ""
    return last, phrase("last values, recorded in step {step}: {values}", step=last, values=text)


def _describe(event: events.Anomaly) -> str:
    """Describe which values were not finite."""
    weights, total = number_of(event, "weights"), number_of(event, "parameters")
    names, step = list_names(event), event.step
    if event.numbers.get("module") == 1 and not event.numbers.get("batch"):
        return phrase(
            "the first output that is not finite in step {step} is that of {name}, whose input is not finite "
            "either",
            step=step,
            name=names,
        )
    if event.numbers.get("module") and not event.numbers.get("batch"):
        return phrase(
            "the first output that is not finite in step {step} is that of {name}", step=step, name=names
        )
    if event.numbers.get("batch"):
        return phrase(
            "the last batch that was loaded before step {step} contains NaN or infinite values", step=step
        )
    if not event.numbers.get("loss"):
        return plural_phrase(
            tr_noop("the loss of step {step} is finite, but the gradient of {names} is not"),
            tr_noop(
                "the loss of step {step} is finite, but {n} gradients are not; nearest to the loss: {names}"
            ),
            number_of(event, "gradients"),
            step=step,
            names=names,
        )
    examined = number_of(event, "examined")
    if weights:
        return phrase(
            "before the update of step {step}, {weights} of {total} weights are not finite: {names}",
            step=examined,
            weights=weights,
            total=total,
            names=names,
        )
    if number_of(event, "buffers"):
        return phrase("before step {step}, buffers are not finite: {names}", step=examined, names=names)
    if "outputs" in event.numbers:
        return phrase(
            "the weights and the outputs of all modules are finite in step {step}: the value arose between "
            "the outputs and the loss",
            step=step,
        )
    if "batch" in event.numbers:
        return phrase(
            "the weights and the batch of step {step} are finite: NaN or infinity arose in the forward pass",
            step=step,
        )
    return phrase("all weights are finite before the update of step {step}", step=examined)


def _advise(step: int, backwards: int, event: events.Anomaly | None) -> str:
    numbers = event.numbers if event is not None else {}
    if backwards > 1:
        return phrase(
            "Divide each loss by {n}: a step sums the gradients of {n} backward passes, so the update is "
            "{n} times as large as with their mean.",
            n=backwards,
        )
    if numbers.get("batch") or numbers.get("module") == 1:
        return phrase(
            "Find the sample, and repair it or leave it out: torch.isfinite(batch).all() is "
            "False for its batch."
        )
    if numbers and not numbers.get("loss"):
        return phrase(
            "Look in or after this layer for an operation without a finite gradient: sqrt, norm, log or a "
            "division at 0, or acos at 1. Add a small epsilon inside it."
        )
    if numbers.get("module"):
        return phrase(
            "In that module, look for log(0), a division by 0, an exp that overflows, or results above 65504 "
            "in fp16, and clamp the input of that operation."
        )
    if "outputs" in numbers and not numbers.get("weights"):
        return phrase(
            "Look where the script computes the loss from the model's output: for a mean over nothing (an "
            "empty mask, a batch whose labels are all ignored), log(0), a division by 0, an exp that "
            "overflows, or results above 65504 in fp16."
        )
    if numbers and not numbers.get("weights"):
        return phrase(
            "In the forward pass and the loss, look for log(0), a division by 0, an exp that overflows, or "
            "results above 65504 in fp16, and clamp the input of that operation. "
            "With --observe full, the first module whose output is not finite is reported."
        )
    if step == 1:
        return phrase("Check the batch, the model's outputs and the loss before the first update.")
    return phrase(
        "Lower the learning rate, clip the gradients (torch.nn.utils.clip_grad_norm_), or warm the rate "
        "up. torch.autograd.set_detect_anomaly(True) names the operation whose gradient is NaN."
    )


RULES = (FindingRule("loss-not-finite", find_loss_not_finite),)
