"""What the cards of a run are exported as: rows of CSV, whose heads are the same in every language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.views.dashboard import run_figures


def anatomy_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("device", "phase", "start_s", "seconds", "stage", "microbatch", "bytes")
    sampled = run.anatomy
    for row in () if sampled is None else sampled.rows:
        for span in row.spans:
            label = (
                run.label_of(run.devices[row.device]) if row.device < len(run.devices) else str(row.device)
            )
            times = (f"{span.start_s:.6f}", f"{span.duration_s:.6f}")
            yield (label, span.name, *times, span.stage, span.microbatch, span.num_bytes)


def bars_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    """CSV of the bars, in bytes."""
    figure = run_figures.bars(run)
    yield ("device", "peak_bytes", *figure.labels, "predicted_bytes")
    for bar in figure.bars:
        kinds = bar.by_kind or {}
        yield (bar.label, bar.total_bytes, *(kinds.get(kind) for kind in figure.labels), bar.predicted_bytes)


def band_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("device", "seconds", "bytes")
    for device in run.devices:
        for x, y in zip(*device.memory_history.points(), strict=True):
            yield (run.label_of(device), f"{x:.3f}", round(float(y)))


def heat_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("device", "seconds", "busy")
    for device in run.devices:
        for x, y in zip(*device.utilisation_history.points(), strict=True):
            yield (run.label_of(device), f"{x:.3f}", f"{y:.4f}")


def loss_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    """Training losses, then held-out ones: a step has one row for each that it has."""
    yield ("step", "loss", "ema", "held_out")
    for step, loss, average in zip(*run.losses.points(), run.loss_ema.points()[1], strict=True):
        yield (int(step), f"{loss:.6g}", f"{average:.6g}", "")
    for step, loss in zip(*run.held_out.points(), strict=True):
        yield (int(step), "", "", f"{loss:.6g}")


def lr_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("step", "lr")
    for step, lr in zip(*run.fold.lrs.points(), strict=True):
        yield (int(step), f"{lr:.6g}")


def norm_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("step", "grad_norm")
    for step, norm in zip(*run.fold.grad_norms.points(), strict=True):
        yield (int(step), f"{norm:.6g}")


def rate_rows(run: RunAnswers) -> Iterator[Sequence[object]]:
    yield ("step", "samples_per_s", "smoothed")
    for step, rate, smooth in zip(*run.rates.points(), run.rate_ema.points()[1], strict=True):
        yield (int(step), f"{rate:.6g}", f"{smooth:.6g}")
