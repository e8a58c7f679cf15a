"""Render a run as an HTML table for notebooks, and show a run's progress in a notebook.

All text is escaped. No colour is set, so the table is readable in light and dark themes.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from rankdeck import events
from rankdeck.api.run_arrays import FloatArray
from rankdeck.base.units import format_bytes, format_count
from rankdeck.cli import console
from rankdeck.cli.display import Display
from rankdeck.cli.follow import choose_display
from rankdeck.cli.formatting import loss_range_text, loss_text
from rankdeck.run.run_state import RunState
from rankdeck.run.summary import RunSummary
from rankdeck.run_dir import RunDir

_WIDTH, _HEIGHT = 220, 44
_MAX_POINTS = 200


def run_table(summary: RunSummary, loss: FloatArray) -> str:
    """Return a run's summary and loss curve as HTML."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for label, text in _table_rows(summary)
    )
    header = f"<tr><th colspan='2' style='text-align:left'>{html.escape(summary.run)}</th></tr>"
    return f"<div><table>{header}{rows}</table>{_loss_curve(loss)}</div>"


def _table_rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    yield "outcome", summary.outcome
    planned = summary.steps_planned
    yield "steps", f"{summary.steps}" + (f" of {planned}" if planned else "")
    if summary.strategy:
        yield "strategy", summary.strategy
    if summary.loss.first is not None and summary.loss.last is not None:
        yield "loss", loss_range_text(summary)
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


def _loss_curve(values: FloatArray) -> str:
    """Return the finite values as an SVG curve in the text colour; "" for fewer than two such values."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return ""
    sampled = finite[np.linspace(0, len(finite) - 1, min(len(finite), _MAX_POINTS)).astype(int)]
    span = float(np.ptp(sampled)) or 1.0
    x = np.linspace(2, _WIDTH - 2, len(sampled))
    y = _HEIGHT - 3 - (sampled - sampled.min()) / span * (_HEIGHT - 6)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='loss'>"
        f"<polyline points='{points}' fill='none' stroke='currentColor' stroke-width='1.3'/></svg>"
    )


def progress_html(text: str, share: float | None) -> str:
    """Return a progress bar followed by a line of text; no bar if `share` is None."""
    bar = "" if share is None else f"<progress max='1' value='{min(1.0, share):.4f}'></progress> "
    return f"<div>{bar}<code>{html.escape(text)}</code></div>"


# Progress displays for Python callers: terminals and plain lines use those of the command line, a notebook
# has one output that is replaced.

_REDRAW_INTERVAL_S = 0.5


def choose_python_display(run: RunDir) -> Display:
    """Return the display for the caller's environment: a notebook, a terminal or plain lines."""
    notebook = _find_notebook()
    return choose_display(run) if notebook is None else NotebookDisplay(notebook)


def _find_notebook() -> Any:
    """Return IPython.display in a notebook kernel; None elsewhere, even in IPython on a terminal."""
    # IPython is not a dependency: it is looked up, not imported, because a notebook's kernel has imported it
    # already.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    import importlib

    return importlib.import_module("IPython.display")


class NotebookDisplay(Display):
    """A progress line below the notebook cell; problems are printed to the cell's stderr."""

    def __init__(self, notebook: Any) -> None:
        self._html, self._show = notebook.HTML, notebook.display
        self._handle: Any = None
        self._last_drawn_s = 0.0
        self._state: RunState | None = None

    def open(self) -> None:
        # display_id returns a handle, through which the output is replaced later.
        self._handle = self._show(self._html(progress_html("starting", None)), display_id=True)

    def show_event(self, writer: str, event: events.AnyEvent, state: RunState) -> None:
        if isinstance(event, events.ProblemRaised):
            console.print_problem(event.problem)

    def tick(self, state: RunState) -> None:
        self._state = state
        if time.monotonic() - self._last_drawn_s >= _REDRAW_INTERVAL_S:
            self._draw(state)
            self._last_drawn_s = time.monotonic()

    def close(self) -> None:
        if self._state is not None:
            self._draw(self._state)

    def _draw(self, state: RunState) -> None:
        step, planned = state.step, state.num_steps_planned
        texts = [f"step {step}" + (f"/{planned}" if planned else "")] if step else ["starting"]
        newest = state.newest_value("loss")
        if newest is not None:
            texts.append(f"loss {loss_text(newest[1])}")
        rate = state.recent_samples_per_s()
        if rate is not None:
            texts.append(f"{format_count(rate)} samples/s")
        share = step / planned if step and planned else None
        if self._handle is not None:
            self._handle.update(self._html(progress_html("  ".join(texts), share)))
