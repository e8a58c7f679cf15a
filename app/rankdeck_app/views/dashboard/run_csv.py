"""Exports a run's cards as CSV rows; the headers are the same in every language."""

from __future__ import annotations

from collections.abc import Iterator

from rankdeck.run.series import Curve
from rankdeck_app.state.run_view import RunView
from rankdeck_app.views.dashboard import run_chart_data
from rankdeck_app.widgets.card_export import INTEGER_FORMAT, CsvColumn, CsvRow, CsvRowBlock

_format_seconds = "{:.3f}".format


def anatomy_rows(run: RunView) -> Iterator[CsvRow]:
    yield ("device", "phase", "start_s", "seconds", "stage", "microbatch", "bytes")
    sampled = run.state.anatomy
    for row in () if sampled is None else sampled.rows:
        for span in row.spans:
            # The anatomy may name a device that has not been reported yet.
            label = (
                run.device_label(run.devices[row.device])
                if row.device < len(run.devices)
                else str(row.device)
            )
            times = (f"{span.start_s:.6f}", f"{span.duration_s:.6f}")
            yield (label, span.name, *times, span.stage, span.microbatch, span.num_bytes)


def bars_rows(run: RunView) -> Iterator[CsvRow]:
    """Yield the memory bars, in bytes."""
    data = run_chart_data.bars(run)
    yield ("device", "peak_bytes", *data.labels, "predicted_bytes")
    for bar in data.bars:
        kinds = bar.by_kind or {}
        yield (bar.label, bar.total_bytes, *(kinds.get(kind) for kind in data.labels), bar.predicted_bytes)


def band_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    yield ("device", "seconds", "bytes")
    for device in run.devices:
        seconds, sizes = device.memory_history.points()
        yield CsvRowBlock(
            run.device_label(device), CsvColumn(seconds, _format_seconds), CsvColumn(sizes, INTEGER_FORMAT)
        )


def heat_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    yield ("device", "seconds", "busy")
    for device in run.devices:
        seconds, shares = device.utilisation_history.points()
        yield CsvRowBlock(
            run.device_label(device), CsvColumn(seconds, _format_seconds), CsvColumn(shares, "{:.4f}".format)
        )


def loss_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    """Yield the training losses, then the held-out losses; a step with both has two rows."""
    yield ("step", "loss", "ema", "held_out")
    yield CsvRowBlock(*_by_step(run.state.losses, run.state.loss_ema), "")
    steps, losses = _by_step(run.state.held_out)
    yield CsvRowBlock(steps, "", "", losses)


def lr_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    yield ("step", "lr")
    yield CsvRowBlock(*_by_step(run.state.lrs))


def norm_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    yield ("step", "grad_norm")
    yield CsvRowBlock(*_by_step(run.state.grad_norms))


def rate_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    """Yield the throughput in steps per second if steps were timed, otherwise in samples per second."""
    script = run.state.script
    if len(script.step_rates):
        yield ("step", "steps_per_s", "smoothed")
        yield CsvRowBlock(*_by_step(script.step_rates, script.step_rate_ema))
    else:
        yield ("step", "samples_per_s", "smoothed")
        yield CsvRowBlock(*_by_step(run.state.rates, run.state.rate_ema))


def wait_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    yield ("step", "wait_share")
    yield CsvRowBlock(*_by_step(run.state.script.waits))


def logged_metrics_rows(run: RunView) -> Iterator[CsvRow | CsvRowBlock]:
    yield ("name", "through", "step", "value")
    for name, metric in run.state.metrics.items():
        yield CsvRowBlock(name, metric.through, *_by_step(metric.curve))


def _by_step(*curves: Curve) -> tuple[CsvColumn, ...]:
    """Return a column of steps, which all curves share, and a column of values per curve."""
    points = [curve.points() for curve in curves]
    return (CsvColumn(points[0][0], INTEGER_FORMAT), *(CsvColumn(values) for _, values in points))
