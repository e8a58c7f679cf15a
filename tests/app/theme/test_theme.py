from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QIcon, QImage, QPalette
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from rankdeck_app.theme import BUILT_IN_THEMES, Theme, ThemeError, set_style_properties
from rankdeck_app.theme.icons import CODEPOINTS, FONT_FILE, _font_family
from rankdeck_app.theme.qss import style_sheet
from rankdeck_app.theme.theme import prefer_families


def pixels(icon: QIcon, side: int = 24) -> QImage:
    return icon.pixmap(QSize(side, side)).toImage()


def count_painted_pixels(image: QImage) -> int:
    return sum(
        image.pixelColor(x, y).alpha() > 0 for x in range(image.width()) for y in range(image.height())
    )


def test_a_theme_changes_palette_and_style_sheet_and_signals(qapp: QApplication) -> None:
    theme, names = Theme(), list[str]()
    theme.apply()
    theme.changed.connect(lambda: names.append(theme.name))
    theme.load("Light Modern")
    assert names == ["Light Modern"] and theme.kind == "light"
    assert qapp.palette().color(QPalette.ColorRole.Window).name() == "#ffffff"
    assert "#005fb8" in qapp.styleSheet()
    assert qapp.property("isFusion")
    theme.load("Light Modern")
    assert names == ["Light Modern"]


def test_an_invalid_theme_keeps_the_old_one(qapp: QApplication, tmp_path: Path) -> None:
    theme = Theme()
    with pytest.raises(ThemeError, match="Use Dark Modern, Light Modern, Dark High"):
        theme.load("Solarised")
    with pytest.raises(ThemeError, match=r"gone\.json"):
        theme.load(str(tmp_path / "gone.json"))
    assert theme.name == "Dark Modern"


def test_vs_code_alpha_is_converted_for_qt(qapp: QApplication, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"type": "dark", "colors": {"focusBorder": "#11223344"}}')
    theme = Theme()
    theme.load(str(path))
    assert theme.color("focusBorder").getRgb() == (0x11, 0x22, 0x33, 0x44)
    assert theme.hex("focusBorder") == "rgba(17,34,51,68)"


@pytest.mark.parametrize("name", BUILT_IN_THEMES)
def test_every_id_of_the_style_sheet_has_a_colour(qapp: QApplication, name: str) -> None:
    theme = Theme()
    theme.load(name)
    assert "@" not in style_sheet(theme.hex)


def test_code_labels_use_the_preferred_font(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdeck_app.theme.qss.MONO_FAMILIES", families := ["monospace"])
    monkeypatch.setattr("rankdeck_app.theme.theme.MONO_FAMILIES", families)
    label = QLabel("x = 1")
    label.setProperty("tone", "mono")
    qtbot.addWidget(label)
    prefer_families("", ' Cascadia "Code" ')
    Theme().apply()
    label.ensurePolished()
    assert label.font().families() == ["Cascadia Code", "monospace"]


def test_the_lead_is_amber_in_both_themes(qapp: QApplication) -> None:
    theme = Theme()
    assert theme.color("rankdeck.lead").name() == "#f2a93b"
    assert theme.color("rankdeck.rest").name() == "#5bb8f5"
    theme.load("Light Modern")
    assert theme.color("rankdeck.lead").name() == "#c77700"
    assert theme.color("rankdeck.rest").name() == "#1b7fc4"


def test_every_icon_is_a_glyph_of_the_font(qapp: QApplication) -> None:
    from PySide6.QtGui import QRawFont

    _font_family()
    font = QRawFont(str(FONT_FILE), 16)
    assert [name for name, code in CODEPOINTS.items() if not font.supportsCharacter(code)] == []
    assert (FONT_FILE.parent / "codicon-LICENSE.txt").read_text().startswith("codicon.ttf is the icon font")


def test_icons_follow_a_theme_change(qapp: QApplication) -> None:
    theme = Theme()
    icon = theme.icon("primitive-square", "focusBorder")
    copy = QIcon(icon)
    dark = pixels(icon)
    assert count_painted_pixels(dark) > 20
    theme.load("Light Modern")
    light = pixels(copy)
    assert count_painted_pixels(light) == count_painted_pixels(dark) and light != dark


def test_an_unknown_icon_raises(qapp: QApplication) -> None:
    with pytest.raises(AssertionError, match="no icon"):
        Theme().icon("no-such-icon")


def test_style_properties_can_change_while_visible(qtbot: QtBot) -> None:
    Theme().apply()
    button = QPushButton("Launch")
    qtbot.addWidget(button)
    button.show()
    before = button.grab().toImage()
    set_style_properties(button, kind="primary")
    assert button.grab().toImage() != before
