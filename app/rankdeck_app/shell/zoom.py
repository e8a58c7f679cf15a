"""Zoom of the whole window, and what else of the settings holds from the next start.

Qt takes the scale of an application before its first window, so Ctrl+= and Ctrl+- change the setting and
offer to start again: runs go on, and tabs, drafts and the layout come back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rankdeck_app.settings import Settings
from rankdeck_app.shell.window import MainWindow

LEVELS = (0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
SCALE = "QT_SCALE_FACTOR"
_KEY = "window.zoom"
_LATER = "holds from the next start"


@contextmanager
def scaled(zoom: float) -> Iterator[None]:
    """Around the making of the QApplication: what the app starts later is not scaled by it."""
    before = os.environ.get(SCALE)
    try:
        own = float(before or 1)
    except ValueError:
        own = 1.0
    if zoom != 1.0:
        os.environ[SCALE] = f"{own * zoom:g}"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SCALE, None)
        else:
            os.environ[SCALE] = before


class Zoom:
    """Keeps the setting, and says what the next start will change."""

    def __init__(self, window: MainWindow) -> None:
        self._window = window
        self._settings: Settings = window.settings
        self._at_start = {key: self._settings.value(key) for key in self._settings.options}
        self._settings.changed.connect(self._changed)

    def step(self, step: int) -> None:
        """To the next level up (1) or down (-1); 0 is back to 100 %."""
        now = self._settings.get(_KEY, float)
        above = [level for level in LEVELS if level > now]
        below = [level for level in LEVELS if level < now]
        level = 1.0 if step == 0 else (above or [now])[0] if step > 0 else (below or [now])[-1]
        try:
            self._settings.set(_KEY, level)
        except OSError as error:
            self._window.toasts.error(f"The zoom cannot be kept: {error}.")

    def _changed(self, key: str) -> None:
        if not self._settings.options[key].at_start:
            return None
        options = self._settings.options.values()
        pending = [
            option.key
            for option in options
            if option.at_start and self._settings.value(option.key) != self._at_start[option.key]
        ]
        toasts = self._window.toasts
        if not pending:
            return toasts.withdraw(_LATER)
        what = f"Zoom {self._settings.get(_KEY, float) * 100:.0f} %" if key == _KEY else key
        restart = ("Restart Now", self._window.restart)
        return toasts.show(f"{what} holds from the next start. Runs go on.", actions=[restart], key=_LATER)
