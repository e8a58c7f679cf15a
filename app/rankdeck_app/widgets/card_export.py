"""What a card is exported as: its picture, its drawing, or a table of the figures behind it.

What is needed of the card is taken at once, by the thread of the window. Each function returns what fills a
path with it, which any thread may call later.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QBuffer, QIODevice, Qt
from PySide6.QtGui import QImage, QImageWriter, QPainter
from PySide6.QtWidgets import QWidget

if TYPE_CHECKING:
    from numpy.typing import NDArray

FileWriter = Callable[[Path], object]
CsvRow = Sequence[object]
FILE_KINDS = ("png", "svg", "csv")
_CHUNK_ROWS = 4_096
INTEGER_FORMAT, SHORT_FORMAT = "{:.0f}".format, "{:.6g}".format


@dataclass(frozen=True)
class CsvColumn:
    """Numbers that nobody else changes, and how one of them is written."""

    values: NDArray[Any]
    format: Callable[[float], str] = SHORT_FORMAT

    def __iter__(self) -> Iterator[str]:
        """A piece at a time: a long list at once would hold up the other threads."""
        for start in range(0, len(self.values), _CHUNK_ROWS):
            for number in self.values[start : start + _CHUNK_ROWS].tolist():
                yield self.format(number)


class CsvRowBlock:
    """Rows that are put into words when they are written. A cell is a column, or the same in all of them."""

    def __init__(self, *cells: object) -> None:
        self._cells = cells

    def __iter__(self) -> Iterator[CsvRow]:
        cells = [cell if isinstance(cell, CsvColumn) else repeat(cell) for cell in self._cells]
        return zip(*cells, strict=False)


CsvRows = Callable[[], Iterable[CsvRow | CsvRowBlock]]


def png_writer(card: QWidget) -> FileWriter:
    """At twice its size on screen, for papers and slides."""
    image = QImage(card.size() * 2, QImage.Format.Format_ARGB32_Premultiplied)
    image.setDevicePixelRatio(2)
    image.fill(Qt.GlobalColor.transparent)
    card.render(image)

    def fill(path: Path) -> None:
        written = QBuffer()
        written.open(QIODevice.OpenModeFlag.WriteOnly)
        QImageWriter(written, b"png").write(image)
        path.write_bytes(written.data().data())

    return fill


def svg_writer(card: QWidget, title: str) -> FileWriter:
    from PySide6.QtSvg import QSvgGenerator

    generator, written = QSvgGenerator(), QBuffer()
    generator.setOutputDevice(written)
    generator.setSize(card.size())
    generator.setViewBox(card.rect())
    generator.setTitle(title)
    painter = QPainter(generator)
    card.render(painter, card.rect().topLeft())
    painter.end()
    drawn = written.data().data()
    return lambda path: path.write_bytes(drawn)


def csv_writer(rows: Iterable[CsvRow | CsvRowBlock]) -> FileWriter:
    """The header row, and then the rows of data."""
    taken = list(rows)

    def fill(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            for part in taken:
                writer.writerows(part if isinstance(part, CsvRowBlock) else [part])

    return fill
