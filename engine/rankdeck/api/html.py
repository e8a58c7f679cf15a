"""A run as a small table for notebooks. All text is escaped, and no colour is set: both themes read well."""

from __future__ import annotations

import html
from collections.abc import Iterable

import numpy as np

from rankdeck.api.figures import Floats
from rankdeck.base.units import format_bytes, format_count
from rankdeck.run.summary import RunSummary

_WIDTH, _HEIGHT = 220, 44
_MOST_POINTS = 200


def table_of(summary: RunSummary, loss: Floats) -> str:
    """A run's summary, with its loss as a line."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(words)}</td></tr>"
        for label, words in _rows(summary)
    )
    head = f"<tr><th colspan='2' style='text-align:left'>{html.escape(summary.run)}</th></tr>"
    return f"<div><table>{head}{rows}</table>{_line(loss)}</div>"


def _rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    yield "outcome", summary.outcome
    planned = summary.steps_planned
    yield "steps", f"{summary.steps}" + (f" of {planned}" if planned else "")
    if summary.strategy:
        yield "strategy", summary.strategy
    first, last = summary.loss.first, summary.loss.last
    if first is not None and last is not None:
        at = f" at step {summary.loss_step}" if summary.loss_step not in (None, summary.steps) else ""
        yield "loss", f"{first:.4f} to {last:.4f}{at}"
    if summary.verified:
        yield "one device", summary.verified.text
    if summary.samples_per_s is not None:
        yield "speed", f"{format_count(summary.samples_per_s)} samples/s"
    for device in summary.devices:
        if device.peak_bytes is not None:
            name = f"device {device.device} {device.name or ''}".rstrip()
            yield name, f"peak {format_bytes(device.peak_bytes)}"
    for problem in summary.problems[:3]:
        yield problem.severity, problem.message
    yield "path", summary.path


def _line(values: Floats) -> str:
    """The curve of what is known, as a drawing in the colour of the text."""
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return ""
    shown = known[np.linspace(0, len(known) - 1, min(len(known), _MOST_POINTS)).astype(int)]
    span = float(np.ptp(shown)) or 1.0
    x = np.linspace(2, _WIDTH - 2, len(shown))
    y = _HEIGHT - 3 - (shown - shown.min()) / span * (_HEIGHT - 6)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='loss'>"
        f"<polyline points='{points}' fill='none' stroke='currentColor' stroke-width='1.3'/></svg>"
    )


def progress_of(words: str, share: float | None) -> str:
    """One line of words behind a bar; no bar where nobody knows how much there will be."""
    bar = "" if share is None else f"<progress max='1' value='{min(1.0, share):.4f}'></progress> "
    return f"<div>{bar}<code>{html.escape(words)}</code></div>"
