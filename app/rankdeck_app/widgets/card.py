"""A card of the dashboard: a rounded frame with title, muted subtitle and the source of its figures, around
one body widget.

The card owns what every chart can do: be copied as a picture, and be exported as PNG, SVG and CSV (the rows
come from whoever built the card). A body paints its own background, so that a live chart never repaints the
frame around it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFontMetricsF,
    QGuiApplication,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
)
from PySide6.QtWidgets import QFileDialog, QMenu, QMessageBox, QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.layouts import column
from rankdeck_app.widgets.painting import chart_font, paint_text, painted_width

HEADER_HEIGHT = 30
RADIUS = 6

CsvRows = Callable[[], Iterable[Sequence[object]]]


class ChartCard(QWidget):
    """A titled frame. `csv_rows` gives the header row and then the data rows of the CSV export."""

    def __init__(self, title: str, theme: Theme, body: QWidget, csv_rows: CsvRows | None = None) -> None:
        super().__init__()
        self.title = title
        self._subtitle = self._short_subtitle = ""
        self._source = self._short_source = ""
        self._theme = theme
        self._colors = ChartColors(theme)
        self._csv_rows = csv_rows
        column(body, on=self, margins=(10, HEADER_HEIGHT, 10, 8))
        self.setAccessibleName(title)
        theme.changed.connect(self._retheme)

    def set_title(self, text: str) -> None:
        if text != self.title:
            self.title = text
            self.setAccessibleName(text)
            self.update(self._header_rect())

    def set_subtitle(self, text: str, short: str = "") -> None:
        """`short` is drawn where the whole text has no room."""
        if (text, short or text) != (self._subtitle, self._short_subtitle):
            self._subtitle, self._short_subtitle = text, short or text
            self.update(self._header_rect())

    def set_source(self, text: str, short: str = "") -> None:
        """What the figures are: measured in a rehearsal, on a GPU, predicted or simulated.

        `short` is drawn where the whole text has no room; the tooltip has the whole.
        """
        if (text, short or text) != (self._source, self._short_source):
            self._source, self._short_source = text, short or text
            self.setAccessibleDescription(text)
            self.setToolTip(text)
            self.update(self._header_rect())

    def _header_rect(self) -> QRect:
        return QRect(0, 0, self.width(), HEADER_HEIGHT)

    def _retheme(self) -> None:
        self._colors = ChartColors(self._theme)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(self._colors.border, 1))
        painter.setBrush(self._colors.card)
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS)
        self._paint_header(painter)
        painter.end()

    def _paint_header(self, painter: QPainter) -> None:
        """Title, subtitle, and the source at the right. The subtitle is shortened first, the title last."""
        left, right, colors = 12.0, self.width() - 12.0, self._colors

        def draw(text: str, left: float, ink: QColor, px: int, *, bold: bool = False) -> float:
            room, elide = QRectF(left, 6, max(0.0, right - left), 20), Qt.TextElideMode.ElideRight
            shown = paint_text(painter, room, text, ink, px, bold=bold, elide=elide)
            return painted_width(painter, shown)

        left += draw(self.title, left, colors.foreground, 12, bold=True)
        source = self._fitting_source(right - left)
        if source:
            width = QFontMetricsF(chart_font(10)).horizontalAdvance(source)
            draw(source, right - width - 1, colors.axis, 10)
            right -= width + 12
        metrics, room = QFontMetricsF(chart_font(11)), right - left - 12
        fits = metrics.horizontalAdvance(self._subtitle) <= room
        subtitle = self._subtitle if fits else self._short_subtitle
        # A word cut in the middle says less than none.
        if metrics.horizontalAdvance(subtitle) * 0.7 <= room:
            draw(subtitle, left + 12, colors.muted, 11)

    def _fitting_source(self, room: float) -> str:
        """The whole text if the subtitle keeps its room beside it, else the short one, else nothing."""
        metrics = QFontMetricsF(chart_font(10))
        subtitle = QFontMetricsF(chart_font(11)).horizontalAdvance(self._subtitle) + 24
        if metrics.horizontalAdvance(self._source) + subtitle <= room:
            return self._source
        return self._short_source if metrics.horizontalAdvance(self._short_source) + 12 <= room else ""

    def sizeHint(self) -> QSize:
        return QSize(420, 220)

    def copy_picture(self) -> None:
        QGuiApplication.clipboard().setPixmap(self.grab())

    def export_png(self, path: Path) -> None:
        """Writes the card at twice its size on screen, for papers and slides.

        Raises:
            OSError: the file cannot be written.
        """
        pixmap = QPixmap(self.size() * 2)
        pixmap.setDevicePixelRatio(2)
        pixmap.fill(Qt.GlobalColor.transparent)
        self.render(pixmap)
        if not pixmap.save(str(path), "PNG"):
            raise OSError(f"The picture could not be written to {path}.")

    def export_svg(self, path: Path) -> None:
        from PySide6.QtSvg import QSvgGenerator

        generator = QSvgGenerator()
        generator.setFileName(str(path))
        generator.setSize(self.size())
        generator.setViewBox(self.rect())
        generator.setTitle(self.title)
        painter = QPainter(generator)
        self.render(painter, self.rect().topLeft())
        painter.end()

    def export_csv(self, path: Path) -> None:
        """Writes the figures behind the picture.

        Raises:
            OSError: the file cannot be written.
        """
        assert self._csv_rows is not None
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(self._csv_rows())

    def build_menu(self) -> QMenu:
        menu = QMenu(self)
        menu.addAction("Copy as Picture", self.copy_picture)
        menu.addSeparator()
        menu.addAction("Export PNG…", lambda: self._export_with_dialog("png", self.export_png))
        menu.addAction("Export SVG…", lambda: self._export_with_dialog("svg", self.export_svg))
        if self._csv_rows is not None:
            menu.addAction("Export CSV…", lambda: self._export_with_dialog("csv", self.export_csv))
        return menu

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.build_menu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(event.globalPos())

    def _export_with_dialog(self, suffix: str, export: Callable[[Path], None]) -> None:
        name = f"{self.title.lower().replace(' ', '-')}.{suffix}"
        chosen, _ = QFileDialog.getSaveFileName(
            self, f"Export {self.title}", name, f"{suffix.upper()} (*.{suffix})"
        )
        if not chosen:
            return
        try:
            export(Path(chosen))
        except OSError as error:
            QMessageBox.warning(self, "Export", f"{error}\nChoose another folder.")
