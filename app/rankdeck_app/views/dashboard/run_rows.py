"""What the cards of a run are exported as: rows of CSV, whose heads are the same in every language."""

from __future__ import annotations

from collections.abc import Iterator

from rankdeck.run.series import Curve
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.views.dashboard import run_figures
from rankdeck_app.widgets.card_files import WHOLE, Column, ManyRows, Row

_SECONDS = "{:.3f}".format


def anatomy_rows(run: RunAnswers) -> Iterator[Row]:
    yield ("device", "phase", "start_s", "seconds", "stage", "microbatch", "bytes")
    sampled = run.fold.anatomy
    for row in () if sampled is None else sampled.rows:
        for span in row.spans:
            label = (
                run.label_of(run.devices[row.device]) if row.device < len(run.devices) else str(row.device)
            )
            times = (f"{span.start_s:.6f}", f"{span.duration_s:.6f}")
            yield (label, span.name, *times, span.stage, span.microbatch, span.num_bytes)


def bars_rows(run: RunAnswers) -> Iterator[Row]:
    """CSV of the bars, in bytes."""
    figure = run_figures.bars(run)
    yield ("device", "peak_bytes", *figure.labels, "predicted_bytes")
    for bar in figure.bars:
        kinds = bar.by_kind or {}
        yield (bar.label, bar.total_bytes, *(kinds.get(kind) for kind in figure.labels), bar.predicted_bytes)


def band_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("device", "seconds", "bytes")
    for device in run.devices:
        seconds, sizes = device.memory_history.points()
        yield ManyRows(run.label_of(device), Column(seconds, _SECONDS), Column(sizes, WHOLE))


def heat_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("device", "seconds", "busy")
    for device in run.devices:
        seconds, shares = device.utilisation_history.points()
        yield ManyRows(run.label_of(device), Column(seconds, _SECONDS), Column(shares, "{:.4f}".format))


def loss_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    """Training losses, then held-out ones: a step has one row for each that it has."""
    yield ("step", "loss", "ema", "held_out")
    yield ManyRows(*_by_step(run.fold.losses, run.fold.loss_ema), "")
    steps, losses = _by_step(run.fold.held_out)
    yield ManyRows(steps, "", "", losses)


def lr_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("step", "lr")
    yield ManyRows(*_by_step(run.fold.lrs))


def norm_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("step", "grad_norm")
    yield ManyRows(*_by_step(run.fold.grad_norms))


def rate_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    """In steps where those were timed, else in samples."""
    script = run.fold.script
    if len(script.step_rates):
        yield ("step", "steps_per_s", "smoothed")
        yield ManyRows(*_by_step(script.step_rates, script.step_rate_ema))
    else:
        yield ("step", "samples_per_s", "smoothed")
        yield ManyRows(*_by_step(run.fold.rates, run.fold.rate_ema))


def wait_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("step", "wait_share")
    yield ManyRows(*_by_step(run.fold.script.waits))


def metrics_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("name", "through", "step", "value")
    for name, one in run.fold.metrics.items():
        yield ManyRows(name, one.through, *_by_step(one.curve))


def _by_step(*curves: Curve) -> tuple[Column, ...]:
    """The steps of the first curve, and the values of all: they are over the same."""
    points = [curve.points() for curve in curves]
    return (Column(points[0][0], WHOLE), *(Column(values) for _, values in points))
