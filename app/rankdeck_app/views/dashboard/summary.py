"""Shows a finished run's summary above its cards: the metrics from its report, and what to do next.

    first line (always shown): the outcome, the key metrics, buttons
    body (can be folded): metrics · memory and its prediction · time by phase · what to try next

The texts are the same as on the page that `rankdeck report` writes (rankdeck/compare/run_report.py). This
module also contains the banner that shows the run's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from PySide6.QtCore import QRectF, Qt, QTimer, Signal, SignalInstance
from PySide6.QtGui import QGuiApplication, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QLabel, QPushButton, QSizePolicy, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck.compare.run_report import ERROR_SIGN_NOTE, PhaseTable, RunReport
from rankdeck.diagnose.fixes import Fix
from rankdeck_app.language import tr, translate
from rankdeck_app.shell.page import PageAction
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ElidedLabel, tool_button
from rankdeck_app.widgets.layouts import (
    MIDDLE,
    FlowLayout,
    clear_layout,
    column,
    make_scroll_area,
    push_button,
    row,
    text_label,
)
from rankdeck_app.widgets.painting import chart_font

HEADER_HEIGHT = 36
_MIN_BODY_HEIGHT, _DEFAULT_BODY_HEIGHT = 120, 200
"""Heights in pixels of the summary's body: the minimum, and the smallest available height at which the
summary is open by default."""
_CHARTS_HEIGHT = 520
"""Height in pixels that the page reserves for the strip, two rows of readable cards and the time bar."""
_MAX_DEVICES = 4
"""Maximum number of devices for which the phase table has a column per device; with more devices, the table
shows the median and the longest time."""
_FIX_WIDTH, _MIN_NOTE_WIDTH = 280, 190
_MAX_BUTTONS = ((900, 4), (560, 2), (0, 0))
"""Pairs of (minimum width of the summary in pixels, maximum number of buttons)."""
_ONE_LINE_TEXTS = {
    "best_held_out": tr_noop("best held-out loss {value}"),
    "loss": tr_noop("loss {value}"),
    "samples_per_s": tr_noop("{value} samples/s"),
    "steps_per_s": tr_noop("{value} steps/s"),
}
_METRICS_OF_A_STEP = ("best_held_out", "loss")
"""Metrics whose detail, such as "at step 100", is part of the one-line text."""
Cells = Sequence[str]


class ActionButtons:
    """Action buttons at the end of a row. The same buttons are reused while the actions stay the same, so
    that the focus is not lost."""

    def __init__(self, row: QBoxLayout, acted: SignalInstance) -> None:
        """Add the buttons to `row`; `acted` is emitted with the pressed button's command id."""
        self.buttons: list[QPushButton] = []
        self._actions: list[PageAction] = []
        self._row, self._action_triggered = row, acted

    def show(self, actions: Sequence[PageAction]) -> None:
        if list(actions) == self._actions:
            return
        self._actions = list(actions)
        for button in self.buttons:
            button.deleteLater()
        self.buttons = [
            push_button(action.tooltip, "", partial(self._action_triggered.emit, action.command), height=24)
            for action in actions
        ]
        for button in self.buttons:
            self._row.addWidget(button)


class SummaryPanel(QWidget):
    """The summary of a finished run. `action_triggered` carries the pressed button's command id."""

    action_triggered = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._report: RunReport | None = None
        self._has_report = False
        self._open_override: bool | None = None
        """Whether the user has opened (True) or folded (False) the summary; None if neither."""
        self._is_open_by_default = True
        self._is_suppressed = False
        self._page_height = 0
        self.fold_button = tool_button(theme, "chevron-down", tr("Collapse the summary"), self._toggle)
        self.title, self.one_line_label = text_label(wrap=False), ElidedLabel("")
        self.title.setFont(chart_font(12, bold=True))
        self.one_line_label.setProperty("tone", "small")
        header = row(self.fold_button, self.title, (self.one_line_label, 1), spacing=8, align=MIDDLE)
        header.setContentsMargins(8, 6, 11, 6)
        self._actions = ActionButtons(header, self.action_triggered)
        self._inside = QWidget()
        self._flow = FlowLayout(self._inside, gap=24)
        self._body = make_scroll_area(self._inside, tr("Summary"))
        self._body.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._below = QWidget()
        row((self._body, 1), on=self._below, margins=(14, 0, 6, 8))
        column(header, (self._below, 1), on=self, margins=(1, 0, 1, 0), spacing=0)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(tr("Summary of the run"))
        theme.changed.connect(self.update)
        self.hide()

    def show_report(
        self, title: str, report: RunReport | None, actions: Sequence[PageAction], *, is_open_by_default: bool
    ) -> None:
        """Show a report with its actions; hide the panel if `report` is None."""
        self._is_open_by_default = is_open_by_default
        self.title.setText(title)
        self._actions.show(actions)
        self._show_buttons()
        self._has_report = report is not None
        self._update_visibility()
        # Rebuilding an unchanged body would reset its scroll position.
        if report is not None and report != self._report:
            self._report = report
            self.one_line_label.setText(one_line_text(report))
            self._fill(report)
            QTimer.singleShot(0, self, self._fit)  # new widgets have no size before the next event
        self._fit()

    @property
    def buttons(self) -> list[QPushButton]:
        return self._actions.buttons

    @property
    def is_open(self) -> bool:
        if self._open_override is not None:
            return self._open_override
        # On a low page an open summary would leave no chart in view, so it stays folded until the user opens
        # it.
        return self._is_open_by_default and self._available_height >= _DEFAULT_BODY_HEIGHT

    @property
    def _available_height(self) -> int:
        """The height that the page's charts leave for the summary's body, which is below its first line."""
        return self._page_height - _CHARTS_HEIGHT - HEADER_HEIGHT

    @property
    def open_override(self) -> bool | None:
        return self._open_override

    def set_open_override(self, is_open: bool | None) -> None:
        self._open_override = is_open
        self._fit()

    def set_suppressed(self, is_aside: bool) -> None:
        """Hide the summary if `is_aside`, because a card is maximised; otherwise show it again."""
        self._is_suppressed = is_aside
        self._update_visibility()

    def _update_visibility(self) -> None:
        self.setVisible(self._has_report and not self._is_suppressed)

    def fit_page(self, page_height: int) -> None:
        """Limit the summary to the height that the charts leave on a page `page_height` pixels high."""
        self._page_height = page_height
        self._fit()

    def _toggle(self) -> None:
        self.set_open_override(not self.is_open)

    def _fit(self) -> None:
        is_open = self.is_open
        self._below.setVisible(is_open)
        self.fold_button.setIcon(self._theme.icon("chevron-down" if is_open else "chevron-right"))
        text = tr("Collapse the summary") if is_open else tr("Expand the summary")
        self.fold_button.setToolTip(text)
        self.fold_button.setAccessibleName(text)
        height = HEADER_HEIGHT
        if is_open:
            full_height = self._flow.heightForWidth(self._body.viewport().width())
            height += min(full_height, max(_MIN_BODY_HEIGHT, self._available_height)) + 10
        self.setFixedHeight(height)

    # Contents

    def _fill(self, report: RunReport) -> None:
        clear_layout(self._flow)
        metrics = [
            (tr(entry.label), translate(entry.text), translate(entry.detail)) for entry in report.metrics
        ]
        self._add_section(tr("Figures"), "", _make_table((), metrics, number_columns=(1,)))
        if report.devices:
            count = 4 if report.is_predicted else 2
            devices = [
                (translate(entry.label), entry.measured, entry.predicted, entry.error)[:count]
                for entry in report.devices
            ]
            names = ("", tr("measured"), tr("predicted"), tr("error"))[:count]
            sign = tr("error: {sign}", sign=tr(ERROR_SIGN_NOTE)) if report.is_predicted else ""
            note = "\n".join(filter(None, (translate(report.memory_source or ""), sign)))
            self._add_section(
                tr("VRAM per device"), note, _make_table(names, devices, number_columns=(1, 2, 3))
            )
        if report.phases is not None:
            header, rows = _phase_table(report.phases)
            note = tr("step {step}, the last sampled step", step=report.phases.step)
            note = " · ".join(filter(None, (note, tr(report.phases.note))))
            self._add_section(
                tr("Time by phase"), note, _make_table(header, rows, number_columns=range(1, len(header)))
            )
        if report.fixes:
            fixes = QWidget()
            column(*map(_make_fix, report.fixes), on=fixes, spacing=8)
            fixes.setFixedWidth(_FIX_WIDTH)
            self._add_section(tr("What to try next"), "", fixes)

    def _add_section(self, heading: str, note: str, body: QWidget) -> None:
        section, widgets = QWidget(), [text_label(heading.upper(), "section", wrap=False), body]
        if note:
            below = text_label(note, "small")
            below.setFixedWidth(max(_MIN_NOTE_WIDTH, body.sizeHint().width()))
            widgets.append(below)
        column(*widgets, None, on=section, spacing=4)
        self._flow.addWidget(section)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_buttons()
        self._fit()

    def _show_buttons(self) -> None:
        """Show as many buttons as fit; all actions are also available in the tab bar and the command
        palette."""
        max_buttons = next(
            max_buttons for min_width, max_buttons in _MAX_BUTTONS if self.width() >= min_width
        )
        for index, button in enumerate(self.buttons):
            button.setVisible(index < max_buttons)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, color = QPainter(self), self._theme.color
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(color("rankdeck.card.border"))
        painter.setBrush(color("rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        painter.end()


def one_line_text(report: RunReport) -> str:
    """Return a text such as '150 steps in 21 s · best held-out loss 1.8312 at step 100 · 1 230 samples/s'."""
    by_key = {metric.key: metric for metric in report.metrics}
    steps, trained = by_key.get("step"), by_key.get("trained_s")
    texts = []
    if steps is not None and trained is not None:
        texts.append(tr("{count} steps in {time}", count=steps.text, time=trained.text))
    elif steps is not None:
        texts.append(tr("{count} steps", count=steps.text))
    left_out = "loss" if "best_held_out" in by_key else ""
    for key, template in _ONE_LINE_TEXTS.items():
        if key in by_key and key != left_out:
            text = tr(template, value=translate(by_key[key].text))
            more = translate(by_key[key].detail) if key in _METRICS_OF_A_STEP else ""
            texts.append(f"{text} {more}" if more else text)
    return " · ".join(texts)


def _phase_table(table: PhaseTable) -> tuple[Cells, list[Cells]]:
    if len(table.devices) <= _MAX_DEVICES:
        return ("", *map(translate, table.devices)), [(tr(name), *cells) for name, cells in table.rows]
    return ("", tr("median"), tr("longest")), [(tr(name), *cells) for name, cells in table.summary]


def _make_table(header: Cells, rows: Iterable[Cells], number_columns: Iterable[int]) -> QWidget:
    """Create a table of labels; the columns in `number_columns` are right-aligned numbers."""
    body = QWidget()
    grid = QGridLayout(body)
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(16)
    grid.setVerticalSpacing(2)
    numbers = frozenset(number_columns)
    for at, cells in enumerate(([header] if header else []) + list(rows)):
        is_head = bool(header) and at == 0
        for column_index, cell in enumerate(cells):
            grid.addWidget(
                _make_cell(cell, column_index in numbers, is_head or column_index == 0), at, column_index
            )
    grid.setColumnStretch(grid.columnCount(), 1)
    return body


def _make_cell(text: str, is_number: bool, is_dim: bool) -> QLabel:
    label = text_label(text, "small" if is_dim or not is_number else "", wrap=False, selectable=True)
    if is_number:
        label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        if not is_dim:
            label.setFont(chart_font(11, mono=True))
    return label


def _make_fix(fix: Fix) -> QWidget:
    """Create a widget with a fix's text, its reason and a button that copies its command."""
    section = QWidget()
    what, why = (
        text_label(translate(fix.text), selectable=True),
        text_label(translate(fix.reason), "small", selectable=True),
    )
    widgets: list[QWidget] = [what, why]
    if fix.command_line:
        copy: Callable[[], object] = partial(QGuiApplication.clipboard().setText, fix.command_line)
        button = push_button(tr("Copy Command"), fix.command_line, copy, kind="link")
        button.setAccessibleName(tr("Copy {command}", command=fix.command_line))
        widgets.append(button)
    for label in (what, why):
        label.setFixedWidth(_FIX_WIDTH)
    column(*widgets, on=section, spacing=1)
    return section


# The banner: one sentence about the run's state above its cards, and what to do next.

_MAX_MESSAGE_LENGTH = 600
_TONES = {"error": "errorForeground", "warning": "rankdeck.lead"}


class Banner(QWidget):
    """A message, advice below it, and action buttons. `action_triggered` carries the pressed button's command
    id.

    The text can be selected and copied.
    """

    action_triggered = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._tone = "info"
        self._message, self._advice = text_label(), text_label(tone="dim")
        texts = column(self._message, self._advice, spacing=2)
        line = row((texts, 1), on=self, margins=(14, 7, 12, 8), spacing=8)
        self._actions = ActionButtons(line, self.action_triggered)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        by_mouse, by_keys = (
            Qt.TextInteractionFlag.TextSelectableByMouse, Qt.TextInteractionFlag.TextSelectableByKeyboard,
        )  # fmt: skip
        for label in (self._message, self._advice):
            label.setTextInteractionFlags(by_mouse | by_keys)
        self._message.setFont(chart_font(12, bold=True))
        theme.changed.connect(self.update)
        self.hide()

    @property
    def buttons(self) -> list[QPushButton]:
        return self._actions.buttons

    @property
    def text(self) -> str:
        return "\n".join(label.text() for label in (self._message, self._advice) if label.text())

    def show_headline(
        self, headline: tuple[str, str, str] | None, actions: Sequence[PageAction] = ()
    ) -> None:
        """Show `headline`, a tuple (tone, message, advice), with action buttons; hide the banner if it is
        None."""
        if headline is None:
            self.hide()
            return
        self._tone, message, advice = headline
        self._message.setText(_truncate(message))
        self._advice.setText(_truncate(advice))
        self._advice.setVisible(bool(advice))
        self._actions.show(actions)
        self.setAccessibleName(message)
        self.setAccessibleDescription(advice)
        self.setVisible(True)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, color = QPainter(self), self._theme.color
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(color("rankdeck.card.border"))
        painter.setBrush(color("rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color(_TONES.get(self._tone, "rankdeck.rest")))
        painter.drawRoundedRect(QRectF(0, 0, 4, self.height()), 2, 2)
        painter.end()


def _truncate(text: str) -> str:
    """Truncate a text, because the last line of a traceback can be kilobytes long. The Problems view shows
    the full text."""
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[:_MAX_MESSAGE_LENGTH]}…"
