"""The pinned PySide6 does not lose references: 6.12.0 on Python 3.11 does, and the process dies within
seconds.
"""

from __future__ import annotations

import sys

from PySide6.QtGui import QColor, QImage, QPainter, QPen
from PySide6.QtWidgets import QApplication

NUM_CALLS = 2000


def test_set_pen_keeps_the_reference_count_of_none(qapp: QApplication) -> None:
    painter = QPainter(image := QImage(8, 8, QImage.Format.Format_ARGB32))
    pen = QPen(QColor("red"))
    painter.setPen(pen)
    before = sys.getrefcount(None)
    for _ in range(NUM_CALLS):
        painter.setPen(pen)
    lost = before - sys.getrefcount(None)
    painter.end()
    assert not image.isNull()
    assert lost < NUM_CALLS * 0.05


def test_the_reference_count_check_detects_a_lost_reference() -> None:
    before = sys.getrefcount(None)
    references = [None] * NUM_CALLS
    assert sys.getrefcount(None) - before >= NUM_CALLS * 0.95
    assert len(references) == NUM_CALLS
