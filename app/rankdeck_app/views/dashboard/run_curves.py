"""Builds the curves over steps and the logged metrics of a run: plain functions, no widgets.

If a curve is empty, `empty_reason` returns a one-line explanation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_count
from rankdeck.run.problems import no_steps_text
from rankdeck.run.series import Curve
from rankdeck.run.summary_builder import training_data_summary
from rankdeck_app.language import tr, translate
from rankdeck_app.state.run_view import RunView
from rankdeck_app.widgets.curve_plot import LOSS_LEGEND
from rankdeck_app.widgets.metric_curves import MetricCurve, MetricCurvesData

_SAMPLED_LEGEND = (tr_noop("sampled"), tr_noop("EMA"), "")
_RATE_LEGEND = (tr_noop("now"), tr_noop("smoothed"), "")


@dataclass(frozen=True)
class CurveData:
    """The curves of one card. `legend` contains the labels of `raw`, `average` and `points` in the readout; a
    curve with an empty label is left out of the readout."""

    raw: Curve
    average: Curve
    points: Curve | None = None
    legend: tuple[str, str, str] = LOSS_LEGEND
    digits: int = 5

    @property
    def series(self) -> tuple[Curve, Curve, Curve | None]:
        return self.raw, self.average, self.points


def curves(run: RunView) -> dict[str, CurveData]:
    """Return the curves by card. Throughput is in samples per second if samples have been counted, otherwise
    in steps per second."""
    state, script = run.state, run.state.script
    pace, digits = (run.state.rates, run.state.rate_ema), 0
    if not _is_in_samples(run):
        pace, digits = (script.step_rates, script.step_rate_ema), 2
    loss_legend = LOSS_LEGEND if run.is_planned else _SAMPLED_LEGEND
    return {
        "loss": CurveData(run.state.losses, run.state.loss_ema, run.state.held_out, loss_legend, 4),
        "rate": CurveData(*pace, None, _RATE_LEGEND, digits),
        # The curves from here on are not smoothed, so their average is the raw curve.
        "wait": CurveData(script.waits, script.waits, None, ("%", "", ""), 1),
        "lr": CurveData(state.lrs, state.lrs, None, (tr_noop("lr"), "", "")),
        "norm": CurveData(state.grad_norms, state.grad_norms, None, (tr_noop("norm"), "", "")),
    }


def _is_in_samples(run: RunView) -> bool:
    return bool(run.is_planned) or run.samples_per_s is not None


def loss_subtitle(run: RunView) -> tuple[str, ...]:
    if not run.is_planned:
        return (
            (tr("value of the tensor on which backward() was called, in sampled steps"), tr("sampled"))
            if len(run.state.losses)
            else ("",)
        )
    if len(run.state.held_out):
        return tr("raw and EMA, ◆ held-out"), tr("EMA, ◆ held-out"), tr("◆ held-out")
    return (tr("raw and EMA"),)


def rate_subtitle(run: RunView) -> tuple[str, str]:
    unit = tr("samples/s") if _is_in_samples(run) else tr("steps/s")
    data = training_data_summary(run.state)
    left_out = translate(data.text()) if data is not None else ""
    return "; ".join(filter(None, (unit, left_out))), unit


def wait_subtitle(run: RunView) -> str:
    return "" if run.state.script.wait_share is None else tr("% of step time")


def empty_reason(run: RunView, card: str) -> str:
    """Return the reason why the curve of a card is empty."""
    if run.is_planned:
        if card == "norm":
            return tr("no gradient norms: they are recorded only if train.clip_norm is set")
        return tr("waiting for the first step")
    observed = run.state.script.lead_observation
    if not run.is_observed:
        return tr("not observed: the run uses --observe none")
    if observed is not None and card in observed.parts:
        return tr("not observed: {what}", what=observed.parts[card])
    if run.step is None:
        if run.is_over:
            return translate(no_steps_text(has_started=bool(run.state.script.ranks), is_over=True))
        return tr("waiting for the first optimizer step")
    return tr("none observed") if run.is_over else tr("none observed yet")


def logged_metrics(run: RunView) -> MetricCurvesData:
    """Return the metrics that the run's own code logs."""
    return MetricCurvesData(
        tuple(
            MetricCurve(
                name,
                metric.curve,
                metric.last,
                metric.step,
                tr("logged through {library}", library=metric.through),
            )
            for name, metric in run.state.metrics.items()
        )
    )


def logged_metrics_subtitle(run: RunView) -> str:
    """Return a text with the libraries through which the metrics were logged and the number of metrics that
    were dropped."""
    through = dict.fromkeys(metric.through for metric in run.state.metrics.values())
    cut = run.state.script.num_cut_names
    texts = [tr("through {libraries}", libraries=", ".join(through))] if through else []
    if cut:
        texts.append(tr("further metrics dropped: {count}", count=format_count(cut)))
    return "; ".join(texts)
