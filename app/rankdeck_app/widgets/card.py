"""A card of the dashboard: a rounded frame with title, muted subtitle and the source of its figures, around
one body widget. A body that costs something to make is made when it is first wanted.

The card owns what every chart can do: be copied as a picture, and be exported as PNG, SVG and CSV
(card_export.py; the rows come from whoever built the card). A body paints its own background, so that a live
chart never repaints the frame around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from PySide6.QtCore import QEvent, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QAction,
    QContextMenuEvent,
    QFocusEvent,
    QFontMetricsF,
    QGuiApplication,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
)
from PySide6.QtWidgets import QMenu, QToolTip, QWidget, QWidgetAction

from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets import card_export
from rankdeck_app.widgets.card_export import CsvRows, FileWriter
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.controls import Slider
from rankdeck_app.widgets.curve_style import AXIS_LABELS, SMOOTHINGS, CurveStyle, StyledChart
from rankdeck_app.widgets.layouts import column
from rankdeck_app.widgets.painting import RIGHT, chart_font, paint_text, text_width

HEADER_HEIGHT = 30
RADIUS = 6

_UNBUILT_HEIGHT = 50
_TITLE_GAP = 12


class ChartCard(QWidget):
    """A titled frame. `csv_rows` gives the header row and then the data rows of the CSV export.

    `maximise_requested`: a double click on the header, or Enter. `menu_requested` carries the menu for
    whoever has something to add; `style_changed`: a person changed how the chart is drawn. `export_requested`
    carries the card and the kind of file that is wanted of it, one of `file_kinds`. `body` may be what makes
    it: `body_built` carries it then.
    """

    maximise_requested = Signal()
    menu_requested = Signal(object)
    style_changed = Signal()
    export_requested = Signal(object, str)
    body_built = Signal(object)

    def __init__(
        self,
        title: str,
        theme: Theme,
        body: QWidget | Callable[[], QWidget],
        csv_rows: CsvRows | None = None,
    ) -> None:
        super().__init__()
        self.title = title
        self._subtitles: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._style_texts: tuple[str, ...] = ()
        self.get_shortcut: Callable[[str], str] = lambda _command: ""
        """The keys of a command, as a person reads them."""
        self._is_drop_target = False
        self._sources: tuple[str, ...] = ()
        self._theme = theme
        self._colors = ChartColors(theme)
        self._csv_rows = csv_rows
        self.built_body: QWidget | None = None
        """The body, once there is one."""
        self._build: Callable[[], QWidget] = (lambda: body) if isinstance(body, QWidget) else body
        self._pending_style: Mapping[str, object] = {}
        self._column = column(on=self, margins=(10, HEADER_HEIGHT, 10, 8))
        if isinstance(body, QWidget):
            self.build_body()
        self.setAccessibleName(title)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        theme.changed.connect(self._retheme)

    def build_body(self) -> QWidget:
        """Once."""
        body = self.built_body = self._build()
        self._column.addWidget(body)
        body.show()  # at once: the layout would do it in a later turn
        if self.styled_body is not None and self._pending_style:
            self._apply_style(CurveStyle.from_state(self._pending_style))
        self.body_built.emit(body)
        return body

    @property
    def body(self) -> QWidget:
        return self.built_body or self.build_body()

    @property
    def styled_body(self) -> StyledChart | None:
        """The body, where it can be drawn in several ways."""
        body: object = self.body
        return body if isinstance(body, StyledChart) else None

    def set_drop_target(self, is_target: bool) -> None:
        """Whether another card that is dragged would get this one's place."""
        if is_target != self._is_drop_target:
            self._is_drop_target = is_target
            self.update()

    def set_title(self, text: str) -> None:
        if text != self.title:
            self.title = text
            self.setAccessibleName(text)
            self.update(self._header_rect())

    def set_subtitle(self, *texts: str) -> None:
        """The same in ever fewer words: those are drawn that have room, the tooltip has all."""
        if texts != self._subtitles:
            self._subtitles = texts
            self._update_texts()

    def set_source(self, *texts: str) -> None:
        """What the figures are: measured in a rehearsal, on a GPU, predicted or simulated. As a subtitle."""
        if texts != self._sources:
            self._sources = texts
            self._update_texts()

    def set_note(self, *texts: str) -> None:
        """Stands in the place of the subtitle while there is one: that a chart is zoomed, and to what."""
        if texts != self._notes:
            self._notes = texts
            self._update_texts()

    def _header_texts(self) -> tuple[str, ...]:
        """A note before the subtitle, and how it is drawn before both: that is said when nothing else is."""
        words = self._notes or self._subtitles
        if not self._style_texts:
            return words or ("",)
        return *(f"{self._style_texts[0]}; {text}" for text in words if text), *self._style_texts

    @property
    def subtitle(self) -> str:
        """All of it."""
        return self._header_texts()[0]

    @property
    def source(self) -> str:
        """All of it."""
        return self._sources[0] if self._sources else ""

    def _update_texts(self) -> None:
        words = [text for text in (self.subtitle, self.source) if text]
        self.setAccessibleDescription(". ".join(words))
        self.setToolTip("\n".join(words))
        self.update(self._header_rect())

    @property
    def preferred_height(self) -> int:
        """What the body asks for, with the frame around it."""
        return HEADER_HEIGHT + 8 + self.body.sizeHint().height()

    def minimumSizeHint(self) -> QSize:
        body = self.built_body
        least = (
            _UNBUILT_HEIGHT if body is None else max(body.minimumSizeHint().height(), body.minimumHeight())
        )
        return QSize(120, HEADER_HEIGHT + 8 + least)

    def _header_rect(self) -> QRect:
        return QRect(0, 0, self.width(), HEADER_HEIGHT)

    def _retheme(self) -> None:
        self._colors = ChartColors(self._theme)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        is_lit = self.hasFocus() or self._is_drop_target
        ground = self._theme.color("focusBorder") if is_lit else self._colors.border
        painter.setPen(QPen(ground, 1))
        painter.setBrush(self._colors.card)
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS)
        self._paint_header(painter)
        painter.end()

    def _paint_header(self, painter: QPainter) -> None:
        """Title, subtitle, and the source at the right, each in words that fit whole."""
        left, right, colors = 12.0, self.width() - 12.0, self._colors
        room, elide = QRectF(left, 6, max(0.0, right - left), 20), Qt.TextElideMode.ElideRight
        title_room = room.adjusted(0, 0, -min(self._style_width, room.width() / 2), 0)
        shown = paint_text(painter, title_room, self.title, colors.foreground, 12, bold=True, elide=elide)
        left += text_width(painter, shown) + _TITLE_GAP
        subtitle, source = self.fit_header_texts(right - left)
        room.setLeft(left)
        if subtitle:
            paint_text(painter, room, subtitle, colors.muted, 11, elide=elide)
        if source:
            paint_text(painter, room, source, colors.axis, 10, RIGHT)

    @property
    def _shortest_style_text(self) -> str:
        return self._style_texts[-1] if self._style_texts else ""

    @property
    def _style_width(self) -> float:
        """What a long title leaves to how the chart is drawn, in pixels."""
        width = QFontMetricsF(chart_font(11)).horizontalAdvance(self._shortest_style_text)
        return width + _TITLE_GAP + 1 if width else 0.0

    def fit_header_texts(self, room: float) -> tuple[str, str]:
        """(subtitle, source) that fit beside each other: any source before a subtitle, but none before how
        the chart is drawn.
        """
        subtitles, sources = self._header_texts(), self._sources or ("",)
        of_subtitle, of_source = QFontMetricsF(chart_font(11)), QFontMetricsF(chart_font(10))
        wanted = [(subtitles[0], sources[0])]
        wanted += [(subtitle, sources[-1]) for subtitle in subtitles]
        wanted += [(self._shortest_style_text, sources[-1])] if sources[-1] else []
        wanted += [(subtitle, "") for subtitle in subtitles]
        for subtitle, source in wanted:
            gap = 14 if subtitle and source else 1
            widths = of_subtitle.horizontalAdvance(subtitle), of_source.horizontalAdvance(source)
            if sum(widths) + gap <= room:
                return subtitle, source
        return self._shortest_style_text, ""

    def sizeHint(self) -> QSize:
        return QSize(420, 220)

    def copy_image(self) -> None:
        QGuiApplication.clipboard().setPixmap(self.grab())

    @property
    def file_kinds(self) -> tuple[str, ...]:
        """What it can be exported as."""
        return card_export.FILE_KINDS[: 2 if self._csv_rows is None else 3]

    def request_export(self, kind: str) -> None:
        if kind in self.file_kinds:
            self.export_requested.emit(self, kind)

    def make_export(self, kind: str) -> FileWriter:
        """What a file of this kind holds, as the card is now."""
        if kind == "png":
            return card_export.png_writer(self)
        if kind == "svg":
            return card_export.svg_writer(self, self.title)
        assert self._csv_rows is not None
        return card_export.csv_writer(self._csv_rows())

    def build_menu(self) -> QMenu:
        menu = QMenu(self)
        self.menu_requested.emit(menu)
        if self.styled_body is not None:
            menu.addSeparator()
            self._fill_style_menu(menu, self.styled_body)
        menu.addSeparator()
        self.add_action(menu, tr("Copy as Picture"), self.copy_image, "copy")
        for kind in self.file_kinds:
            self.add_action(
                menu, tr("Export {kind}…", kind=kind.upper()), partial(self.request_export, kind), kind
            )
        return menu

    def add_action(self, menu: QMenu, text: str, act: Callable[[], object], command: str) -> QAction:
        """Adds what a command on charts does, with its keys."""
        keys = self.get_shortcut(f"chart.{command}")
        return menu.addAction(f"{text}\t{keys}" if keys else text, act)

    # How a curve is drawn

    def _fill_style_menu(self, menu: QMenu, chart: StyledChart) -> None:
        log = self.add_action(menu, tr("Logarithmic Scale"), self.toggle_log, "log")
        log.setCheckable(True)
        log.setChecked(chart.style.is_log)
        smoothing, slider = menu.addMenu(tr("Smoothing")), QWidgetAction(menu)
        slider.setDefaultWidget(self._smoothing_slider(chart))
        smoothing.addAction(slider)
        usual = smoothing.addAction(tr("As Usual"), lambda: self.change_style(smoothing=None))
        usual.setCheckable(True)
        usual.setChecked(chart.style.smoothing is None)
        axes = menu.addMenu(tr("X Axis"))
        for axis in chart.x_axes:
            action = axes.addAction(tr(AXIS_LABELS[axis]), partial(self.change_style, x_axis=axis))
            action.setCheckable(True)
            action.setChecked(axis == chart.style.x_axis)

    def _smoothing_slider(self, chart: StyledChart) -> Slider:
        slider = Slider(tr("Smoothing"))
        slider.setRange(0, len(SMOOTHINGS) - 1)
        slider.setFixedSize(180, 26)
        at = chart.style.change_smoothing(0).smoothing or 0.0
        slider.setValue(SMOOTHINGS.index(at))
        slider.valueChanged.connect(lambda place: self.change_style(smoothing=SMOOTHINGS[place]))
        return slider

    def change_style(self, **changes: object) -> None:
        """Draw the curve in another way, as a person asked."""
        if self.styled_body is not None:
            self._apply_style(replace(self.styled_body.style, **changes))  # type: ignore[arg-type]
            self.style_changed.emit()

    def _apply_style(self, style: CurveStyle) -> None:
        assert self.styled_body is not None
        self.styled_body.set_style(style)
        self._style_texts = style.texts()
        self._update_texts()

    def toggle_log(self) -> None:
        if self.styled_body is not None:
            self.change_style(is_log=not self.styled_body.style.is_log)

    def smooth_by(self, places: int) -> None:
        if self.styled_body is not None:
            self.change_style(smoothing=self.styled_body.style.change_smoothing(places).smoothing)

    def next_x_axis(self) -> None:
        if self.styled_body is not None:
            axes = self.styled_body.x_axes
            at = axes.index(self.styled_body.style.x_axis) if self.styled_body.style.x_axis in axes else -1
            self.change_style(x_axis=axes[(at + 1) % len(axes)])

    def style_state(self) -> dict[str, object]:
        if self.built_body is None:
            return dict(self._pending_style)
        return self.styled_body.style.to_state() if self.styled_body is not None else {}

    def restore_style(self, state: Mapping[str, object]) -> None:
        self._pending_style = state
        if self.built_body is not None and self.styled_body is not None:
            self._apply_style(CurveStyle.from_state(state))

    # Keys and the mouse

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.maximise_requested.emit()
        else:
            super().keyPressEvent(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        if event.position().y() <= HEADER_HEIGHT:
            self.maximise_requested.emit()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

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
