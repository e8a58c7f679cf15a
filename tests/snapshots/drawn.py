"""What the dashboard of a run draws: every text that one can read, and every curve with its points."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyqtgraph as pg
from PySide6.QtWidgets import QApplication, QWidget

from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.app_window import close_app, open_app, open_run, process_events, wait_for
from tests.helpers.shown_texts import visible_texts
from tests.snapshots.said import Recorded

_DRAWN = (
    "dp", "ddp-sync-ring", "pipeline-schedule-1f1b", "hybrid-data-2-stage-2", "simulated", "resumed-twice",
    "failed", "too-small", "two-hosts", "script-two-ranks", "script-closely", "script-hangs",
)  # fmt: skip
"""Runs that differ in their cards."""
_SETTLED_S = 0.4
_SIZE = 1600, 2400
"""Of the window: no card is below the fold, where it would not be drawn."""


def all_drawn(recorded: Recorded) -> Iterator[tuple[str, str]]:
    """What each run's dashboard draws, by the name of a document."""
    app = open_app(recorded.folder)
    app.window.resize(*_SIZE)
    try:
        for run in recorded.all:
            if recorded.short(run) not in _DRAWN:
                continue
            open_run(app, run)
            page = app.window.editor.active_page()
            assert isinstance(page, RunPage), page
            wait_for(partial(_is_drawn, page), 30, f"the dashboard of {run.name}")
            yield f"{recorded.short(run)}/dashboard.txt", recorded.neutral(_settled(page))
            app.window.editor.close_all()
            process_events()
    finally:
        close_app(app)


def _is_drawn(page: RunPage) -> bool:
    cards = [card for card in page.cards.values() if card.isVisibleTo(page)]
    is_read = bool(page.run.outcome) and not page.run.has_unread and not page._pending
    return is_read and bool(cards) and all(card.built_body is not None for card in cards)


def _settled(page: RunPage) -> str:
    """What is drawn once nothing more changes: labels follow the size of their card a frame later."""
    drawn, same_since_s = "", time.monotonic()
    while time.monotonic() - same_since_s < _SETTLED_S:
        QApplication.processEvents()
        time.sleep(0.05)
        if (now := _drawn(page)) != drawn:
            drawn, same_since_s = now, time.monotonic()
    return drawn


def _drawn(page: RunPage) -> str:
    """Line by line, in an order that does not depend on how widgets are nested."""
    lines = sorted({text for _, text in visible_texts(page)})
    for name, card in sorted(page.cards.items()):
        if card.built_body is not None:
            lines += (f"{name}: {curve}" for curve in sorted(_curves(card.built_body)))
    return "\n".join(lines) + "\n"


def _curves(body: QWidget) -> Iterator[str]:
    for view in body.findChildren(pg.GraphicsView):
        for item in view.items():
            if isinstance(item, pg.PlotCurveItem | pg.PlotDataItem) and item.isVisible():
                x, y = item.getData()
                if x is not None and len(x):
                    yield f"{type(item).__name__} of {len(x)} points {_digest(x)} {_digest(y)}"


def _digest(values: object) -> str:
    array = np.asarray(values, dtype=np.float64)
    text = f"{array[0]:.6g} to {array[-1]:.6g}"
    return f"{text} ({hashlib.sha256(np.round(array, 9).tobytes()).hexdigest()[:8]})"
