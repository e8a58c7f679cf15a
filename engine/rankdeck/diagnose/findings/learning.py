"""Rules about what is learned: losses, gradients, learning rates. Read seen.py before.

Losses are read from the curves, in bins: a fold without curves says nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import counted, marked, phrase
from rankdeck.base.units import format_loss
from rankdeck.diagnose.findings.seen import FindingRule, SeenRun, finding, percent
from rankdeck.run.scaling import scaled

if TYPE_CHECKING:
    from rankdeck.run.series import Curve, Window

LEAST_STEPS = 300
"""Before that even a run that learns may not show it."""
LEAST_LOSSES = 100
"""Of a script, whose losses are sampled."""
SURE_SHARE = 0.01
"""Of the loss: how exactly both means must be known. Where losses scatter more, a slow fall could hide."""
NEAR_ZERO = 0.01
"""A loss that began there has nowhere to fall."""
WARM_UP_RATIO = 1.5
"""A learning rate that is so much higher than halfway is still warming up: a line from zero doubles."""
EXPLODED_RATIO = 3.0
"""Times the least that the smoothed loss was: spikes that heal are below it by then."""
GAIN_LOST = 0.5
"""Of what the loss had fallen: near zero a multiple alone means nothing."""
ZERO_NORMS = 20
"""Sampled steps with no gradient at all; a step whose samples are all padding has none either."""
SKIPPED_SHARE, LEAST_SKIPPED = 0.05, 20
"""A scaler skips the first few steps, and one of two thousand later on."""
ZERO_RATES, ZERO_RATES_SHARE = 50, 0.1
"""A schedule may begin and end at zero, and stay there for less than a tenth of a run."""
_BINS, _LEAST_BINS = 64, 16
_NUM_RATES = 512


class _Part(NamedTuple):
    """Losses of a part of the steps: where their mean is, and how exactly that is known."""

    first: float
    last: float
    mean: float
    error: float


def _part(curve: Curve, first: float, last: float) -> _Part | None:
    window = curve.window(first, last, _BINS)
    middles = [middle for _, middle in _middles(window)]
    if len(middles) < _LEAST_BINS:
        return None
    mean = math.fsum(middles) / len(middles)
    variance = math.fsum((middle - mean) ** 2 for middle in middles) / (len(middles) - 1)
    return _Part(first, last, mean, math.sqrt(variance / len(middles)))


def _middles(window: Window) -> list[tuple[float, float]]:
    """(first step, middle) of each bin that knows a value."""
    pairs = zip(window.x.tolist(), ((window.low + window.high) / 2).tolist(), strict=True)
    return [(x, middle) for x, middle in pairs if math.isfinite(middle)]


def _tenths(seen: SeenRun) -> tuple[_Part, _Part] | None:
    """The first and the last tenth of the steps; None where too few losses are known."""
    losses = seen.fold.losses
    first, last = losses.first_x, losses.last_x
    if first is None or last is None or last - first < LEAST_STEPS or len(losses) < LEAST_LOSSES:
        return None
    tenth = (last - first) / 10
    early, late = _part(losses, first, first + tenth), _part(losses, last - tenth, last)
    return None if early is None or late is None else (early, late)


def loss_not_falling(seen: SeenRun) -> Problem | None:
    """The last tenth of the steps is no lower than the first. Not of a script that trains two models against
    each other, whose losses need not fall."""
    tenths = _tenths(seen)
    lead = seen.fold.script.lead
    if tenths is None or (lead is not None and lead.other_optimizers) or _is_warming_up(seen):
        return None
    early, late = tenths
    is_sure = math.hypot(early.error, late.error) <= SURE_SHARE * abs(early.mean)
    if late.mean < early.mean or not is_sure or abs(early.mean) < NEAR_ZERO:
        return None
    return finding(
        "loss-not-falling",
        phrase("The loss has not fallen in {steps} steps.", steps=int(late.last)),
        _compared(early, late),
        advice=phrase(
            "Try ten times and a tenth of the learning rate; train on one batch again and again, which must "
            "fall to zero; look at whether targets belong to their inputs."
        ),
    )


def _compared(early: _Part, late: _Part) -> Evidence:
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


def _is_warming_up(seen: SeenRun) -> bool:
    """Looks at some steps of the newest attempt, evenly over those that are held."""
    if seen.attempt is None:
        return False
    rates = seen.attempt.table.column("lr")
    some = [rate for rate in rates[:: max(1, len(rates) // _NUM_RATES)].tolist() if math.isfinite(rate)]
    return bool(some) and some[-1] > 0 and some[-1] >= WARM_UP_RATIO * some[len(some) // 2]


def loss_exploding(seen: SeenRun) -> Problem | None:
    """The smoothed loss has come far from the least that it was, and stays there."""
    tenths, smooth = _tenths(seen), seen.fold.loss_ema
    first, last = smooth.first_x, smooth.last_x
    if tenths is None or first is None or last is None:
        return None
    middles = _middles(smooth.window(first, last, 4 * _BINS))
    least_at, least = min(middles, key=lambda pair: pair[1], default=(0.0, 0.0))
    now = tenths[1].mean
    lost = now - least
    if not least > 0 or now < EXPLODED_RATIO * least or lost < GAIN_LOST * (tenths[0].mean - least):
        return None
    recent = middles[-max(1, len(middles) // 20) :]
    if min(middle for _, middle in recent) < EXPLODED_RATIO * least:
        return None
    return finding(
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
        cure=_clipped(seen),
    )


def _clipped(seen: SeenRun) -> dict[str, float]:
    has_norm = seen.config is not None and not seen.config.train.clip_norm
    return {"train.clip_norm": 1.0} if has_norm else {}


def no_gradient(seen: SeenRun) -> Problem | None:
    """Exactly zero in the newest half of the steps whose norm is known."""
    norms = seen.fold.grad_norms
    first, last = norms.first_x, norms.last_x
    if first is None or last is None or len(norms) < 2 * ZERO_NORMS:
        return None
    since = first + (last - first) / 2
    window = norms.window(since, last, _BINS)
    is_newest = window.x >= since
    if not is_newest.any() or bool((window.high[is_newest] != 0).any()):
        return None
    return finding(
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


def gradient_overflow(seen: SeenRun) -> Problem | None:
    found = None
    for rank, skipped, taken in _skipped_and_taken(seen):
        share = skipped / max(1, skipped + taken)
        if skipped >= LEAST_SKIPPED and share >= SKIPPED_SHARE and (found is None or share > found[1]):
            found = rank, share, skipped, taken
    if found is None:
        return None
    rank, share, skipped, taken = found
    return finding(
        "gradient-overflow",
        phrase("The gradient scaler skips {share} of the steps.", share=percent(share)),
        seen.said_by(
            rank,
            counted(
                marked("1 step skipped for gradients that are not finite, {taken} taken"),
                marked("{n} steps skipped for gradients that are not finite, {taken} taken"),
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
        cure={} if seen.config is None else {"train.precision": "bf16"},
    )


def _skipped_and_taken(seen: SeenRun) -> Iterator[tuple[int, int, int]]:
    """(rank, steps skipped, steps taken). All ranks of a configured run do the same, and count both as
    steps."""
    attempts = seen.fold.attempts.values()
    if (found := scaled(one.scaling for one in attempts)) is not None:
        yield 0, found.num_left_out, max(0, sum(len(one.table) for one in attempts) - found.num_left_out)
    for rank, told in seen.fold.script.seen.items():
        steps = seen.fold.script.steps_by_rank.get(rank)
        yield rank, told.skipped, 0 if steps is None else steps.num_steps


def learning_rate_zero(seen: SeenRun) -> Problem | None:
    """The newest steps were taken at a rate of zero: nothing changed. Of a script's groups of parameters only
    the first one's is known."""
    lead = seen.fold.script.lead
    if seen.attempt is None or (lead is not None and len(lead.parameter_groups) > 1):
        return None
    steps, rates = seen.attempt.table.column("step"), seen.attempt.table.column("lr")
    num = max(ZERO_RATES, math.ceil(ZERO_RATES_SHARE * len(seen.attempt.table)))
    newest = rates[-num:]
    known = newest[newest == newest]  # of a script only sampled steps tell theirs
    if len(newest) < num or len(known) < ZERO_RATES / 5 or known.any():
        return None
    return finding(
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
    FindingRule("learning-rate-zero", learning_rate_zero),
    FindingRule("no-gradient", no_gradient),
    FindingRule("gradient-overflow", gradient_overflow),
    FindingRule("loss-exploding", loss_exploding),
    FindingRule(
        "loss-not-falling",
        loss_not_falling,
        unless=("learning-rate-zero", "no-gradient", "gradient-overflow", "loss-exploding"),
    ),
)
