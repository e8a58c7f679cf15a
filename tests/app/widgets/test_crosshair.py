"""The text under the pointer is whole, beside it and off the curves: in its plot, or over what is around."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from rankdeck.run.series import Series
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.crosshair import place_readout
from rankdeck_app.widgets.curve_plot import CurvePlot

TEXT = "0:25  Virtual 0 285.0 MiB  others 77.0…79.0"
WINDOW = QRectF(0, 0, 800, 600)


@pytest.mark.parametrize("cursor", [0, 10, 150, 390, 400])
@pytest.mark.parametrize("size", [(400, 160), (190, 90), (120, 50), (60, 20)])
@pytest.mark.parametrize("at", [(0, 0), (200, 300), (400, 440)])
def test_the_readout_is_never_cut_and_never_on_the_cursor(
    qapp: QApplication, cursor: float, size: tuple[int, int], at: tuple[int, int]
) -> None:
    view, x = QRectF(*at, *size), at[0] + min(cursor, size[0])
    text, box = place_readout(TEXT, x, view, WINDOW, [])
    assert text.replace("\n", "  ") == TEXT
    assert WINDOW.contains(box) and not box.left() <= x <= box.right()
    if size == (400, 160):
        assert view.contains(box), "where the plot has room it stays there"


def test_the_readout_of_a_small_plot_extends_beyond_it(qtbot: QtBot) -> None:
    """What is painted wider or higher than its place fails in every test."""
    series, window = Series(), QWidget()
    series.append_many(np.arange(1, 101), np.linspace(5, 4, 100))
    plot = CurvePlot(Theme(), series, series, series, name="Training loss")
    plot.setParent(window)
    qtbot.addWidget(window)
    window.resize(500, 400)
    plot.setGeometry(100, 100, 130, 60)
    window.show()
    plot.request_draw(now=True)
    view = plot.mapFromScene(plot.getViewBox().sceneBoundingRect()).boundingRect()
    at = QPointF(view.center())
    nothing = Qt.MouseButton.NoButton, Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier
    plot.mouseMoveEvent(QMouseEvent(QEvent.Type.MouseMove, at, at, *nothing))
    readout = plot._crosshair.readout
    assert readout is not None and readout.isVisible() and readout.parentWidget() is window
    assert [line.split()[0] for line in readout.text.split("\n")] == ["step", "raw", "EMA", "held-out"]
    inside = QRect(plot.mapTo(window, view.topLeft()), view.size())
    assert window.rect().contains(readout.geometry()) and not inside.contains(readout.geometry())
    assert not readout.geometry().contains(plot.mapTo(window, QPoint(int(at.x()), int(at.y()))))
    window.grab()
    plot.hide()
    assert not readout.isVisible()


@pytest.mark.parametrize("height", [10, 80, 150])
@pytest.mark.parametrize("cursor", [40, 200, 360])
def test_the_readout_avoids_curves(qapp: QApplication, cursor: float, height: float) -> None:
    x, view = np.arange(0.0, 400.0), QRectF(0, 0, 400, 160)
    _, box = place_readout("step 500  raw 4.5", cursor, view, view, [(x, np.full(400, height))])
    assert not box.top() - 2 <= height <= box.bottom() + 2
    assert not box.left() <= cursor <= box.right(), "it stands beside the line"


def test_the_readout_avoids_the_reset_button(qapp: QApplication) -> None:
    button, view = QRectF(300, 0, 96, 20), QRectF(0, 0, 400, 160)
    _, box = place_readout("step 500  raw 4.5", 280, view, view, [], [button])
    assert not box.intersects(button)
