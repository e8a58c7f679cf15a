"""What an ended run came to, above its cards: the figures of its report, and what to do next.

    one line, always: how it ended, the key figures, buttons
    below it, unless it is folded: figures · memory beside its prediction · time by phase · what to try next

The words are those of the page that `rankdeck report` writes (rankdeck/compare/run_report.py).
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
"""Pixels below its line: at least, and from which it is open until somebody folds it."""
_CHARTS_HEIGHT = 520
"""What the page keeps for the strip, two rows of cards whose charts can be read, and the line of time."""
_MAX_DEVICES = 4
"""Of more, the phases tell the median and the longest."""
_FIX_WIDTH, _MIN_NOTE_WIDTH = 280, 190
_MAX_BUTTONS = ((900, 4), (560, 2), (0, 0))
"""(least width, most buttons)"""
_ONE_LINE_TEXTS = {
    "best_held_out": tr_noop("best held-out loss {value}"),
    "loss": tr_noop("loss {value}"),
    "samples_per_s": tr_noop("{value} samples/s"),
    "steps_per_s": tr_noop("{value} steps/s"),
}
_METRICS_OF_A_STEP = ("best_held_out", "loss")
"""Of which more is to be said than their value."""
Cells = Sequence[str]


class ActionButtons:
    """Buttons for what can be done next, at the end of a row. They stay the same objects while nothing
    changes: one of them may have the focus."""

    def __init__(self, row: QBoxLayout, acted: SignalInstance) -> None:
        """`acted` brings the id of the command of the button that was pressed."""
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
    """`action_triggered` brings the id of the command of the button that was pressed."""

    action_triggered = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._report: RunReport | None = None
        self._has_report = False
        self._open_override: bool | None = None
        """Whether a person wants it open; None as long as nobody has said so."""
        self._is_open_by_default = True
        self._is_suppressed = False
        self._page_height = 0
        self.fold_button = tool_button(theme, "chevron-down", tr("Fold the summary"), self._toggle)
        self.title, self.one_line_label = text_label(wrap=False), ElidedLabel("")
        self.title.setFont(chart_font(12, bold=True))
        self.one_line_label.setProperty("tone", "small")
        head = row(self.fold_button, self.title, (self.one_line_label, 1), spacing=8, align=MIDDLE)
        head.setContentsMargins(8, 6, 11, 6)
        self._actions = ActionButtons(head, self.action_triggered)
        self._inside = QWidget()
        self._flow = FlowLayout(self._inside, gap=24)
        self._body = make_scroll_area(self._inside, tr("Summary"))
        self._body.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._below = QWidget()
        row((self._body, 1), on=self._below, margins=(14, 0, 6, 8))
        column(head, (self._below, 1), on=self, margins=(1, 0, 1, 0), spacing=0)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(tr("Summary of the run"))
        theme.changed.connect(self.update)
        self.hide()

    def show_report(
        self, title: str, report: RunReport | None, actions: Sequence[PageAction], *, is_open_by_default: bool
    ) -> None:
        """None hides it."""
        self._is_open_by_default = is_open_by_default
        self.title.setText(title)
        self._actions.show(actions)
        self._show_buttons()
        self._has_report = report is not None
        self._update_visibility()
        if report is not None and report != self._report:
            self._report = report
            self.one_line_label.setText(one_line_text(report))
            self._fill(report)
            QTimer.singleShot(0, self, self._fit)  # what was just put together has no size before
        self._fit()

    @property
    def buttons(self) -> list[QPushButton]:
        return self._actions.buttons

    @property
    def is_open(self) -> bool:
        if self._open_override is not None:
            return self._open_override
        return self._is_open_by_default and self._available_height >= _DEFAULT_BODY_HEIGHT

    @property
    def _available_height(self) -> int:
        """What the charts of the page leave for what stands below its line."""
        return self._page_height - _CHARTS_HEIGHT - HEADER_HEIGHT

    @property
    def open_override(self) -> bool | None:
        return self._open_override

    def set_open_override(self, wanted: bool | None) -> None:
        self._open_override = wanted
        self._fit()

    def set_suppressed(self, is_aside: bool) -> None:
        """While a card has the page."""
        self._is_suppressed = is_aside
        self._update_visibility()

    def _update_visibility(self) -> None:
        self.setVisible(self._has_report and not self._is_suppressed)

    def fit_page(self, page_height: int) -> None:
        """Take no more than the charts of a page that is so high leave."""
        self._page_height = page_height
        self._fit()

    def _toggle(self) -> None:
        self.set_open_override(not self.is_open)

    def _fit(self) -> None:
        is_open = self.is_open
        self._below.setVisible(is_open)
        self.fold_button.setIcon(self._theme.icon("chevron-down" if is_open else "chevron-right"))
        words = tr("Fold the summary") if is_open else tr("Unfold the summary")
        self.fold_button.setToolTip(words)
        self.fold_button.setAccessibleName(words)
        height = HEADER_HEIGHT
        if is_open:
            wanted = self._flow.heightForWidth(self._body.viewport().width())
            height += min(wanted, max(_MIN_BODY_HEIGHT, self._available_height)) + 10
        self.setFixedHeight(height)

    # What it shows

    def _fill(self, report: RunReport) -> None:
        clear_layout(self._flow)
        figures = [(tr(one.label), translate(one.text), translate(one.detail)) for one in report.metrics]
        self._add_section(tr("Figures"), "", _make_table((), figures, number_columns=(1,)))
        if report.devices:
            count = 4 if report.is_predicted else 2
            devices = [
                (translate(one.label), one.measured, one.predicted, one.error)[:count]
                for one in report.devices
            ]
            names = ("", tr("measured"), tr("predicted"), tr("error"))[:count]
            sign = tr("error: {sign}", sign=tr(ERROR_SIGN_NOTE)) if report.is_predicted else ""
            note = "\n".join(filter(None, (translate(report.memory_source or ""), sign)))
            self._add_section(
                tr("VRAM per device"), note, _make_table(names, devices, number_columns=(1, 2, 3))
            )
        if report.phases is not None:
            head, rows = _phase_table(report.phases)
            note = tr("step {step}, the last sampled", step=report.phases.step)
            note = " · ".join(filter(None, (note, tr(report.phases.note))))
            self._add_section(
                tr("Time by phase"), note, _make_table(head, rows, number_columns=range(1, len(head)))
            )
        if report.fixes:
            fixes = QWidget()
            column(*map(_make_fix, report.fixes), on=fixes, spacing=8)
            fixes.setFixedWidth(_FIX_WIDTH)
            self._add_section(tr("What to try next"), "", fixes)

    def _add_section(self, heading: str, note: str, body: QWidget) -> None:
        part, parts = QWidget(), [text_label(heading.upper(), "section", wrap=False), body]
        if note:
            below = text_label(note, "small")
            below.setFixedWidth(max(_MIN_NOTE_WIDTH, body.sizeHint().width()))
            parts.append(below)
        column(*parts, None, on=part, spacing=4)
        self._flow.addWidget(part)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_buttons()
        self._fit()

    def _show_buttons(self) -> None:
        """As many as there is room for; what they do can be done from the tab and the palette, too."""
        most = next(most for least, most in _MAX_BUTTONS if self.width() >= least)
        for place, button in enumerate(self.buttons):
            button.setVisible(place < most)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, color = QPainter(self), self._theme.color
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(color("rankdeck.card.border"))
        painter.setBrush(color("rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        painter.end()


def one_line_text(report: RunReport) -> str:
    """'150 steps in 21 s · best held-out loss 1.8312 at step 100 · 1 230 samples/s'."""
    told = {one.key: one for one in report.metrics}
    steps, trained = told.get("step"), told.get("trained_s")
    parts = []
    if steps is not None and trained is not None:
        parts.append(tr("{count} steps in {time}", count=steps.text, time=trained.text))
    elif steps is not None:
        parts.append(tr("{count} steps", count=steps.text))
    left_out = "loss" if "best_held_out" in told else ""
    for key, words in _ONE_LINE_TEXTS.items():
        if key in told and key != left_out:
            figure = tr(words, value=translate(told[key].text))
            more = translate(told[key].detail) if key in _METRICS_OF_A_STEP else ""
            parts.append(f"{figure} {more}" if more else figure)
    return " · ".join(parts)


def _phase_table(table: PhaseTable) -> tuple[Cells, list[Cells]]:
    if len(table.devices) <= _MAX_DEVICES:
        return ("", *map(translate, table.devices)), [(tr(name), *cells) for name, cells in table.rows]
    return ("", tr("median"), tr("longest")), [(tr(name), *cells) for name, cells in table.summary]


def _make_table(head: Cells, rows: Iterable[Cells], number_columns: Iterable[int]) -> QWidget:
    """Words and numbers in columns; those of `number_columns` are numbers, of one width."""
    body = QWidget()
    grid = QGridLayout(body)
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(16)
    grid.setVerticalSpacing(2)
    numbers = frozenset(number_columns)
    for at, cells in enumerate(([head] if head else []) + list(rows)):
        is_head = bool(head) and at == 0
        for place, cell in enumerate(cells):
            grid.addWidget(_make_cell(cell, place in numbers, is_head or place == 0), at, place)
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
    """What, why, and its command to take along."""
    part = QWidget()
    what, why = (
        text_label(translate(fix.text), selectable=True),
        text_label(translate(fix.reason), "small", selectable=True),
    )
    parts: list[QWidget] = [what, why]
    if fix.command_line:
        copy: Callable[[], object] = partial(QGuiApplication.clipboard().setText, fix.command_line)
        button = push_button(tr("Copy Its Command"), fix.command_line, copy, kind="link")
        button.setAccessibleName(tr("Copy {command}", command=fix.command_line))
        parts.append(button)
    for label in (what, why):
        label.setFixedWidth(_FIX_WIDTH)
    column(*parts, on=part, spacing=1)
    return part


# One sentence about the state of a run above its cards, and what to do next: starting, stopped, failed.

_MAX_MESSAGE_LENGTH = 600
_TONES = {"error": "errorForeground", "warning": "rankdeck.lead"}


class Banner(QWidget):
    """A message, an advice below it, and buttons where something can be done about it: `action_triggered`
    brings the id of the command of the one that was pressed. The text can be selected and copied.
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
        """(tone, message, advice), and what one can do; None hides the banner."""
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
    """A last traceback line can be kilobytes long; the whole text is in Problems."""
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[:_MAX_MESSAGE_LENGTH]}…"
