"""Rules about what is learned: losses, gradients, learning rates. Read rule_context.py before.

Losses are read from the curves, in bins: a fold without curves says nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.base.units import format_loss
from rankdeck.diagnose.findings.rule_context import FindingRule, RuleContext, format_percent, make_finding
from rankdeck.run.scaling import summarize_loss_scaling

if TYPE_CHECKING:
    from rankdeck.run.series import Curve, Window

MIN_STEPS = 300
"""Before that even a run that learns may not show it."""
MIN_LOSSES = 100
"""Of a script, whose losses are sampled."""
MAX_ERROR_SHARE = 0.01
"""Of the loss: how exactly both means must be known. Where losses scatter more, a slow fall could hide."""
NEAR_ZERO = 0.01
"""A loss that began there has nowhere to fall."""
WARM_UP_RATIO = 1.5
"""A learning rate that is so much higher than halfway is still warming up: a line from zero doubles."""
EXPLODED_RATIO = 3.0
"""Times the least that the smoothed loss was: spikes that heal are below it by then."""
LOST_GAIN_SHARE = 0.5
"""Of what the loss had fallen: near zero a multiple alone means nothing."""
ZERO_NORMS = 20
"""Sampled steps with no gradient at all; a step whose samples are all padding has none either."""
MAX_SKIPPED_SHARE, MIN_SKIPPED = 0.05, 20
"""A scaler skips the first few steps, and one of two thousand later on."""
ZERO_RATES, ZERO_RATES_SHARE = 50, 0.1
"""A schedule may begin and end at zero, and stay there for less than a tenth of a run."""
_NUM_BINS, _MIN_BINS = 64, 16
_MAX_RATES = 512


class _LossWindow(NamedTuple):
    """Losses of a part of the steps: where their mean is, and how exactly that is known."""

    first: float
    last: float
    mean: float
    error: float


def _loss_window(curve: Curve, first: float, last: float) -> _LossWindow | None:
    window = curve.window(first, last, _NUM_BINS)
    middles = [middle for _, middle in _bin_centers(window)]
    if len(middles) < _MIN_BINS:
        return None
    mean = math.fsum(middles) / len(middles)
    variance = math.fsum((middle - mean) ** 2 for middle in middles) / (len(middles) - 1)
    return _LossWindow(first, last, mean, math.sqrt(variance / len(middles)))


def _bin_centers(window: Window) -> list[tuple[float, float]]:
    """(first step, middle) of each bin that knows a value."""
    pairs = zip(window.x.tolist(), ((window.low + window.high) / 2).tolist(), strict=True)
    return [(x, middle) for x, middle in pairs if math.isfinite(middle)]


def _first_and_last_tenth(seen: RuleContext) -> tuple[_LossWindow, _LossWindow] | None:
    """The first and the last tenth of the steps; None where too few losses are known."""
    losses = seen.state.losses
    first, last = losses.first_x, losses.last_x
    if first is None or last is None or last - first < MIN_STEPS or len(losses) < MIN_LOSSES:
        return None
    tenth = (last - first) / 10
    early, late = _loss_window(losses, first, first + tenth), _loss_window(losses, last - tenth, last)
    return None if early is None or late is None else (early, late)


def find_loss_not_falling(seen: RuleContext) -> Problem | None:
    """The last tenth of the steps is no lower than the first. Not of a script that trains two models against
    each other, whose losses need not fall."""
    tenths = _first_and_last_tenth(seen)
    lead = seen.state.script.lead_observation
    if tenths is None or (lead is not None and lead.other_optimizers) or _is_warming_up(seen):
        return None
    early, late = tenths
    is_sure = math.hypot(early.error, late.error) <= MAX_ERROR_SHARE * abs(early.mean)
    if late.mean < early.mean or not is_sure or abs(early.mean) < NEAR_ZERO:
        return None
    return make_finding(
        "loss-not-falling",
        phrase("The loss has not fallen in {steps} steps.", steps=int(late.last)),
        _comparison_evidence(early, late),
        advice=phrase(
            "Try ten times and a tenth of the learning rate; train on one batch again and again, which must "
            "fall to zero; look at whether targets belong to their inputs."
        ),
    )


def _comparison_evidence(early: _LossWindow, late: _LossWindow) -> Evidence:
    words = phrase(
        "mean loss {early} in steps {first} to {until}, {late} in steps {since} to {last}",
        early=format_loss(early.mean),
        first=int(early.first),
        until=int(early.last),
        late=format_loss(late.mean),
        since=int(late.first),
        last=int(late.last),
    )
    return Evidence(words)


def _is_warming_up(seen: RuleContext) -> bool:
    """Looks at some steps of the newest attempt, evenly over those that are held."""
    if seen.attempt is None:
        return False
    rates = seen.attempt.table.column("lr")
    some = [rate for rate in rates[:: max(1, len(rates) // _MAX_RATES)].tolist() if math.isfinite(rate)]
    return bool(some) and some[-1] > 0 and some[-1] >= WARM_UP_RATIO * some[len(some) // 2]


def find_loss_exploding(seen: RuleContext) -> Problem | None:
    """The smoothed loss has come far from the least that it was, and stays there."""
    tenths, smooth = _first_and_last_tenth(seen), seen.state.loss_ema
    first, last = smooth.first_x, smooth.last_x
    if tenths is None or first is None or last is None:
        return None
    middles = _bin_centers(smooth.window(first, last, 4 * _NUM_BINS))
    least_at, least = min(middles, key=lambda pair: pair[1], default=(0.0, 0.0))
    now = tenths[1].mean
    lost = now - least
    if not least > 0 or now < EXPLODED_RATIO * least or lost < LOST_GAIN_SHARE * (tenths[0].mean - least):
        return None
    recent = middles[-max(1, len(middles) // 20) :]
    if min(middle for _, middle in recent) < EXPLODED_RATIO * least:
        return None
    return make_finding(
        "loss-exploding",
        phrase(
            "The loss has risen to {now}, {ratio:.1f} times the least that it was.",
            now=format_loss(now),
            ratio=now / least,
        ),
        Evidence(
            phrase(
                "smoothed loss {least} at step {step}, mean loss {now} in steps {since} to {last}",
                least=format_loss(least),
                step=int(least_at),
                now=format_loss(now),
                since=int(tenths[1].first),
                last=int(tenths[1].last),
            )
        ),
        advice=phrase(
            "Lower the learning rate, bound the gradients (train.clip_norm = 1.0), and go on from a "
            "checkpoint before it rose."
        )
        if not seen.is_observed
        else phrase(
            "Lower the learning rate, bound the gradients (torch.nn.utils.clip_grad_norm_), and go on from a "
            "checkpoint before it rose."
        ),
        changes=_clip_changes(seen),
    )


def _clip_changes(seen: RuleContext) -> dict[str, float]:
    has_norm = seen.config is not None and not seen.config.train.clip_norm
    return {"train.clip_norm": 1.0} if has_norm else {}


def find_no_gradient(seen: RuleContext) -> Problem | None:
    """Exactly zero in the newest half of the steps whose norm is known."""
    norms = seen.state.grad_norms
    first, last = norms.first_x, norms.last_x
    if first is None or last is None or len(norms) < 2 * ZERO_NORMS:
        return None
    since = first + (last - first) / 2
    window = norms.window(since, last, _NUM_BINS)
    is_newest = window.x >= since
    if not is_newest.any() or bool((window.high[is_newest] != 0).any()):
        return None
    return make_finding(
        "no-gradient",
        phrase("No gradient reaches the parameters: its norm is exactly 0."),
        Evidence(
            phrase(
                "norm of all gradients in every sampled step from {first} to {last}",
                first=int(window.x[is_newest][0]),
                last=int(last),
            )
        ),
        advice=phrase(
            "Look for .detach(), .item(), torch.no_grad() or an argmax between parameters and loss, for a "
            "loss that is constant, and for units that are dead (a ReLU whose inputs are all negative)."
        ),
    )


def find_gradient_overflow(seen: RuleContext) -> Problem | None:
    found = None
    for rank, skipped, taken in _skipped_and_taken_steps(seen):
        share = skipped / max(1, skipped + taken)
        if skipped >= MIN_SKIPPED and share >= MAX_SKIPPED_SHARE and (found is None or share > found[1]):
            found = rank, share, skipped, taken
    if found is None:
        return None
    rank, share, skipped, taken = found
    return make_finding(
        "gradient-overflow",
        phrase("The gradient scaler skips {share} of the steps.", share=format_percent(share)),
        seen.rank_evidence(
            rank,
            plural_phrase(
                tr_noop("1 step skipped for gradients that are not finite, {taken} taken"),
                tr_noop("{n} steps skipped for gradients that are not finite, {taken} taken"),
                skipped,
                taken=taken,
            ),
        ),
        advice=phrase(
            "Train in bf16, which has the range of fp32 and needs no scaler; or lower the learning rate and "
            "bound the gradients after scaler.unscale_(optimizer)."
        )
        if seen.config is None
        else phrase(
            "Train in bf16, which has the range of fp32 and needs no scaler; or lower "
            "train.optimizer.lr and set train.clip_norm = 1.0."
        ),
        changes={} if seen.config is None else {"train.precision": "bf16"},
    )


def _skipped_and_taken_steps(seen: RuleContext) -> Iterator[tuple[int, int, int]]:
    """(rank, steps skipped, steps taken). All ranks of a configured run do the same, and count both as
    steps."""
    attempts = seen.state.attempts.values()
    if (found := summarize_loss_scaling(one.scaling for one in attempts)) is not None:
        yield 0, found.num_left_out, max(0, sum(len(one.table) for one in attempts) - found.num_left_out)
    for rank, told in seen.state.script.observations.items():
        steps = seen.state.script.steps_by_rank.get(rank)
        yield rank, told.skipped, 0 if steps is None else steps.num_steps


def find_learning_rate_zero(seen: RuleContext) -> Problem | None:
    """The newest steps were taken at a rate of zero: nothing changed. Of a script's groups of parameters only
    the first one's is known."""
    lead = seen.state.script.lead_observation
    if seen.attempt is None or (lead is not None and len(lead.parameter_groups) > 1):
        return None
    steps, rates = seen.attempt.table.column("step"), seen.attempt.table.column("lr")
    num = max(ZERO_RATES, math.ceil(ZERO_RATES_SHARE * len(seen.attempt.table)))
    newest = rates[-num:]
    known = newest[newest == newest]  # of a script only sampled steps tell theirs
    if len(newest) < num or len(known) < ZERO_RATES / 5 or known.any():
        return None
    return make_finding(
        "learning-rate-zero",
        phrase("The learning rate is 0: steps change nothing."),
        Evidence(
            phrase(
                "in each of the steps {first} to {last} whose rate is known",
                first=int(steps[-num]),
                last=int(steps[-1]),
            )
        ),
        advice=phrase("Make the schedule as long as the run, or end it above zero.")
        if not seen.is_observed
        else phrase(
            "Make the scheduler as long as the training (it counts its own step() calls, not epochs), or end "
            "it above zero."
        ),
    )


RULES = (
    FindingRule("learning-rate-zero", find_learning_rate_zero),
    FindingRule("no-gradient", find_no_gradient),
    FindingRule("gradient-overflow", find_gradient_overflow),
    FindingRule("loss-exploding", find_loss_exploding),
    FindingRule(
        "loss-not-falling",
        find_loss_not_falling,
        unless=("learning-rate-zero", "no-gradient", "gradient-overflow", "loss-exploding"),
    ),
)
