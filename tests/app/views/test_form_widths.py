"""The Launch form is as wide as the side bar, whatever stands in it, also after a restart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ComboBox
from tests.helpers import form_widths
from tests.helpers.waiting import scale_timeout


def test_nothing_overflows_the_side_bar_at_any_width(qtbot: QtBot, tmp_path: Path) -> None:
    assert form_widths.find_all_too_wide(tmp_path) == []


def test_nothing_overflows_the_side_bar_at_150_percent(tmp_path: Path) -> None:
    environment = os.environ | {"QT_SCALE_FACTOR": "1.5", "QT_QPA_PLATFORM": "offscreen"}
    command = [sys.executable, "-m", "tests.helpers.form_widths"]
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=scale_timeout(60), check=True
    )
    assert process.stdout.strip() == ""


@pytest.mark.parametrize(("width", "is_cut"), [(90, True), (400, False)])
def test_a_narrow_combo_box_elides_and_has_a_tooltip(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, width: int, is_cut: bool
) -> None:
    box, tooltips = ComboBox(Theme()), []
    qtbot.addWidget(box)
    box.addItem("interleaved-zero-bubble")
    box.setToolTip("In which order stages run")
    box.resize(width, 28)
    assert box.is_elided == is_cut and box.minimumSizeHint().width() < 90
    monkeypatch.setattr(
        "rankdeck_app.widgets.controls.QToolTip.showText", lambda *arguments: tooltips.append(arguments[1])
    )
    QApplication.sendEvent(box, QHelpEvent(QEvent.Type.ToolTip, QPoint(5, 5), QPoint(5, 5)))
    assert tooltips == (["interleaved-zero-bubble\nIn which order stages run"] if is_cut else [])
    box.grab()


def test_editable_text_is_aligned_with_other_text(qtbot: QtBot) -> None:
    theme, pictures = Theme(), []
    theme.apply()
    for is_editable in (True, False):
        box = ComboBox(theme)
        qtbot.addWidget(box)
        box.setEditable(is_editable)
        box.addItem("gpt")
        box.resize(120, 28)
        pictures.append(box.grab().toImage())
    assert pictures[0] == pictures[1]
