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
    QFont,
    QFontMetricsF,
    QGuiApplication,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
)
from PySide6.QtWidgets import QFileDialog, QMenu, QVBoxLayout, QWidget

from rankdeck_app.widgets.chart_colors import ChartColors, ThemeColors, chart_font

HEADER_HEIGHT = 30
RADIUS = 6

CsvRows = Callable[[], Iterable[Sequence[object]]]


def _draw(painter: QPainter, text: str, font: QFont, color: QColor, left: float, right: float) -> float:
    """One line of the header, shortened to its room; the width that it took."""
    painter.setFont(font)
    painter.setPen(color)
    shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, max(0, int(right - left)))
    where = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
    painter.drawText(QRectF(left, 6, max(0.0, right - left), 20), where, shown)
    return painter.fontMetrics().horizontalAdvance(shown)


class ChartCard(QWidget):
    """A titled frame. `csv_rows` gives the header row and then the data rows of the CSV export."""

    def __init__(self, title: str, theme: ThemeColors, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._title = title
        self._subtitle = self._short_subtitle = ""
        self._source = self._short_source = ""
        self._theme = theme
        self._colors = ChartColors.of(theme)
        self._csv_rows: CsvRows | None = None
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(10, HEADER_HEIGHT, 10, 8)
        self.setAccessibleName(title)
        theme.changed.connect(self._retheme)

    @property
    def title(self) -> str:
        return self._title

    def set_title(self, text: str) -> None:
        if text != self._title:
            self._title = text
            self.setAccessibleName(text)
            self.update(self._header_rect())

    def set_body(self, body: QWidget, csv_rows: CsvRows | None = None) -> None:
        self._layout.addWidget(body)
        self._csv_rows = csv_rows

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
        self._colors = ChartColors.of(self._theme)
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
        left, right = 12.0, self.width() - 12.0
        left += _draw(painter, self._title, chart_font(12, bold=True), self._colors.foreground, left, right)
        source = self._fitting_source(right - left)
        if source:
            width = QFontMetricsF(chart_font(10)).horizontalAdvance(source)
            _draw(painter, source, chart_font(10), self._colors.axis, right - width - 1, right)
            right -= width + 12
        metrics, room = QFontMetricsF(chart_font(11)), right - left - 12
        fits = metrics.horizontalAdvance(self._subtitle) <= room
        subtitle = self._subtitle if fits else self._short_subtitle
        # A word cut in the middle says less than none.
        if metrics.horizontalAdvance(subtitle) * 0.7 <= room:
            _draw(painter, subtitle, chart_font(11), self._colors.muted, left + 12, right)

    def _fitting_source(self, room: float) -> str:
        """The whole text if the subtitle keeps its room beside it, else the short one, else nothing."""
        metrics = QFontMetricsF(chart_font(10))
        subtitle = QFontMetricsF(chart_font(11)).horizontalAdvance(self._subtitle) + 24
        if metrics.horizontalAdvance(self._source) + subtitle <= room:
            return self._source
        return self._short_source if metrics.horizontalAdvance(self._short_source) + 12 <= room else ""

    def sizeHint(self) -> QSize:
        return QSize(420, 220)

    def picture(self) -> QPixmap:
        return self.grab()

    def copy_picture(self) -> None:
        QGuiApplication.clipboard().setPixmap(self.picture())

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
        generator.setTitle(self._title)
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
        name = f"{self._title.lower().replace(' ', '-')}.{suffix}"
        chosen, _ = QFileDialog.getSaveFileName(
            self, f"Export {self._title}", name, f"{suffix.upper()} (*.{suffix})"
        )
        if not chosen:
            return
        try:
            export(Path(chosen))
        except OSError as error:
            from PySide6.QtWidgets import QMessageBox

            QMessageBox.warning(self, "Export", f"{error}\nChoose another folder.")
