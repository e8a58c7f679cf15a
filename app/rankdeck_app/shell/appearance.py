"""The look that the settings ask for: theme, density and motion, from the first paint on and at once when
they change. A theme called SYSTEM follows the desktop.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from PySide6.QtCore import QObject, QRect, QSize, Qt
from PySide6.QtGui import QGuiApplication, QScreen
from PySide6.QtWidgets import QApplication, QWidget
from shiboken6 import getCppPointer

from rankdeck_app.shell.services import Services
from rankdeck_app.theme import SYSTEM_THEME, ThemeError

REDUCED_MOTION_HZ = 2
"""How often live views are drawn where nothing is to move: in steps, not as a film."""
_UI_EFFECTS = (
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
        self._show_error = tell
        self._flash_ms = QApplication.cursorFlashTime()
        self._theme.set_compact(self._is_compact())
        self._load(self._settings.problems.append)
        self._theme.apply()
        self._apply_motion()
        self._settings.changed.connect(self._on_setting_changed)
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._on_desktop_theme_changed)
        hints.accessibility().contrastPreferenceChanged.connect(self._on_desktop_theme_changed)

    def _is_compact(self) -> bool:
        return self._settings.get("window.density", str) == "compact"

    def _on_setting_changed(self, key: str) -> None:
        if key == "theme.name":
            self._load(self._show_error)
        elif key == "window.density":
            self._theme.set_compact(self._is_compact())
        elif key in ("window.reduced_motion", "window.frame_rate"):
            self._apply_motion()

    def _load(self, tell: Callable[[str], object]) -> None:
        try:
            self._theme.load(self._settings.get("theme.name", str))
        except ThemeError as error:
            tell(str(error))

    def _on_desktop_theme_changed(self) -> None:
        if self._settings.get("theme.name", str) == SYSTEM_THEME:
            self._load(self._show_error)

    def _apply_motion(self) -> None:
        """Whether menus slide, the text cursor blinks, and how often live views are drawn."""
        is_calm = self._settings.get("window.reduced_motion", bool)
        rate_hz = self._settings.get("window.frame_rate", int)
        self._clock.set_rate(REDUCED_MOTION_HZ if is_calm else rate_hz)
        QApplication.setCursorFlashTime(0 if is_calm else self._flash_ms)
        if is_calm:
            for effect in _UI_EFFECTS:
                QApplication.setEffectEnabled(effect, False)


# The scale of all windows of the app, changed while they are open.
#
# Qt reads QT_SCALE_FACTOR once and has no public call to change it. QtGui has functions that do: one sets a
# screen's factor, two tell a window that its pixels and its size are others. They are not public, but
# exported, and their names spell out what they take; so they are called where they are found, under X11,
# where a screen has no other factor of its own than Qt's. Elsewhere `find_screen_scale` says None, and zoom
# holds from the next start.

_LIBRARY = "libQt6Gui.so.6"
_SET_SCREEN_FACTOR = "_ZN15QHighDpiScaling15setScreenFactorEP7QScreend"
_NOTIFY_PIXEL_RATIO = (
    "_ZN22QWindowSystemInterface35handleWindowDevicePixelRatioChangedINS_19SynchronousDeliveryEEEvP7QWindow"
)
_NOTIFY_GEOMETRY = (
    "_ZN22QWindowSystemInterface20handleGeometryChangeINS_19SynchronousDeliveryEEEvP7QWindowRK5QRect"
)
_GLOBAL_FACTOR = "_ZN15QHighDpiScaling8m_factorE"
_SCALABLE_PLATFORMS = ("xcb", "offscreen")
MIN_WINDOW_SIZE = QSize(640, 360)


class ScaleFunctions(NamedTuple):
    """Pointers go in as numbers."""

    set_factor: Callable[[int, float], None]
    notify_pixel_ratio: Callable[[int], None]
    notify_geometry: Callable[[int, int], None]


class ScreenScale:
    """`factor` is relative to what the app was started with."""

    def __init__(self, calls: ScaleFunctions, over_all: float) -> None:
        self._functions = calls
        self._global_factor = over_all
        self._screen_factors: dict[QScreen, float] = {}
        self._last_geometry: tuple[QRect, QRect] | None = None
        self.factor = 1.0

    def set_factor(self, factor: float, window: QWidget) -> None:
        """Everything is drawn larger; the window keeps the room on the screen that it has."""
        self.factor = factor
        native = self._native_geometry(window)
        for screen in QGuiApplication.screens():
            own = self._screen_factors.setdefault(screen, screen.devicePixelRatio() / self._global_factor)
            self._functions.set_factor(getCppPointer(screen)[0], own * factor)
        for handle in QGuiApplication.allWindows():
            self._functions.notify_pixel_ratio(getCppPointer(handle)[0])
        fit_minimum_size(window)
        handle = window.windowHandle()
        if handle is not None:
            box = (ctypes.c_int * 4)(native.left(), native.top(), native.right(), native.bottom())
            self._functions.notify_geometry(getCppPointer(handle)[0], ctypes.addressof(box))
        self._last_geometry = (window.geometry(), native)

    def _native_geometry(self, window: QWidget) -> QRect:
        """The window's place in the screen's own pixels; as it was where nobody has moved it, so that
        rounding does not add up.
        """
        box, ratio, origin = (
            window.geometry(),
            window.devicePixelRatio(),
            window.screen().geometry().topLeft(),
        )
        if self._last_geometry is not None and self._last_geometry[0] == box:
            return self._last_geometry[1]
        return QRect(origin + (box.topLeft() - origin) * ratio, box.size() * ratio)


def fit_minimum_size(window: QWidget) -> None:
    """No larger than the screen is at this scale."""
    room = window.screen().availableSize()
    window.setMinimumSize(MIN_WINDOW_SIZE.boundedTo(room))


def find_screen_scale() -> ScreenScale | None:
    """None where this Qt, or this platform, cannot change the scale of windows that are open."""
    if QGuiApplication.platformName() not in _SCALABLE_PLATFORMS:
        return None
    try:
        library = ctypes.CDLL(_LIBRARY)
        set_factor, tell_window, tell_size = (
            library[n] for n in (_SET_SCREEN_FACTOR, _NOTIFY_PIXEL_RATIO, _NOTIFY_GEOMETRY)
        )
        over_all = ctypes.c_double.in_dll(library, _GLOBAL_FACTOR).value
    except (OSError, AttributeError, ValueError):
        return None
    set_factor.argtypes, set_factor.restype = [ctypes.c_void_p, ctypes.c_double], None
    tell_window.argtypes, tell_window.restype = [ctypes.c_void_p], None
    tell_size.argtypes, tell_size.restype = [ctypes.c_void_p, ctypes.c_void_p], None
    return ScreenScale(ScaleFunctions(set_factor, tell_window, tell_size), over_all)
