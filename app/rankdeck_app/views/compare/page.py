"""The tab of a comparison: its runs on top, then figures, losses, memory, speed, and what differs.

It owns its `Comparing` and drains it once a frame; cards change when figures do. Which runs it shows is kept
over a restart. Read state/comparing.py before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QScrollArea, QWidget
from shiboken6 import isValid

from rankdeck.base.phrases import marked
from rankdeck.compare.naming import LEAST_RUNS, RunAt
from rankdeck.compare.table import Comparison
from rankdeck_app.language import tr
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.comparing import Comparing
from rankdeck_app.theme import Theme
from rankdeck_app.views.compare import compare_figures
from rankdeck_app.views.compare.chips import ChipRow
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_files import CsvRows
from rankdeck_app.widgets.layouts import column, push_button, row, scrolled, text_label
from rankdeck_app.widgets.loss_overlay import MOST_WITH_RAW, LossOverlay
from rankdeck_app.widgets.paired_bars import PairedBars
from rankdeck_app.widgets.side_by_side import SideBySide

_LOSS_HEIGHT = 300
_LEAST_CHARTS = 440
"""Of the width that charts need beside the table."""
_RIGHT, _EDGE, _SCROLL_BAR, _GAP, _CARD_MARGINS = 16, 4, 10, 10, 20
_EMPTY = marked("Add two or more runs to see them side by side.")
_ONE = marked("Add another run to compare this one with.")


class ComparePage(Page):
    """`acts` are for its runs: open one, ask for more. `looked_at` brings the runs, and those before them,
    whenever they change."""

    path_command = "view.show.runs"
    looked_at = Signal(list, list)

    def __init__(
        self,
        page_id: str,
        theme: Theme,
        clock: FrameClock,
        acts: Mapping[str, Callable[..., object]],
    ) -> None:
        super().__init__(page_id, title=tr("Compare"), icon="git-compare")
        self._acts = acts
        self.comparing = Comparing(is_known=lambda path: bool(acts["is_known"](path)))
        self._known: list[RunAt] = []
        self.chips = ChipRow(
            theme,
            {
                "baseline": self.comparing.set_baseline,
                "remove": self.comparing.remove,
                "open": lambda at: acts["open"](at.path),
                "attempt": lambda at, attempt: self.add([at._replace(attempt=attempt)]),
            },
        )
        self.chips.added.connect(lambda: acts["add"](self))
        self.message = text_label(tone="dim")
        self._make_cards(theme)
        self._body, self._beside = _body(self.cards)
        top = column(self.chips, self.message, margins=(0, 0, _RIGHT - _EDGE, 0), spacing=10)
        self._area = self._scroll()
        column(top, (self._area, 1), on=self, margins=(16, 8, _EDGE, 0), spacing=10)
        self.setFocusProxy(self.chips.add_tile)
        self.comparing.runs_changed.connect(self._show_runs)
        self.comparing.changed.connect(self._show_figures)
        self.destroyed.connect(partial(_close, self.comparing))
        clock.subscribe(self._frame)
        self._show_runs()

    def _make_cards(self, theme: Theme) -> None:
        figures, differing = tr("Figures"), tr("What differs")
        vram, speed = tr("VRAM per device"), tr("Speed and bytes")
        self.table, self.keys = SideBySide(theme, figures), SideBySide(theme, differing)
        self.memory, self.speed = PairedBars(theme, vram), PairedBars(theme, speed)
        self.loss = LossOverlay(theme)
        self.switch = {
            by: push_button(tr(words), tr(meaning), partial(self.set_by, by), kind="segment", height=22)
            for by, (words, meaning) in compare_figures.BY_WORDS.items()
        }
        for by, button in self.switch.items():
            button.setAccessibleName(button.toolTip())
            button.setChecked(by == self.loss.by)
        losses = QWidget()
        losses.setMinimumHeight(_LOSS_HEIGHT)
        column(row(*self.switch.values(), None, spacing=6), (self.loss, 1), on=losses, spacing=6)
        self.cards = {
            "figures": ChartCard(figures, theme, self.table, self._rows(compare_figures.figures_rows)),
            "loss": ChartCard(tr("Training loss"), theme, losses, self.loss.csv_rows),
            "memory": ChartCard(vram, theme, self.memory, self._rows(compare_figures.memory_rows)),
            "speed": ChartCard(speed, theme, self.speed, self._rows(compare_figures.speed_rows)),
            "keys": ChartCard(differing, theme, self.keys, self._rows(compare_figures.difference_rows)),
        }

    def _rows(self, of: Callable[[Comparison | None], Iterable[Sequence[object]]]) -> CsvRows:
        """An export is of what is known at its moment."""
        return lambda: of(self.comparing.comparison)

    def _scroll(self) -> QScrollArea:
        area = scrolled(self._body, tr("Comparison"))
        area.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # arrow keys scroll
        return area

    # What it shows

    def add(self, ats: list[RunAt]) -> None:
        """Take runs in; what is refused is said."""
        if refused := self.comparing.add(ats):
            self._acts["say"]("\n".join(refused))

    def set_by(self, by: str) -> None:
        """Losses over another axis."""
        for name, button in self.switch.items():
            button.setChecked(name == by)
        self.loss.set_by(by)

    def _show_runs(self) -> None:
        before, self._known = self._known, self.comparing.ats
        self.loss.set_runs(self.comparing.runs)
        self._show_figures()
        base = self.comparing.baseline
        if len(self._known) >= LEAST_RUNS:
            self.looked_at.emit([self._known[base], *self._known[:base], *self._known[base + 1 :]], before)
        self.actions_changed.emit()

    def _show_figures(self) -> None:
        comparison, num_runs = self.comparing.comparison, len(self.comparing.runs)
        self._show_title()
        self.chips.show_figures(compare_figures.chips(self.comparing))
        message = _EMPTY if not num_runs else _ONE if num_runs < LEAST_RUNS else ""
        self.message.setText(tr(message) if message else "")
        self.message.setVisible(bool(message))
        self._body.setVisible(comparison is not None)
        always, never = Qt.ScrollBarPolicy.ScrollBarAlwaysOn, Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        # Always where there are cards, so that their edges align with the chips'.
        self._area.setVerticalScrollBarPolicy(always if comparison is not None else never)
        self.loss.request_draw()
        if comparison is None:
            return
        self.table.set_figure(compare_figures.figures(comparison))
        self._lay_out()
        self.keys.set_figure(compare_figures.differences(comparison))
        for name, table in (("figures", self.table), ("keys", self.keys)):
            # A column that is narrower cuts its numbers: the page scrolls sidewards.
            self.cards[name].setMinimumWidth(table.minimumSizeHint().width() + _CARD_MARGINS)
        memory, speed = compare_figures.memory(comparison), compare_figures.speed(comparison)
        self.memory.set_figure(memory)
        self.speed.set_figure(speed)
        self.cards["memory"].setVisible(bool(memory.groups))
        self.cards["speed"].setVisible(bool(speed.groups))
        self.cards["figures"].set_subtitle(tr("★ the best, or not told apart from it"), tr("★ the best"))
        raw = tr("raw and smoothed") if num_runs <= MOST_WITH_RAW else tr("smoothed")
        self.cards["loss"].set_subtitle(f"{raw}, {tr('◆ held-out')}", raw)
        self.cards["memory"].set_subtitle(compare_figures.memory_subtitle(comparison, memory))
        self.cards["loss"].set_source(compare_figures.loss_source(comparison))
        self.cards["memory"].set_source(compare_figures.memory_source(comparison))
        self.cards["speed"].set_source(compare_figures.speed_source(comparison))
        self.cards["keys"].set_subtitle(tr("keys that are the same are left out"))

    def _show_title(self) -> None:
        title = tr("Compare")
        if self.comparing.runs:
            title = tr("Compare: {runs}", runs=self.comparing.title())
        if title != self.title:
            self.set_title(title)

    def _frame(self) -> None:
        if self.comparing.drain():
            self.loss.request_draw()
        if self.isVisible():
            self.loss.tick()

    # A tab

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), tr("Compare")]

    def tooltip(self) -> str:
        return "\n".join(map(str, self.comparing.ats)) or self.title

    def tab_actions(self) -> list[PageAction]:
        if len(self.comparing.runs) < LEAST_RUNS:
            return []
        return [PageAction("save", tr("Save as a Page…"), "compare.save")]

    def save_state(self) -> dict[str, Any]:
        return {**self.comparing.saved(), "by": self.loss.by}

    def restore_state(self, state: dict[str, Any]) -> None:
        gone = self.comparing.restore(state)
        if state.get("by") in self.switch:
            self.set_by(state["by"])
        if gone:
            self._acts["say"]("\n".join(gone))

    def sizeHint(self) -> QSize:
        return QSize(900, 600)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._lay_out()

    def _lay_out(self) -> None:
        """The charts beside the table where both have room, else below it."""
        half = (self.width() - 16 - _RIGHT - _GAP) // 2
        is_wide = half >= max(_LEAST_CHARTS, self.table.figure.comfortable_width + 20)
        direction = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        if self._beside.direction() != direction:
            self._beside.setDirection(direction)


def _body(cards: Mapping[str, ChartCard]) -> tuple[QWidget, QBoxLayout]:
    """All cards, and the layout whose halves stand beside each other where there is room."""
    inside = QWidget()
    beside = row(
        (column(cards["figures"], None), 1),
        (column(cards["loss"], cards["memory"], cards["speed"], None, spacing=_GAP), 1),
        spacing=_GAP,
    )
    margins = (0, 0, _RIGHT - _EDGE - _SCROLL_BAR, 12)
    column(beside, cards["keys"], None, on=inside, margins=margins, spacing=_GAP)
    return inside, beside


def _close(comparing: Comparing, _page: object = None) -> None:
    if isValid(comparing):  # the window's end takes all along
        comparing.close()
        comparing.deleteLater()
