"""Applies the appearance settings: theme, density, motion and scale, at start and on every change.

If the chosen theme is SYSTEM_THEME, the app follows the desktop's theme.
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
"""Frame rate of live views with reduced motion: they update in steps instead of moving."""
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
    """Applies the appearance settings to the app at start and on every change. `show_error` is called with a
    message if a newly chosen theme cannot be loaded."""

    def __init__(self, services: Services, show_error: Callable[[str], object], parent: QObject) -> None:
        super().__init__(parent)
        self._settings, self._theme, self._clock = services.settings, services.theme, services.clock
        self._show_error = show_error
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

    def _load(self, report: Callable[[str], object]) -> None:
        try:
            self._theme.load(self._settings.get("theme.name", str))
        except ThemeError as error:
            report(str(error))

    def _on_desktop_theme_changed(self) -> None:
        if self._settings.get("theme.name", str) == SYSTEM_THEME:
            self._load(self._show_error)

    def _apply_motion(self) -> None:
        """Apply the motion settings: menu animations, cursor blinking and the frame rate of live views."""
        is_calm = self._settings.get("window.reduced_motion", bool)
        rate_hz = self._settings.get("window.frame_rate", int)
        self._clock.set_rate(REDUCED_MOTION_HZ if is_calm else rate_hz)
        QApplication.setCursorFlashTime(0 if is_calm else self._flash_ms)
        if is_calm:
            for effect in _UI_EFFECTS:
                QApplication.setEffectEnabled(effect, False)


# Scale of all open windows. Qt reads QT_SCALE_FACTOR once and has no public function to change it. QtGui
# exports functions that are not public: one sets the factor of a screen, two notify a window of its new pixel
# ratio and geometry. Their mangled names contain the types of their parameters. They are used where they
# exist, on X11, where Qt's factor is the only factor of a screen; elsewhere `find_screen_scale` returns None
# and zoom needs a restart. A scale factor of our own would have to pass through some hundred places. A change
# takes 15 to 60 ms.

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
    """Functions of QtGui that change the scale; pointers are passed as integers."""

    set_factor: Callable[[int, float], None]
    notify_pixel_ratio: Callable[[int], None]
    notify_geometry: Callable[[int, int], None]


class ScreenScale:
    """Scale of all windows; `factor` is relative to the scale at start."""

    def __init__(self, calls: ScaleFunctions, over_all: float) -> None:
        self._functions = calls
        self._global_factor = over_all
        self._screen_factors: dict[QScreen, float] = {}
        self._last_geometry: tuple[QRect, QRect] | None = None
        self.factor = 1.0

    def set_factor(self, factor: float, window: QWidget) -> None:
        """Scale all windows; `window` keeps its size and position on the screen."""
        self.factor = factor
        native = self._native_geometry(window)
        for screen in QGuiApplication.screens():
            screen_factor = self._screen_factors.setdefault(
                screen, screen.devicePixelRatio() / self._global_factor
            )
            self._functions.set_factor(getCppPointer(screen)[0], screen_factor * factor)
        for handle in QGuiApplication.allWindows():
            self._functions.notify_pixel_ratio(getCppPointer(handle)[0])
        fit_minimum_size(window)
        handle = window.windowHandle()
        if handle is not None:
            box = (ctypes.c_int * 4)(native.left(), native.top(), native.right(), native.bottom())
            self._functions.notify_geometry(getCppPointer(handle)[0], ctypes.addressof(box))
        self._last_geometry = (window.geometry(), native)

    def _native_geometry(self, window: QWidget) -> QRect:
        """Return the window's geometry in native pixels.

        If the window has not moved since the last change of scale, return the geometry that was set then, so
        that rounding errors do not add up.
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
    """Limit the window's minimum size to the screen size at the current scale."""
    room = window.screen().availableSize()
    window.setMinimumSize(MIN_WINDOW_SIZE.boundedTo(room))


def find_screen_scale() -> ScreenScale | None:
    """Return an object that changes the scale of open windows; None if this Qt or this platform does not
    support that."""
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
