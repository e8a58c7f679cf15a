"""What an ended run came to, above its cards: the figures of its report, and what to do next.

    one line, always: how it ended, the key figures, buttons
    below it, unless it is folded: figures · memory beside its prediction · time by phase · what to try next

The words are those of the page that `rankdeck report` writes (rankdeck/compare/reported.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from PySide6.QtCore import QRectF, Qt, QTimer, Signal, SignalInstance
from PySide6.QtGui import QGuiApplication, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QLabel, QPushButton, QSizePolicy, QWidget

from rankdeck.base.phrases import marked
from rankdeck.compare.reported import ERROR_SIGN, PhaseTable, Reported
from rankdeck.diagnose.fixes import Fix
from rankdeck_app.language import spoken, tr
from rankdeck_app.shell.page import PageAction
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ElidedLabel, tool_button
from rankdeck_app.widgets.layouts import (
    MIDDLE,
    FlowLayout,
    clear,
    column,
    push_button,
    row,
    scrolled,
    text_label,
)
from rankdeck_app.widgets.painting import chart_font

HEADER = 36
_LEAST_BODY, _USUAL_BODY = 120, 200
"""Pixels below its line: at least, and from which it is open until somebody folds it."""
_FOR_CHARTS = 520
"""What the page keeps for the strip, two rows of cards whose charts can be read, and the line of time."""
_MOST_DEVICES = 4
"""Of more, the phases tell the median and the longest."""
_NEXT_WIDTH, _LEAST_NOTE = 280, 190
_BUTTONS = ((900, 4), (560, 2), (0, 0))
"""(least width, most buttons)"""
_IN_ONE_LINE = {
    "best_held_out": marked("best held-out loss {value}"),
    "loss": marked("loss {value}"),
    "samples_per_s": marked("{value} samples/s"),
    "steps_per_s": marked("{value} steps/s"),
}
_AT_A_STEP = ("best_held_out", "loss")
"""Of which more is to be said than their value."""
Cells = Sequence[str]


class ActionButtons:
    """Buttons for what can be done next, at the end of a row. They stay the same objects while nothing
    changes: one of them may have the focus."""

    def __init__(self, row: QBoxLayout, acted: SignalInstance) -> None:
        """`acted` brings the id of the command of the button that was pressed."""
        self.buttons: list[QPushButton] = []
        self._actions: list[PageAction] = []
        self._row, self._acted = row, acted

    def show(self, actions: Sequence[PageAction]) -> None:
        if list(actions) == self._actions:
            return
        self._actions = list(actions)
        for button in self.buttons:
            button.deleteLater()
        self.buttons = [
            push_button(action.tooltip, "", partial(self._acted.emit, action.command), height=24)
            for action in actions
        ]
        for button in self.buttons:
            self._row.addWidget(button)


class SummaryPanel(QWidget):
    """`acted` brings the id of the command of the button that was pressed."""

    acted = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._report: Reported | None = None
        self._has_report = False
        self._wanted: bool | None = None
        """Whether a person wants it open; None as long as nobody has said so."""
        self._is_usually_open = True
        self._is_aside = False
        self._page_height = 0
        self.fold_button = tool_button(theme, "chevron-down", tr("Fold the summary"), self._turn)
        self.title, self.line = text_label(wrap=False), ElidedLabel("")
        self.title.setFont(chart_font(12, bold=True))
        self.line.setProperty("tone", "small")
        head = row(self.fold_button, self.title, (self.line, 1), spacing=8, align=MIDDLE)
        head.setContentsMargins(8, 6, 11, 6)
        self._actions = ActionButtons(head, self.acted)
        self._inside = QWidget()
        self._flow = FlowLayout(self._inside, gap=24)
        self._body = scrolled(self._inside, tr("Summary"))
        self._body.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._below = QWidget()
        row((self._body, 1), on=self._below, margins=(14, 0, 6, 8))
        column(head, (self._below, 1), on=self, margins=(1, 0, 1, 0), spacing=0)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(tr("Summary of the run"))
        theme.changed.connect(self.update)
        self.hide()

    def show_report(
        self, title: str, report: Reported | None, actions: Sequence[PageAction], *, is_usually_open: bool
    ) -> None:
        """None hides it."""
        self._is_usually_open = is_usually_open
        self.title.setText(title)
        self._actions.show(actions)
        self._show_buttons()
        self._has_report = report is not None
        self._show_or_hide()
        if report is not None and report != self._report:
            self._report = report
            self.line.setText(in_one_line(report))
            self._fill(report)
            QTimer.singleShot(0, self, self._fit)  # what was just put together has no size before
        self._fit()

    @property
    def buttons(self) -> list[QPushButton]:
        return self._actions.buttons

    @property
    def is_open(self) -> bool:
        if self._wanted is not None:
            return self._wanted
        return self._is_usually_open and self._room >= _USUAL_BODY

    @property
    def _room(self) -> int:
        """What the charts of the page leave for what stands below its line."""
        return self._page_height - _FOR_CHARTS - HEADER

    @property
    def wanted(self) -> bool | None:
        return self._wanted

    def set_wanted(self, wanted: bool | None) -> None:
        self._wanted = wanted
        self._fit()

    def step_aside(self, is_aside: bool) -> None:
        """While a card has the page."""
        self._is_aside = is_aside
        self._show_or_hide()

    def _show_or_hide(self) -> None:
        self.setVisible(self._has_report and not self._is_aside)

    def fit(self, page_height: int) -> None:
        """Take no more than the charts of a page that is so high leave."""
        self._page_height = page_height
        self._fit()

    def _turn(self) -> None:
        self.set_wanted(not self.is_open)

    def _fit(self) -> None:
        is_open = self.is_open
        self._below.setVisible(is_open)
        self.fold_button.setIcon(self._theme.icon("chevron-down" if is_open else "chevron-right"))
        words = tr("Fold the summary") if is_open else tr("Unfold the summary")
        self.fold_button.setToolTip(words)
        self.fold_button.setAccessibleName(words)
        height = HEADER
        if is_open:
            wanted = self._flow.heightForWidth(self._body.viewport().width())
            height += min(wanted, max(_LEAST_BODY, self._room)) + 10
        self.setFixedHeight(height)

    # What it shows

    def _fill(self, report: Reported) -> None:
        clear(self._flow)
        figures = [(tr(one.label), spoken(one.text), spoken(one.more)) for one in report.figures]
        self._add(tr("Figures"), "", _table((), figures, right=(1,)))
        if report.devices:
            count = 4 if report.is_predicted else 2
            devices = [
                (spoken(one.label), one.measured, one.predicted, one.error)[:count] for one in report.devices
            ]
            names = ("", tr("measured"), tr("predicted"), tr("error"))[:count]
            sign = tr("error: {sign}", sign=tr(ERROR_SIGN)) if report.is_predicted else ""
            note = "\n".join(filter(None, (spoken(report.memory_source or ""), sign)))
            self._add(tr("VRAM per device"), note, _table(names, devices, right=(1, 2, 3)))
        if report.phases is not None:
            head, rows = _phases(report.phases)
            note = tr("step {step}, the last sampled", step=report.phases.step)
            note = " · ".join(filter(None, (note, tr(report.phases.note))))
            self._add(tr("Time by phase"), note, _table(head, rows, right=range(1, len(head))))
        if report.fixes:
            fixes = QWidget()
            column(*map(_fix, report.fixes), on=fixes, spacing=8)
            fixes.setFixedWidth(_NEXT_WIDTH)
            self._add(tr("What to try next"), "", fixes)

    def _add(self, heading: str, note: str, body: QWidget) -> None:
        part, parts = QWidget(), [text_label(heading.upper(), "section", wrap=False), body]
        if note:
            below = text_label(note, "small")
            below.setFixedWidth(max(_LEAST_NOTE, body.sizeHint().width()))
            parts.append(below)
        column(*parts, None, on=part, spacing=4)
        self._flow.addWidget(part)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_buttons()
        self._fit()

    def _show_buttons(self) -> None:
        """As many as there is room for; what they do can be done from the tab and the palette, too."""
        most = next(most for least, most in _BUTTONS if self.width() >= least)
        for place, button in enumerate(self.buttons):
            button.setVisible(place < most)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, color = QPainter(self), self._theme.color
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(color("rankdeck.card.border"))
        painter.setBrush(color("rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        painter.end()


def in_one_line(report: Reported) -> str:
    """'150 steps in 21 s · best held-out loss 1.8312 at step 100 · 1 230 samples/s'."""
    told = {one.key: one for one in report.figures}
    steps, trained = told.get("step"), told.get("trained_s")
    parts = []
    if steps is not None and trained is not None:
        parts.append(tr("{count} steps in {time}", count=steps.text, time=trained.text))
    elif steps is not None:
        parts.append(tr("{count} steps", count=steps.text))
    left_out = "loss" if "best_held_out" in told else ""
    for key, words in _IN_ONE_LINE.items():
        if key in told and key != left_out:
            figure = tr(words, value=spoken(told[key].text))
            more = spoken(told[key].more) if key in _AT_A_STEP else ""
            parts.append(f"{figure} {more}" if more else figure)
    return " · ".join(parts)


def _phases(table: PhaseTable) -> tuple[Cells, list[Cells]]:
    if len(table.devices) <= _MOST_DEVICES:
        return ("", *map(spoken, table.devices)), [(tr(name), *cells) for name, cells in table.rows]
    return ("", tr("median"), tr("longest")), [(tr(name), *cells) for name, cells in table.summed]


def _table(head: Cells, rows: Iterable[Cells], right: Iterable[int]) -> QWidget:
    """Words and numbers in columns; those of `right` are numbers, of one width."""
    body = QWidget()
    grid = QGridLayout(body)
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(16)
    grid.setVerticalSpacing(2)
    numbers = frozenset(right)
    for at, cells in enumerate(([head] if head else []) + list(rows)):
        is_head = bool(head) and at == 0
        for place, cell in enumerate(cells):
            grid.addWidget(_cell(cell, place in numbers, is_head or place == 0), at, place)
    grid.setColumnStretch(grid.columnCount(), 1)
    return body


def _cell(text: str, is_number: bool, is_dim: bool) -> QLabel:
    label = text_label(text, "small" if is_dim or not is_number else "", wrap=False, selectable=True)
    if is_number:
        label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        if not is_dim:
            label.setFont(chart_font(11, mono=True))
    return label


def _fix(fix: Fix) -> QWidget:
    """What, why, and its command to take along."""
    part = QWidget()
    what, why = (
        text_label(spoken(fix.text), selectable=True),
        text_label(spoken(fix.why), "small", selectable=True),
    )
    parts: list[QWidget] = [what, why]
    if fix.command_line:
        copy: Callable[[], object] = partial(QGuiApplication.clipboard().setText, fix.command_line)
        button = push_button(tr("Copy Its Command"), fix.command_line, copy, kind="link")
        button.setAccessibleName(tr("Copy {command}", command=fix.command_line))
        parts.append(button)
    for label in (what, why):
        label.setFixedWidth(_NEXT_WIDTH)
    column(*parts, on=part, spacing=1)
    return part


# One sentence about the state of a run above its cards, and what to do next: starting, stopped, failed.

_MOST_MESSAGE = 600
_TONES = {"error": "errorForeground", "warning": "rankdeck.lead"}


class Banner(QWidget):
    """A message, an advice below it, and buttons where something can be done about it: `acted` brings the id
    of the command of the one that was pressed. The text can be selected and copied.
    """

    acted = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._tone = "info"
        self._message, self._advice = text_label(), text_label(tone="dim")
        texts = column(self._message, self._advice, spacing=2)
        line = row((texts, 1), on=self, margins=(14, 7, 12, 8), spacing=8)
        self._actions = ActionButtons(line, self.acted)
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

    def say(self, headline: tuple[str, str, str] | None, actions: Sequence[PageAction] = ()) -> None:
        """(tone, message, advice), and what one can do; None hides the banner."""
        if headline is None:
            self.hide()
            return
        self._tone, message, advice = headline
        self._message.setText(_shortened(message))
        self._advice.setText(_shortened(advice))
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


def _shortened(text: str) -> str:
    """A last traceback line can be kilobytes long; the whole text is in Problems."""
    return text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE]}…"
