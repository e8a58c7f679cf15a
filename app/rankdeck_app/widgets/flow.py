"""Widgets beside each other that go on in the next row where the width ends, as words do."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QWidget


class FlowLayout(QLayout):
    """`gap` parts widgets and rows."""

    def __init__(self, parent: QWidget, gap: int = 8) -> None:
        super().__init__(parent)
        self._gap = gap
        self._items: list[QLayoutItem] = []
        self.setContentsMargins(0, 0, 0, 0)

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._places(width)[1]

    def sizeHint(self) -> QSize:
        return self.minimumSize()

    def minimumSize(self) -> QSize:
        size = QSize()
        for item in self._items:
            size = size.expandedTo(item.minimumSize())
        return size

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        for item, place in zip(self._items, self._places(rect.width())[0], strict=True):
            item.setGeometry(place.translated(rect.topLeft()))

    def _places(self, width: int) -> tuple[list[QRect], int]:
        """Where each item stands in that width, and the height of all."""
        places, corner, bottom = list[QRect](), QPoint(0, 0), 0
        for item in self._items:
            wanted = item.sizeHint()
            if corner.x() > 0 and corner.x() + wanted.width() > width:
                corner = QPoint(0, bottom + self._gap)
            place = QRect(corner, wanted.boundedTo(QSize(max(width, 0), wanted.height())))
            places.append(place)
            corner.setX(place.right() + 1 + self._gap)
            bottom = max(bottom, place.bottom() + 1)
        return places, bottom
