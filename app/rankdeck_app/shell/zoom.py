"""Zoom of the whole window, and what of the settings holds from the next start.

Ctrl+= and Ctrl+- take effect at once where appearance.py can. Where it cannot, and for typefaces, the
setting is kept and a restart is offered: runs go on, and tabs, drafts and the layout come back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rankdeck_app.language import tr
from rankdeck_app.settings import Settings
from rankdeck_app.shell.appearance import find_scale
from rankdeck_app.shell.window import MainWindow

LEVELS = (0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
SCALE = "QT_SCALE_FACTOR"
_KEY = "window.zoom"
_LATER = "later"


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
    """Keeps the setting and shows it; says what only the next start will change."""

    def __init__(self, window: MainWindow) -> None:
        self._window = window
        self._settings: Settings = window.settings
        self._started_at = self._settings.get(_KEY, float)
        self._scale = find_scale()
        later = [key for key, option in self._settings.options.items() if option.at_start]
        self._at_start = {
            key: self._settings.value(key) for key in [*later, *([] if self._scale else [_KEY])]
        }
        self._settings.changed.connect(self._changed)
        self._tell()

    def step(self, step: int) -> None:
        """To the next level up (1) or down (-1); 0 is back to 100 %."""
        now = self._settings.get(_KEY, float)
        above = [level for level in LEVELS if level > now]
        below = [level for level in LEVELS if level < now]
        level = 1.0 if step == 0 else (above or [now])[0] if step > 0 else (below or [now])[-1]
        self._settings.set(_KEY, level)

    def _changed(self, key: str) -> None:
        if key == _KEY and self._scale is not None:
            return self._show()
        if key not in self._at_start:
            return None
        pending = [one for one, value in self._at_start.items() if self._settings.value(one) != value]
        toasts = self._window.toasts
        if not pending:
            return toasts.withdraw(_LATER)
        restart = (tr("Restart Now"), self._window.restart)
        return toasts.show(self._told(key), actions=[restart], key=_LATER)

    def _told(self, key: str) -> str:
        if key != _KEY:
            return tr("{key} holds from the next start. Runs go on.", key=key)
        zoom = self._settings.get(_KEY, float)
        return tr("Zoom {percent:.0f} % holds from the next start. Runs go on.", percent=zoom * 100)

    def _show(self) -> None:
        assert self._scale is not None
        self._scale.change(self._settings.get(_KEY, float) / self._started_at, self._window)
        self._tell()

    def _tell(self) -> None:
        zoom = self._settings.get(_KEY, float)
        text, icon = ("", "") if zoom == 1.0 else (f"{zoom * 100:.0f} %", "zoom-in")
        item = self._window.status.item("zoom", "right", 85)
        item.show_text(text, icon, tooltip=tr("Reset the zoom"), command="view.zoomReset")
