"""From a live run to its curves over steps, and to what it logs itself: plain functions, no widgets made.

Where a curve has nothing to show, `awaited` says why in one line.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_count
from rankdeck.run.problems import without_steps
from rankdeck.run.series import Curve
from rankdeck.run.summarising import training_data
from rankdeck_app.language import spoken, tr
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.widgets.curve_plot import LOSS_WORDS
from rankdeck_app.widgets.metric_curves import MetricCurve, MetricsFigure

_SAMPLED_WORDS = (marked("sampled"), marked("EMA"), "")
_PACE_WORDS = (marked("now"), marked("smoothed"), "")


@dataclass(frozen=True)
class CurveFigure:
    """`words` are those of the readout; what has none is not in it."""

    raw: Curve
    average: Curve
    points: Curve | None = None
    words: tuple[str, str, str] = LOSS_WORDS
    digits: int = 5

    @property
    def series(self) -> tuple[Curve, Curve, Curve | None]:
        return self.raw, self.average, self.points


def curves(run: RunAnswers) -> dict[str, CurveFigure]:
    """By card. Pace is in samples once they are counted, else in steps."""
    fold, script = run.fold, run.fold.script
    pace, digits = (run.fold.rates, run.fold.rate_ema), 0
    if not _counts_samples(run):
        pace, digits = (script.step_rates, script.step_rate_ema), 2
    loss_words = LOSS_WORDS if run.is_planned else _SAMPLED_WORDS
    return {
        "loss": CurveFigure(run.fold.losses, run.fold.loss_ema, run.fold.held_out, loss_words, 4),
        "rate": CurveFigure(*pace, None, _PACE_WORDS, digits),
        "wait": CurveFigure(script.waits, script.waits, None, ("%", "", ""), 1),
        "lr": CurveFigure(fold.lrs, fold.lrs, None, (marked("lr"), "", "")),
        "norm": CurveFigure(fold.grad_norms, fold.grad_norms, None, (marked("norm"), "", "")),
    }


def _counts_samples(run: RunAnswers) -> bool:
    return bool(run.is_planned) or run.samples_per_s is not None


def loss_subtitle(run: RunAnswers) -> tuple[str, ...]:
    if not run.is_planned:
        return (tr("what backward ran on, sampled"), tr("sampled")) if len(run.fold.losses) else ("",)
    if len(run.fold.held_out):
        return tr("raw and EMA, ◆ held-out"), tr("EMA, ◆ held-out"), tr("◆ held-out")
    return (tr("raw and EMA"),)


def rate_subtitle(run: RunAnswers) -> tuple[str, str]:
    unit = tr("samples/s") if _counts_samples(run) else tr("steps/s")
    data = training_data(run.fold)
    left_out = spoken(data.text()) if data is not None else ""
    return "; ".join(filter(None, (unit, left_out))), unit


def wait_subtitle(run: RunAnswers) -> str:
    return "" if run.fold.script.wait_share is None else tr("% of a step")


def awaited(run: RunAnswers, card: str) -> str:
    """Why a curve has nothing to show."""
    if run.is_planned:
        if card == "norm":
            return tr("no gradient was clipped: train.clip_norm tells their norms")
        return tr("waiting for the first step")
    seen = run.fold.script.lead
    if not run.is_observed:
        return tr("not observed: it runs with --observe none")
    if seen is not None and card in seen.parts:
        return tr("not observed: {what}", what=seen.parts[card])
    if run.step is None:
        if run.is_over:
            return spoken(without_steps(began=bool(run.fold.script.ranks), is_over=True))
        return tr("waiting for the first optimizer step")
    return tr("none was seen") if run.is_over else tr("none was seen yet")


def metrics(run: RunAnswers) -> MetricsFigure:
    """What the run logs itself."""
    return MetricsFigure(
        tuple(
            MetricCurve(
                name, one.curve, one.last, one.step, tr("logged through {library}", library=one.through)
            )
            for name, one in run.fold.metrics.items()
        )
    )


def metrics_subtitle(run: RunAnswers) -> str:
    """Whose words the names are, and how many are not kept."""
    through = dict.fromkeys(one.through for one in run.fold.metrics.values())
    cut = run.fold.script.num_names_cut
    words = [tr("through {libraries}", libraries=", ".join(through))] if through else []
    if cut:
        words.append(tr("{count} more names are not kept", count=format_count(cut)))
    return "; ".join(words)
