"""The text under the pointer stays inside its plot and off the curves."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QRectF
from PySide6.QtWidgets import QApplication

from rankdeck_app.widgets.crosshair import placed

TEXT = "0:25  Virtual 0 285.0 MiB  others 77.0…79.0"


@pytest.mark.parametrize("cursor", [0, 10, 150, 390, 400])
@pytest.mark.parametrize("size", [(400, 160), (190, 90), (120, 50)])
def test_it_is_never_cut(qapp: QApplication, cursor: float, size: tuple[int, int]) -> None:
    room = QRectF(0, 0, *size)
    shown, box = placed(TEXT, min(cursor, size[0]), room, [])
    assert shown.replace("\n", "  ") == TEXT
    if box.width() <= size[0] and box.height() <= size[1]:
        assert room.adjusted(-0.5, -0.5, 0.5, 0.5).contains(box)
    assert box.left() >= 0 and box.top() >= 0


@pytest.mark.parametrize("height", [10, 80, 150])
@pytest.mark.parametrize("cursor", [40, 200, 360])
def test_it_covers_no_curve_where_there_is_another_place(
    qapp: QApplication, cursor: float, height: float
) -> None:
    x = np.arange(0.0, 400.0)
    _, box = placed("step 500  raw 4.5", cursor, QRectF(0, 0, 400, 160), [(x, np.full(400, height))])
    assert not box.top() - 2 <= height <= box.bottom() + 2
    assert not box.left() <= cursor <= box.right(), "it stands beside the line"


def test_it_leaves_the_button_of_a_zoomed_plot_free(qapp: QApplication) -> None:
    button = QRectF(300, 0, 96, 20)
    _, box = placed("step 500  raw 4.5", 280, QRectF(0, 0, 400, 160), [], [button])
    assert not box.intersects(button)
