"""How a run goes on, shown where the caller is: in a terminal, in a notebook, or as plain lines.

Terminals and lines are those of the command line. A notebook has one output that is replaced.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rankdeck import events
from rankdeck.api.html import progress_of
from rankdeck.base.units import format_count
from rankdeck.cli import console
from rankdeck.cli.display import Display
from rankdeck.cli.follow import choose
from rankdeck.cli.words import loss_in_words
from rankdeck.run.fold import Fold
from rankdeck.rundir import RunDir

_EVERY_S = 0.5


def display_for(run: RunDir) -> Display:
    """The display for where this code runs."""
    notebook = _notebook()
    return choose(run) if notebook is None else NotebookDisplay(notebook)


def _notebook() -> Any:
    """IPython.display where a notebook's kernel runs this code; None elsewhere, a terminal's IPython too."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    import importlib

    return importlib.import_module("IPython.display")


class NotebookDisplay(Display):
    """One line under the cell; problems stand in the cell's stderr."""

    def __init__(self, notebook: Any) -> None:
        self._html, self._show = notebook.HTML, notebook.display
        self._handle: Any = None
        self._drawn_s = 0.0
        self._fold: Fold | None = None

    def open(self) -> None:
        self._handle = self._show(self._html(progress_of("starting", None)), display_id=True)

    def event(self, writer: str, event: events.AnyEvent, fold: Fold) -> None:
        if isinstance(event, events.ProblemRaised):
            console.problem(event.problem)

    def tick(self, fold: Fold) -> None:
        self._fold = fold
        if time.monotonic() - self._drawn_s >= _EVERY_S:
            self._draw(fold)
            self._drawn_s = time.monotonic()

    def close(self) -> None:
        if self._fold is not None:
            self._draw(self._fold)

    def _draw(self, fold: Fold) -> None:
        step, planned = fold.step, fold.num_steps_planned
        words = [f"step {step}" + (f"/{planned}" if planned else "")] if step else ["starting"]
        newest = fold.newest("loss")
        if newest is not None:
            words.append(f"loss {loss_in_words(newest[1])}")
        rate = fold.recent_samples_per_s()
        if rate is not None:
            words.append(f"{format_count(rate)} samples/s")
        share = step / planned if step and planned else None
        if self._handle is not None:
            self._handle.update(self._html(progress_of("  ".join(words), share)))
