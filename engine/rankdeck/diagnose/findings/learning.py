"""Rules about learning: losses, gradients, learning rates. Read rule_context.py first.

Losses are read from binned curves: without curves in the run state these rules find nothing.
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
"""Minimum number of steps to judge a loss; in fewer steps it might not fall even if the model learns."""
MIN_LOSSES = 100
"""Minimum number of recorded losses for a judgement; a script's losses are not recorded in every step."""
MAX_ERROR_SHARE = 0.01
"""Maximum combined standard error of the two compared mean losses, as a share of the earlier mean; more noise
could hide a slow decrease."""
NEAR_ZERO = 0.01
"""Initial mean loss below which a loss has no room to fall."""
WARM_UP_RATIO = 1.5
"""Minimum ratio, during a warm-up, of the newest learning rate to the rate halfway through the attempt's
steps; the ratio is 2 in a linear warm-up."""
EXPLODED_RATIO = 3.0
"""Multiple of the smoothed loss's minimum above which a loss has exploded, if it stays there."""
LOST_GAIN_SHARE = 0.5
"""Share of the earlier decrease that a rise must undo for a loss to count as exploded; EXPLODED_RATIO alone
would report even a tiny rise in a loss whose minimum is near zero."""
ZERO_NORMS = 20
"""Minimum number of sampled steps without any gradient for a problem to be reported; a single step has no
gradient if all its samples are padding."""
MAX_SKIPPED_SHARE, MIN_SKIPPED = 0.05, 20
"""Minimum share and number of skipped steps for a problem to be reported; a healthy gradient scaler skips the
first few steps, and later about one in two thousand."""
_NUM_BINS, _MIN_BINS = 64, 16
_MAX_RATES = 512


class _LossWindow(NamedTuple):
    """Mean loss over a range of steps, with its standard error."""

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
    """Return (first step, middle of the value range) for each bin that has a value."""
    pairs = zip(window.x.tolist(), ((window.low + window.high) / 2).tolist(), strict=True)
    return [(x, middle) for x, middle in pairs if math.isfinite(middle)]


def _first_and_last_tenth(context: RuleContext) -> tuple[_LossWindow, _LossWindow] | None:
    """Return the losses of the first and the last tenth of the steps; None if too few losses were
    recorded."""
    losses = context.state.losses
    first, last = losses.first_x, losses.last_x
    if first is None or last is None or last - first < MIN_STEPS or len(losses) < MIN_LOSSES:
        return None
    tenth = (last - first) / 10
    early, late = _loss_window(losses, first, first + tenth), _loss_window(losses, last - tenth, last)
    return None if early is None or late is None else (early, late)


def find_loss_not_falling(context: RuleContext) -> Problem | None:
    """Find a loss whose mean over the last tenth of the steps is no lower than over the first tenth.

    Scripts that train two models against each other are skipped: their losses need not fall.
    """
    tenths = _first_and_last_tenth(context)
    lead = context.state.script.lead_observation
    if tenths is None or (lead is not None and lead.other_optimizers) or _is_warming_up(context):
        return None
    early, late = tenths
    # Standard errors of independent means add in quadrature.
    is_sure = math.hypot(early.error, late.error) <= MAX_ERROR_SHARE * abs(early.mean)
    if late.mean < early.mean or not is_sure or abs(early.mean) < NEAR_ZERO:
        return None
    return make_finding(
        "loss-not-falling",
        phrase("The loss has not fallen in {steps} steps.", steps=int(late.last)),
        _comparison_evidence(early, late),
        advice=phrase(
            "Try a learning rate ten times higher and one ten times lower. Check that the loss "
            "falls to zero when training repeatedly on a single batch, and that targets match "
            "their inputs."
        ),
    )


def _comparison_evidence(early: _LossWindow, late: _LossWindow) -> Evidence:
    text = phrase(
        "mean loss {early} in steps {first} to {until}, {late} in steps {since} to {last}",
        early=format_loss(early.mean),
        first=int(early.first),
        until=int(early.last),
        late=format_loss(late.mean),
        since=int(late.first),
        last=int(late.last),
    )
    return Evidence(text)


def _is_warming_up(context: RuleContext) -> bool:
    """Check, with rates sampled evenly across the newest attempt, whether the learning rate is still
    rising."""
    if context.attempt is None:
        return False
    rates = context.attempt.table.column("lr")
    some = [rate for rate in rates[:: max(1, len(rates) // _MAX_RATES)].tolist() if math.isfinite(rate)]
    return bool(some) and some[-1] > 0 and some[-1] >= WARM_UP_RATIO * some[len(some) // 2]


def find_loss_exploding(context: RuleContext) -> Problem | None:
    """Find a loss that has risen far above its smoothed minimum and stays there."""
    tenths, smooth = _first_and_last_tenth(context), context.state.loss_ema
    first, last = smooth.first_x, smooth.last_x
    if tenths is None or first is None or last is None:
        return None
    middles = _bin_centers(smooth.window(first, last, 4 * _NUM_BINS))
    least_at, minimum = min(middles, key=lambda pair: pair[1], default=(0.0, 0.0))
    now = tenths[1].mean
    lost = now - minimum
    if (
        not minimum > 0
        or now < EXPLODED_RATIO * minimum
        or lost < LOST_GAIN_SHARE * (tenths[0].mean - minimum)
    ):
        return None
    # The last twentieth must be high throughout: a loss that recovers now and then has not exploded.
    recent = middles[-max(1, len(middles) // 20) :]
    if min(middle for _, middle in recent) < EXPLODED_RATIO * minimum:
        return None
    return make_finding(
        "loss-exploding",
        phrase(
            "The loss has risen to {now}, {ratio:.1f} times its minimum.",
            now=format_loss(now),
            ratio=now / minimum,
        ),
        Evidence(
            phrase(
                "lowest smoothed loss {least} at step {step}, mean loss {now} in steps {since} to {last}",
                least=format_loss(minimum),
                step=int(least_at),
                now=format_loss(now),
                since=int(tenths[1].first),
                last=int(tenths[1].last),
            )
        ),
        advice=phrase(
            "Lower the learning rate, clip the gradients (train.clip_norm = 1.0), and resume "
            "from a checkpoint saved before the loss rose."
        )
        if not context.is_observed
        else phrase(
            "Lower the learning rate, clip the gradients (torch.nn.utils.clip_grad_norm_), and "
            "resume from a checkpoint saved before the loss rose."
        ),
        changes=_clip_changes(context),
    )


def _clip_changes(context: RuleContext) -> dict[str, float]:
    has_norm = context.config is not None and not context.config.train.clip_norm
    return {"train.clip_norm": 1.0} if has_norm else {}


def find_no_gradient(context: RuleContext) -> Problem | None:
    """Find a gradient norm that is exactly zero throughout the newer half of the steps whose norm was
    recorded."""
    norms = context.state.grad_norms
    first, last = norms.first_x, norms.last_x
    # Twice, because only the newer half is examined.
    if first is None or last is None or len(norms) < 2 * ZERO_NORMS:
        return None
    since = first + (last - first) / 2
    window = norms.window(since, last, _NUM_BINS)
    is_newest = window.x >= since
    if not is_newest.any() or bool((window.high[is_newest] != 0).any()):
        return None
    return make_finding(
        "no-gradient",
        phrase("No gradient reaches the parameters: the gradient norm is exactly 0."),
        Evidence(
            phrase(
                "total gradient norm in every sampled step from {first} to {last}",
                first=int(window.x[is_newest][0]),
                last=int(last),
            )
        ),
        advice=phrase(
            "Look for .detach(), .item(), torch.no_grad() or an argmax between parameters and "
            "loss, for a constant loss, and for dead units (a ReLU whose inputs are all "
            "negative)."
        ),
    )


def find_gradient_overflow(context: RuleContext) -> Problem | None:
    worst = None
    for rank, skipped, taken in _skipped_and_taken_steps(context):
        share = skipped / max(1, skipped + taken)
        if skipped >= MIN_SKIPPED and share >= MAX_SKIPPED_SHARE and (worst is None or share > worst[1]):
            worst = rank, share, skipped, taken
    if worst is None:
        return None
    rank, share, skipped, taken = worst
    return make_finding(
        "gradient-overflow",
        phrase("The gradient scaler skips {share} of the steps.", share=format_percent(share)),
        context.rank_evidence(
            rank,
            plural_phrase(
                tr_noop("1 step skipped because of non-finite gradients, {taken} taken"),
                tr_noop("{n} steps skipped because of non-finite gradients, {taken} taken"),
                skipped,
                taken=taken,
            ),
        ),
        advice=phrase(
            "Train in bf16, which has the range of fp32 and needs no scaler; or lower the "
            "learning rate and clip the gradients after scaler.unscale_(optimizer)."
        )
        if context.config is None
        else phrase(
            "Train in bf16, which has the range of fp32 and needs no scaler; or lower "
            "train.optimizer.lr and set train.clip_norm = 1.0."
        ),
        changes={} if context.config is None else {"train.precision": "bf16"},
    )


def _skipped_and_taken_steps(context: RuleContext) -> Iterator[tuple[int, int, int]]:
    """Yield (rank, number of skipped steps, number of steps taken).

    For a configured run only rank 0 is yielded, since all ranks skip the same steps. The step tables of all
    attempts together have a row for each step, skipped or taken.
    """
    attempts = context.state.attempts.values()
    if (summary := summarize_loss_scaling(attempt.scaling for attempt in attempts)) is not None:
        yield (
            0,
            summary.num_left_out,
            max(0, sum(len(attempt.table) for attempt in attempts) - summary.num_left_out),
        )
    for rank, observation in context.state.script.observations.items():
        steps = context.state.script.steps_by_rank.get(rank)
        yield rank, observation.skipped, 0 if steps is None else steps.num_steps


RULES = (
    FindingRule("no-gradient", find_no_gradient),
    FindingRule("gradient-overflow", find_gradient_overflow),
    FindingRule("loss-exploding", find_loss_exploding),
    FindingRule(
        "loss-not-falling",
        find_loss_not_falling,
        unless=(
            "loss-not-finite",
            "learning-rate-zero",
            "scheduler-steps-often",
            "no-gradient",
            "gradient-overflow",
            "loss-exploding",
        ),
    ),
)
