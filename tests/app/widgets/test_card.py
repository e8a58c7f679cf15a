"""Any card can be copied and exported, and says what its figures are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PySide6.QtGui import QGuiApplication, QImage
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_export import INTEGER_FORMAT, CsvColumn, CsvRowBlock


@pytest.fixture
def card(qtbot: QtBot) -> ChartCard:
    rows = [("device", "bytes"), ("Virtual 0", 5)]
    card = ChartCard("VRAM per device", Theme(), QLabel("body"), lambda: rows)
    qtbot.addWidget(card)
    card.set_subtitle("peak of step 3, of 80 GiB", "peak of step 3")
    card.set_source("tensor bytes on virtual devices (CPU rehearsal)", "CPU rehearsal")
    card.resize(500, 200)
    card.show()
    return card


def test_exports_are_real_files(card: ChartCard, tmp_path: Path) -> None:
    for kind in card.file_kinds:
        card.make_export(kind)(tmp_path / f"card.{kind}")
    image = QImage(str(tmp_path / "card.png"))
    assert (image.width(), image.height()) == (1000, 400)
    assert (tmp_path / "card.svg").read_text(encoding="utf-8").count("<text") >= 3
    assert (tmp_path / "card.csv").read_text(encoding="utf-8").splitlines() == ["device,bytes", "Virtual 0,5"]


def test_an_export_has_the_state_of_its_request(card: ChartCard, tmp_path: Path) -> None:
    steps, losses, written = np.arange(1.0, 4.0), np.array([0.5, 0.25, np.nan]), list[Path]()
    step_column = CsvColumn(steps, INTEGER_FORMAT)
    rows: list[object] = [
        ("run", "step", "loss"),
        CsvRowBlock("A", step_column, CsvColumn(losses)),
        ("B", 1, None),
    ]
    table_card = ChartCard("Loss", Theme(), QLabel("body"), lambda: rows)  # type: ignore[arg-type,return-value]
    for kind, exported_card in (("csv", table_card), ("svg", card), ("png", card)):
        fill, before = exported_card.make_export(kind), tmp_path / f"before.{kind}"
        exported_card.make_export(kind)(before)
        rows.append(("C", 2, None))
        card.set_title(f"another title than before {kind}")
        fill(tmp_path / f"after.{kind}")
        written.append(before)
        assert (tmp_path / f"after.{kind}").read_bytes() == before.read_bytes()
    assert written[0].read_text().splitlines() == ["run,step,loss", "A,1,0.5", "A,2,0.25", "A,3,nan", "B,1,"]
    table_card.deleteLater()


def test_an_export_that_cannot_be_written_raises(card: ChartCard, tmp_path: Path) -> None:
    for kind in card.file_kinds:
        with pytest.raises(OSError, match="No such file"):
            card.make_export(kind)(tmp_path / "no" / "card")


def test_copy_puts_a_picture_on_the_clipboard(card: ChartCard) -> None:
    card.copy_image()
    assert not QGuiApplication.clipboard().pixmap().isNull()


def test_the_menu_lists_the_available_exports(card: ChartCard) -> None:
    menu = card.build_menu()
    texts = [action.text() for action in menu.actions() if action.text()]
    assert texts == ["Copy as Image", "Export PNG…", "Export SVG…", "Export CSV…"]
    menu.deleteLater()


def test_a_card_has_the_minimum_height_of_its_body(card: ChartCard) -> None:
    before = card.minimumSizeHint().height()
    card.body.setMinimumHeight(300)
    assert before < 300 < card.minimumSizeHint().height()


@pytest.mark.parametrize(("width", "expected"), [(600, "tensor bytes"), (340, "CPU rehearsal"), (160, "")])
def test_the_source_is_shortened_to_a_whole_text(card: ChartCard, width: int, expected: str) -> None:
    card.resize(width, 200)
    _, source = card.fit_header_texts(card.width() - 24 - 110)
    assert source.startswith(expected) and (source == "") == (expected == "")
    assert card.fit_header_texts(100) == ("", "CPU rehearsal"), "before any subtitle"
    assert card.toolTip() == "peak of step 3, of 80 GiB\ntensor bytes on virtual devices (CPU rehearsal)"


@pytest.mark.parametrize(
    ("room", "expected"), [(400, "peak of step 3, of 80 GiB"), (190, "peak of step 3"), (9, "")]
)
def test_the_subtitle_uses_the_longest_text_that_fits(card: ChartCard, room: int, expected: str) -> None:
    assert card.fit_header_texts(room)[0] == expected


def test_a_lazy_body_is_built_once_on_first_use(qtbot: QtBot) -> None:
    bodies: list[QLabel] = []

    def make() -> QLabel:
        bodies.append(QLabel("body"))
        return bodies[-1]

    card = ChartCard("Training loss", Theme(), make)
    qtbot.addWidget(card)
    signals: list[object] = []
    card.body_built.connect(signals.append)
    card.resize(300, 200)
    card.show()
    assert card.built_body is None and card.minimumSizeHint().height() > 0
    card.restore_style({"is_log": True})
    assert card.style_state() == {"is_log": True} and not bodies, "a layout is kept for it"
    assert card.body is card.body is bodies[0] and signals == bodies
    assert bodies[0].isVisible()
