"""Zoom of the whole window, and settings that need a restart.

Ctrl+= and Ctrl+- take effect at once where appearance.py supports it. Otherwise, and for fonts, the setting
is saved and the app offers a restart: runs continue, and tabs, drafts and the layout are restored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rankdeck_app.language import tr
from rankdeck_app.settings import Settings
from rankdeck_app.shell.appearance import find_screen_scale
from rankdeck_app.shell.window import MainWindow

ZOOM_LEVELS = (0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
SCALE_FACTOR_ENV = "QT_SCALE_FACTOR"
_ZOOM_SETTING = "window.zoom"
_RESTART_TOAST_KEY = "later"


@contextmanager
def apply_zoom(zoom: float) -> Iterator[None]:
    """Set Qt's scale factor while the QApplication is created; processes started later do not inherit it."""
    # The zoom multiplies a factor that the user has set.
    before = os.environ.get(SCALE_FACTOR_ENV)
    try:
        base_factor = float(before or 1)
    except ValueError:
        base_factor = 1.0
    if zoom != 1.0:
        os.environ[SCALE_FACTOR_ENV] = f"{base_factor * zoom:g}"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SCALE_FACTOR_ENV, None)
        else:
            os.environ[SCALE_FACTOR_ENV] = before


class Zoom:
    """Zoom of the window. It applies the zoom setting, and offers a restart for settings that require one."""

    def __init__(self, window: MainWindow) -> None:
        self._window = window
        self._settings: Settings = window.settings
        # ScreenScale's factor is relative to the zoom at start.
        self._initial_zoom = self._settings.get(_ZOOM_SETTING, float)
        self._screen_scale = find_screen_scale()
        later = [key for key, option in self._settings.definitions.items() if option.needs_restart]
        self._initial_values = {
            key: self._settings.value(key)
            for key in [*later, *([] if self._screen_scale else [_ZOOM_SETTING])]
        }
        self._settings.changed.connect(self._on_setting_changed)
        self._show_level()

    def step(self, step: int) -> None:
        """Go to the next higher (1) or lower (-1) zoom level; 0 resets to 100 %."""
        now = self._settings.get(_ZOOM_SETTING, float)
        above = [level for level in ZOOM_LEVELS if level > now]
        below = [level for level in ZOOM_LEVELS if level < now]
        level = 1.0 if step == 0 else (above or [now])[0] if step > 0 else (below or [now])[-1]
        self._settings.set(_ZOOM_SETTING, level)

    def _on_setting_changed(self, key: str) -> None:
        if key == _ZOOM_SETTING and self._screen_scale is not None:
            return self._apply()
        if key not in self._initial_values:
            return None
        pending = [
            pending_key
            for pending_key, value in self._initial_values.items()
            if self._settings.value(pending_key) != value
        ]
        toasts = self._window.toasts
        # The user has changed everything back.
        if not pending:
            return toasts.dismiss(_RESTART_TOAST_KEY)
        restart = (tr("Restart Now"), self._window.restart)
        return toasts.show(self._restart_message(key), actions=[restart], key=_RESTART_TOAST_KEY)

    def _restart_message(self, key: str) -> str:
        if key != _ZOOM_SETTING:
            return tr("The setting {key} takes effect after a restart, which does not stop runs.", key=key)
        zoom = self._settings.get(_ZOOM_SETTING, float)
        return tr(
            "A zoom of {percent:.0f} % takes effect after a restart, which does not stop runs.",
            percent=zoom * 100,
        )

    def _apply(self) -> None:
        assert self._screen_scale is not None
        self._screen_scale.set_factor(
            self._settings.get(_ZOOM_SETTING, float) / self._initial_zoom, self._window
        )
        self._show_level()

    def _show_level(self) -> None:
        zoom = self._settings.get(_ZOOM_SETTING, float)
        text, icon = ("", "") if zoom == 1.0 else (f"{zoom * 100:.0f} %", "zoom-in")
        item = self._window.status_bar.item("zoom", "right", 85)
        item.show_text(text, icon, tooltip=tr("Reset zoom"), command="view.zoomReset")
