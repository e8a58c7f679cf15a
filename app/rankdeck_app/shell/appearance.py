"""The look that the settings ask for: theme, density and motion, from the first paint on and at once when
they change. A theme called SYSTEM follows the desktop.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from rankdeck_app.shell.services import Services
from rankdeck_app.theme import SYSTEM, ThemeError

CALM_HZ = 2
"""How often live views are drawn where nothing is to move: in steps, not as a film."""
_EFFECTS = (
    Qt.UIEffect.UI_General,
    Qt.UIEffect.UI_AnimateMenu,
    Qt.UIEffect.UI_FadeMenu,
    Qt.UIEffect.UI_AnimateCombo,
    Qt.UIEffect.UI_AnimateTooltip,
    Qt.UIEffect.UI_FadeTooltip,
    Qt.UIEffect.UI_AnimateToolBox,
)


class Appearance(QObject):
    """`tell` is asked to say what is wrong with a theme that was chosen."""

    def __init__(self, services: Services, tell: Callable[[str], object], parent: QObject) -> None:
        super().__init__(parent)
        self._settings, self._theme, self._clock = services.settings, services.theme, services.clock
        self._tell = tell
        self._flash_ms = QApplication.cursorFlashTime()
        self._theme.set_compact(self._is_compact())
        try:
            self._theme.load(self._settings.get("theme.name", str))
        except ThemeError as error:
            self._settings.problems.append(str(error))
        self._theme.apply()
        self._move()
        self._settings.changed.connect(self._follow)
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._follow_desktop)
        hints.accessibility().contrastPreferenceChanged.connect(self._follow_desktop)

    def _is_compact(self) -> bool:
        return self._settings.get("window.density", str) == "compact"

    def _follow(self, key: str) -> None:
        if key == "theme.name":
            self._load()
        elif key == "window.density":
            self._theme.set_compact(self._is_compact())
        elif key in ("window.reduced_motion", "window.frame_rate"):
            self._move()

    def _load(self) -> None:
        try:
            self._theme.load(self._settings.get("theme.name", str))
        except ThemeError as error:
            self._tell(str(error))

    def _follow_desktop(self) -> None:
        if self._settings.get("theme.name", str) == SYSTEM:
            self._load()

    def _move(self) -> None:
        """Whether menus slide, the text cursor blinks, and how often live views are drawn."""
        is_calm = self._settings.get("window.reduced_motion", bool)
        rate_hz = self._settings.get("window.frame_rate", int)
        self._clock.set_rate(CALM_HZ if is_calm else rate_hz)
        QApplication.setCursorFlashTime(0 if is_calm else self._flash_ms)
        if is_calm:
            for effect in _EFFECTS:
                QApplication.setEffectEnabled(effect, False)
