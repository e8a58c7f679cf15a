"""Theme, density and motion follow the settings at once; a theme called System follows the desktop."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLineEdit
from pytestqt.qtbot import QtBot

from rankdeck_app.shell.appearance import REDUCED_MOTION_HZ
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.theme import SYSTEM_THEME
from rankdeck_app.theme.theme import system_theme


def test_the_system_theme_follows_the_desktop(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    window.settings.set("theme.name", SYSTEM_THEME)
    assert window.theme.name == system_theme() == "Dark Modern"  # offscreen says nothing
    monkeypatch.setattr("rankdeck_app.theme.theme.system_theme", lambda: "Light High Contrast")
    hints = QApplication.styleHints()
    hints.colorSchemeChanged.emit(Qt.ColorScheme.Light)
    assert window.theme.name == "Light High Contrast"
    assert window.settings.get("theme.name", str) == SYSTEM_THEME
    window.settings.set("theme.name", "Dark Modern")
    hints.accessibility().contrastPreferenceChanged.emit(Qt.ContrastPreference.HighContrast)
    assert window.theme.name == "Dark Modern", "who chose a theme keeps it"


def test_a_compact_window_has_lower_fields(qtbot: QtBot, window: MainWindow) -> None:
    field = QLineEdit()
    qtbot.addWidget(field)
    field.show()
    before, signals = field.sizeHint().height(), list[str]()
    window.theme.changed.connect(lambda: signals.append("changed"))
    window.settings.set("window.density", "compact")
    assert field.sizeHint().height() < before and signals == ["changed"]
    window.settings.set("window.density", "comfortable")
    assert field.sizeHint().height() == before


def test_reduced_motion_stops_blinking_and_animations(qtbot: QtBot, window: MainWindow) -> None:
    frames, flash_ms = list[int](), QApplication.cursorFlashTime()
    window.clock.subscribe(lambda: frames.append(1))
    assert window.clock._timer.interval() == round(1000 / 30)
    window.settings.set("window.reduced_motion", True)
    assert window.clock._timer.interval() == 1000 // REDUCED_MOTION_HZ
    assert QApplication.cursorFlashTime() == 0
    assert not QApplication.isEffectEnabled(Qt.UIEffect.UI_AnimateMenu)
    window.settings.set("window.frame_rate", 60)
    assert window.clock._timer.interval() == 1000 // REDUCED_MOTION_HZ, "more frames are no less motion"
    window.settings.set("window.reduced_motion", False)
    assert window.clock._timer.interval() == round(1000 / 60)
    assert QApplication.cursorFlashTime() == flash_ms
