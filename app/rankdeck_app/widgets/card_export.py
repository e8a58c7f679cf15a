"""Export of a card as PNG, SVG or CSV.

Each function captures the card's content at once, in the GUI thread, and returns a function that writes it to
a path. Any thread may call that function later.
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
    """A column of numbers, which must not be modified later, with the function that formats each number."""

    values: NDArray[Any]
    format: Callable[[float], str] = SHORT_FORMAT

    def __iter__(self) -> Iterator[str]:
        """Yield the formatted values. They are converted in chunks, because converting all of them at once
        would hold the GIL for too long."""
        for start in range(0, len(self.values), _CHUNK_ROWS):
            for number in self.values[start : start + _CHUNK_ROWS].tolist():
                yield self.format(number)


class CsvRowBlock:
    """Rows that are formatted when written; each of `cells` is a CsvColumn or a value that is the same in
    every row."""

    def __init__(self, *cells: object) -> None:
        self._cells = cells

    def __iter__(self) -> Iterator[CsvRow]:
        cells = [cell if isinstance(cell, CsvColumn) else repeat(cell) for cell in self._cells]
        return zip(*cells, strict=False)


CsvRows = Callable[[], Iterable[CsvRow | CsvRowBlock]]


def png_writer(card: QWidget) -> FileWriter:
    """Render the card at twice its size on screen, for papers and slides, and return a function that writes
    the image."""
    image = QImage(card.size() * 2, QImage.Format.Format_ARGB32_Premultiplied)
    image.setDevicePixelRatio(2)
    image.fill(Qt.GlobalColor.transparent)
    card.render(image)

    def fill(path: Path) -> None:
        # Encoding takes place here, so that it does not block the GUI thread.
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
    """Return a function that writes the header row and the data rows."""
    # Read the rows now, in the GUI thread; CsvRowBlocks are formatted when they are written.
    taken = list(rows)

    def fill(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            for row_or_block in taken:
                writer.writerows(row_or_block if isinstance(row_or_block, CsvRowBlock) else [row_or_block])

    return fill
