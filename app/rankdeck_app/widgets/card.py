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

from PySide6.QtCore import QEvent, QRect, QRectF, QSize, Qt
from PySide6.QtGui import (
    QContextMenuEvent,
    QFontMetricsF,
    QGuiApplication,
    QHelpEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
)
from PySide6.QtWidgets import QFileDialog, QMenu, QMessageBox, QToolTip, QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.layouts import column
from rankdeck_app.widgets.painting import RIGHT, chart_font, paint_text, painted_width

HEADER_HEIGHT = 30
RADIUS = 6

CsvRows = Callable[[], Iterable[Sequence[object]]]


class ChartCard(QWidget):
    """A titled frame. `csv_rows` gives the header row and then the data rows of the CSV export."""

    def __init__(self, title: str, theme: Theme, body: QWidget, csv_rows: CsvRows | None = None) -> None:
        super().__init__()
        self.title = title
        self._subtitles: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._sources: tuple[str, ...] = ()
        self._theme = theme
        self._colors = ChartColors(theme)
        self._csv_rows = csv_rows
        self.body = body
        column(body, on=self, margins=(10, HEADER_HEIGHT, 10, 8))
        self.setAccessibleName(title)
        theme.changed.connect(self._retheme)

    def set_title(self, text: str) -> None:
        if text != self.title:
            self.title = text
            self.setAccessibleName(text)
            self.update(self._header_rect())

    def set_subtitle(self, *texts: str) -> None:
        """The same in ever fewer words: those are drawn that have room, the tooltip has all."""
        if texts != self._subtitles:
            self._subtitles = texts
            self._tell()

    def set_source(self, *texts: str) -> None:
        """What the figures are: measured in a rehearsal, on a GPU, predicted or simulated. As a subtitle."""
        if texts != self._sources:
            self._sources = texts
            self._tell()

    def set_note(self, *texts: str) -> None:
        """Stands in the place of the subtitle while there is one: that a chart is zoomed, and to what."""
        if texts != self._notes:
            self._notes = texts
            self._tell()

    @property
    def subtitle(self) -> str:
        """All of it."""
        return next(iter(self._notes or self._subtitles), "")

    @property
    def source(self) -> str:
        """All of it."""
        return self._sources[0] if self._sources else ""

    def _tell(self) -> None:
        words = [text for text in (self.subtitle, self.source) if text]
        self.setAccessibleDescription(". ".join(words))
        self.setToolTip("\n".join(words))
        self.update(self._header_rect())

    @property
    def natural_height(self) -> int:
        """What the body asks for, with the frame around it."""
        return HEADER_HEIGHT + 8 + self.body.sizeHint().height()

    def minimumSizeHint(self) -> QSize:
        return QSize(120, HEADER_HEIGHT + 8 + self.body.minimumSizeHint().height())

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
        """Title, subtitle, and the source at the right, each in words that fit whole."""
        left, right, colors = 12.0, self.width() - 12.0, self._colors
        room, elide = QRectF(left, 6, max(0.0, right - left), 20), Qt.TextElideMode.ElideRight
        shown = paint_text(painter, room, self.title, colors.foreground, 12, bold=True, elide=elide)
        left += painted_width(painter, shown) + 12
        subtitle, source = self.fitting_words(right - left)
        room.setLeft(left)
        if subtitle:
            paint_text(painter, room, subtitle, colors.muted, 11)
        if source:
            paint_text(painter, room, source, colors.axis, 10, RIGHT)

    def fitting_words(self, room: float) -> tuple[str, str]:
        """(subtitle, source) that fit beside each other: a short source before a long subtitle."""
        subtitles, sources = self._notes or self._subtitles or ("",), self._sources or ("",)
        of_subtitle, of_source = QFontMetricsF(chart_font(11)), QFontMetricsF(chart_font(10))
        wanted = [(subtitles[0], sources[0])]
        wanted += [(subtitle, sources[-1]) for subtitle in subtitles]
        wanted += [(subtitle, "") for subtitle in subtitles] + [("", sources[-1])]
        for subtitle, source in wanted:
            gap = 14 if subtitle and source else 1
            widths = of_subtitle.horizontalAdvance(subtitle), of_source.horizontalAdvance(source)
            if sum(widths) + gap <= room:
                return subtitle, source
        return "", ""

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

    def event(self, event: QEvent) -> bool:
        """Its words are told over its header: over a chart they would hide what is pointed at."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            words = self.toolTip() if event.pos().y() <= HEADER_HEIGHT else ""
            QToolTip.showText(event.globalPos(), words, self)
            return True
        return super().event(event)

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
