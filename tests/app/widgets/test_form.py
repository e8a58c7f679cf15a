"""Editors of options: what they show and what they hand back."""

from __future__ import annotations

from PySide6.QtWidgets import QComboBox
from pytestqt.qtbot import QtBot

from rankdeck.config.catalog import OPTIMIZERS, option_fields
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.form import FormRow, make_field


def test_a_switch_can_be_left_unset(qtbot: QtBot) -> None:
    """On, off and neither are three answers: torch decides where nobody does."""
    (option,) = (
        candidate for candidate in option_fields(OPTIMIZERS["adamw"].options) if candidate.name == "fused"
    )
    field = make_field(FormRow(("train", "optimizer", "fused"), "Fused", option), Theme())
    qtbot.addWidget(field)
    box, edits = field.editor, []
    assert isinstance(box, QComboBox)
    field.edited.connect(edits.append)
    texts = []
    for value in (None, True, False):
        field.show_value(value)
        texts.append(box.currentText())
    assert texts == ["auto", "true", "false"]
    for index in range(box.count()):
        box.setCurrentIndex(index)
        box.activated.emit(index)
    assert edits == [None, False, True]
