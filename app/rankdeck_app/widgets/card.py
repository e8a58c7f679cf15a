"""Dashboard card: a rounded frame around one chart, with a title, a muted subtitle and the data source.

The chart is the card's body, built on first access if it is expensive. The card implements the actions that
all charts share: copy as an image, and export as PNG, SVG and CSV (card_export.py; the card's creator
provides the rows). A body paints its own background, so that a live chart never repaints the frame around it.
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
    """A titled frame around a chart.

    `body` may be a function that builds the widget; `body_built` then carries the result. `csv_rows` returns
    the header row and the data rows of the CSV export. `maximise_requested` is emitted when the user presses
    Enter or double-clicks the header. `menu_requested` carries the menu, to which listeners may add items.
    `style_changed` is emitted when the user changes how the chart is drawn. `export_requested` carries the
    card and one of `file_kinds`.
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
        """Function that takes a command's id and returns its shortcut as display text."""
        self._is_drop_target = False
        self._sources: tuple[str, ...] = ()
        self._theme = theme
        self._colors = ChartColors(theme)
        self._csv_rows = csv_rows
        self.built_body: QWidget | None = None
        """The body widget; None until it is built."""
        self._build: Callable[[], QWidget] = (lambda: body) if isinstance(body, QWidget) else body
        # A restored style waits here until the body is built.
        self._pending_style: Mapping[str, object] = {}
        self._column = column(on=self, margins=(10, HEADER_HEIGHT, 10, 8))
        if isinstance(body, QWidget):
            self.build_body()
        self.setAccessibleName(title)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        theme.changed.connect(self._retheme)

    def build_body(self) -> QWidget:
        """Build the body; call this only once."""
        body = self.built_body = self._build()
        self._column.addWidget(body)
        body.show()  # now: the layout would show it only in a later event
        if self.styled_body is not None and self._pending_style:
            self._apply_style(CurveStyle.from_state(self._pending_style))
        self.body_built.emit(body)
        return body

    @property
    def body(self) -> QWidget:
        return self.built_body or self.build_body()

    @property
    def styled_body(self) -> StyledChart | None:
        """The body if it supports several drawing styles, else None."""
        body: object = self.body
        return body if isinstance(body, StyledChart) else None

    def set_drop_target(self, is_target: bool) -> None:
        """Mark the card as the target on which a dragged card would be dropped, or remove the mark."""
        if is_target != self._is_drop_target:
            self._is_drop_target = is_target
            self.update()

    def set_title(self, text: str) -> None:
        if text != self.title:
            self.title = text
            self.setAccessibleName(text)
            self.update(self._header_rect())

    def set_subtitle(self, *texts: str) -> None:
        """Set the subtitle in successively shorter variants. The card shows the first variant that fits; the
        tooltip shows the longest variant."""
        if texts != self._subtitles:
            self._subtitles = texts
            self._update_texts()

    def set_source(self, *texts: str) -> None:
        """Set the data source (rehearsal, GPU, predicted or simulated) in successively shorter variants."""
        if texts != self._sources:
            self._sources = texts
            self._update_texts()

    def set_note(self, *texts: str) -> None:
        """Show a note such as the zoomed range in place of the subtitle; without texts, remove the note."""
        if texts != self._notes:
            self._notes = texts
            self._update_texts()

    def _header_texts(self) -> tuple[str, ...]:
        """Return the variants of the subtitle line: the drawing style with the note or subtitle, then the
        style alone."""
        texts = self._notes or self._subtitles
        if not self._style_texts:
            return texts or ("",)
        return *(f"{self._style_texts[0]}; {text}" for text in texts if text), *self._style_texts

    @property
    def subtitle(self) -> str:
        """The longest variant of the subtitle."""
        return self._header_texts()[0]

    @property
    def source(self) -> str:
        """The longest variant of the data source."""
        return self._sources[0] if self._sources else ""

    def _update_texts(self) -> None:
        texts = [text for text in (self.subtitle, self.source) if text]
        self.setAccessibleDescription(". ".join(texts))
        self.setToolTip("\n".join(texts))
        self.update(self._header_rect())

    @property
    def preferred_height(self) -> int:
        """Preferred height of the body plus the frame around it."""
        return HEADER_HEIGHT + 8 + self.body.sizeHint().height()

    def minimumSizeHint(self) -> QSize:
        body = self.built_body
        body_height = (
            _UNBUILT_HEIGHT if body is None else max(body.minimumSizeHint().height(), body.minimumHeight())
        )
        return QSize(120, HEADER_HEIGHT + 8 + body_height)

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
        """Paint the title, the subtitle and the source, each in the longest variant that fits."""
        left, right, colors = 12.0, self.width() - 12.0, self._colors
        # A long title leaves room for the drawing style, but gets at least half of the header.
        room, elide = QRectF(left, 6, max(0.0, right - left), 20), Qt.TextElideMode.ElideRight
        title_room = room.adjusted(0, 0, -min(self._style_width, room.width() / 2), 0)
        painted_title = paint_text(
            painter, title_room, self.title, colors.foreground, 12, bold=True, elide=elide
        )
        left += text_width(painter, painted_title) + _TITLE_GAP
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
        """Width in pixels to reserve beside a long title for the text that names the drawing style."""
        width = QFontMetricsF(chart_font(11)).horizontalAdvance(self._shortest_style_text)
        return width + _TITLE_GAP + 1 if width else 0.0

    def fit_header_texts(self, room: float) -> tuple[str, str]:
        """Return the variants of (subtitle, source) that fit in `room` pixels.

        The source takes priority over the subtitle, and the drawing style over the source.
        """
        subtitles, sources = self._header_texts(), self._sources or ("",)
        of_subtitle, of_source = QFontMetricsF(chart_font(11)), QFontMetricsF(chart_font(10))
        candidates = [(subtitles[0], sources[0])]
        candidates += [(subtitle, sources[-1]) for subtitle in subtitles]
        candidates += [(self._shortest_style_text, sources[-1])] if sources[-1] else []
        candidates += [(subtitle, "") for subtitle in subtitles]
        for subtitle, source in candidates:
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
        """File formats in which the card can be exported."""
        return card_export.FILE_KINDS[: 2 if self._csv_rows is None else 3]

    def request_export(self, kind: str) -> None:
        if kind in self.file_kinds:
            self.export_requested.emit(self, kind)

    def make_export(self, kind: str) -> FileWriter:
        """Return a function that writes the card's current content as a file of this kind."""
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
        self.add_action(menu, tr("Copy as Image"), self.copy_image, "copy")
        for kind in self.file_kinds:
            self.add_action(
                menu, tr("Export {kind}…", kind=kind.upper()), partial(self.request_export, kind), kind
            )
        return menu

    def add_action(self, menu: QMenu, text: str, act: Callable[[], object], command: str) -> QAction:
        """Add an entry to the menu that calls `act` and shows the shortcut of the chart command `command`."""
        keys = self.get_shortcut(f"chart.{command}")
        # Qt shows the text after a tab as the shortcut.
        return menu.addAction(f"{text}\t{keys}" if keys else text, act)

    # Drawing style

    def _fill_style_menu(self, menu: QMenu, chart: StyledChart) -> None:
        log = self.add_action(menu, tr("Logarithmic Scale"), self.toggle_log, "log")
        log.setCheckable(True)
        log.setChecked(chart.style.is_log)
        smoothing, slider = menu.addMenu(tr("Smoothing")), QWidgetAction(menu)
        slider.setDefaultWidget(self._smoothing_slider(chart))
        smoothing.addAction(slider)
        default_action = smoothing.addAction(tr("Default"), lambda: self.change_style(smoothing=None))
        default_action.setCheckable(True)
        default_action.setChecked(chart.style.smoothing is None)
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
        slider.valueChanged.connect(lambda index: self.change_style(smoothing=SMOOTHINGS[index]))
        return slider

    def change_style(self, **changes: object) -> None:
        """Apply the user's changes to the drawing style of the chart."""
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

    def smooth_by(self, offset: int) -> None:
        if self.styled_body is not None:
            self.change_style(smoothing=self.styled_body.style.change_smoothing(offset).smoothing)

    def next_x_axis(self) -> None:
        if self.styled_body is not None:
            axes = self.styled_body.x_axes
            at = axes.index(self.styled_body.style.x_axis) if self.styled_body.style.x_axis in axes else -1
            self.change_style(x_axis=axes[(at + 1) % len(axes)])

    def style_state(self) -> dict[str, object]:
        if self.built_body is None:
            # Without a body, the saved style is still the current one.
            return dict(self._pending_style)
        return self.styled_body.style.to_state() if self.styled_body is not None else {}

    def restore_style(self, state: Mapping[str, object]) -> None:
        self._pending_style = state
        if self.built_body is not None and self.styled_body is not None:
            self._apply_style(CurveStyle.from_state(state))

    # Keyboard and mouse

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.maximise_requested.emit()
        else:
            super().keyPressEvent(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        # Below the header, a double click belongs to the body.
        if event.position().y() <= HEADER_HEIGHT:
            self.maximise_requested.emit()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def event(self, event: QEvent) -> bool:
        """Show the tooltip only over the header; over the chart, it would hide the data under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            text = self.toolTip() if event.pos().y() <= HEADER_HEIGHT else ""
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.build_menu()
        # Otherwise every opened menu would stay as a child of the card.
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(event.globalPos())
