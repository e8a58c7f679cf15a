"""The comparison tab: its runs at the top, then metrics, losses, memory, speed and differences.

The page owns its `RunComparison` and takes new data from it once per frame; cards update when the data
changes. The compared runs are restored after a restart. Read state/run_comparison.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QScrollArea, QWidget
from shiboken6 import isValid

from rankdeck.base.phrases import tr_noop
from rankdeck.compare.run_ref import MIN_RUNS, RunRef
from rankdeck.compare.table import Comparison
from rankdeck_app.language import tr
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.run_comparison import RunComparison
from rankdeck_app.theme import Theme
from rankdeck_app.views.compare import compare_chart_data
from rankdeck_app.views.compare.chips import ChipRow
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_export import CsvRows
from rankdeck_app.widgets.comparison_table import ComparisonTable
from rankdeck_app.widgets.layouts import column, make_scroll_area, push_button, row, text_label
from rankdeck_app.widgets.loss_overlay import MAX_RUNS_WITH_RAW, LossOverlay
from rankdeck_app.widgets.paired_bars import PairedBars

_LOSS_HEIGHT = 300
_MIN_CHARTS_WIDTH = 440
"""Minimum width in pixels that the charts need to be laid out beside the table."""
_RIGHT, _EDGE, _SCROLL_BAR, _GAP, _CARD_MARGINS = 16, 4, 10, 10, 20
_EMPTY = tr_noop("Add two or more runs to see them side by side.")
_ONE_RUN = tr_noop("Add another run to compare with this run.")


class ComparePage(Page):
    """Comparison page. `acts` contains callbacks such as `open` (open a run) and `add` (ask for more runs).

    `comparison_changed` carries the runs, baseline first, and the previously compared runs.
    """

    breadcrumb_command = "view.show.runs"
    comparison_changed = Signal(list, list)

    def __init__(
        self,
        page_id: str,
        theme: Theme,
        clock: FrameClock,
        acts: Mapping[str, Callable[..., object]],
    ) -> None:
        super().__init__(page_id, title=tr("Compare"), icon="git-compare")
        self._actions = acts
        self.comparing = RunComparison(is_known=lambda path: bool(acts["is_known"](path)))
        self._shown_refs: list[RunRef] = []
        self.chips = ChipRow(
            theme,
            {
                "baseline": self.comparing.set_baseline,
                "remove": self.comparing.remove,
                "open": lambda at: acts["open"](at.path),
                "attempt": lambda at, attempt: self.add([at._replace(attempt=attempt)]),
            },
        )
        self.chips.add_requested.connect(lambda: acts["add"](self))
        self.message = text_label(tone="dim")
        self._make_cards(theme)
        self._body, self._columns = _make_body(self.cards)
        top = column(self.chips, self.message, margins=(0, 0, _RIGHT - _EDGE, 0), spacing=10)
        self._scroll_area = self._make_scroll_area()
        column(top, (self._scroll_area, 1), on=self, margins=(16, 8, _EDGE, 0), spacing=10)
        self.setFocusProxy(self.chips.add_tile)
        self.comparing.runs_changed.connect(self._show_runs)
        self.comparing.changed.connect(self._show_comparison)
        # Not a method of this page, which is gone when `destroyed` is emitted.
        self.destroyed.connect(partial(_close, self.comparing))
        clock.subscribe(self._on_frame)
        self._show_runs()

    def _make_cards(self, theme: Theme) -> None:
        metrics_title, differing = tr("Figures"), tr("Differences")
        vram, speed = tr("VRAM per device"), tr("Speed and bytes")
        self.metric_table, self.difference_table = (
            ComparisonTable(theme, metrics_title),
            ComparisonTable(theme, differing),
        )
        self.memory_bars, self.speed_bars = PairedBars(theme, vram), PairedBars(theme, speed)
        self.loss_plot = LossOverlay(theme)
        self.axis_buttons = {
            by: push_button(tr(label), tr(meaning), partial(self.set_axis, by), kind="segment", height=22)
            for by, (label, meaning) in compare_chart_data.AXIS_LABELS.items()
        }
        for by, button in self.axis_buttons.items():
            button.setAccessibleName(button.toolTip())
            button.setChecked(by == self.loss_plot.axis)
        losses = QWidget()
        losses.setMinimumHeight(_LOSS_HEIGHT)
        column(row(*self.axis_buttons.values(), None, spacing=6), (self.loss_plot, 1), on=losses, spacing=6)
        self.cards = {
            "figures": ChartCard(
                metrics_title, theme, self.metric_table, self._csv_rows(compare_chart_data.metric_rows)
            ),
            "loss": ChartCard(tr("Training loss"), theme, losses, self.loss_plot.csv_rows),
            "memory": ChartCard(
                vram, theme, self.memory_bars, self._csv_rows(compare_chart_data.memory_rows)
            ),
            "speed": ChartCard(speed, theme, self.speed_bars, self._csv_rows(compare_chart_data.speed_rows)),
            "keys": ChartCard(
                differing, theme, self.difference_table, self._csv_rows(compare_chart_data.difference_rows)
            ),
        }

    def _csv_rows(self, of: Callable[[Comparison | None], Iterable[Sequence[object]]]) -> CsvRows:
        """Return a function that applies `of` to the comparison that is current when the export calls it."""
        return lambda: of(self.comparing.comparison)

    def _make_scroll_area(self) -> QScrollArea:
        area = make_scroll_area(self._body, tr("Comparison"))
        area.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # so that arrow keys scroll
        return area

    # Contents

    def add(self, ats: list[RunRef]) -> None:
        """Add runs, and tell the user which of them were refused."""
        if refused := self.comparing.add(ats):
            self._actions["say"]("\n".join(refused))

    def set_axis(self, by: str) -> None:
        """Plot the losses against `by`: "step", "time" or "samples"."""
        for name, button in self.axis_buttons.items():
            button.setChecked(name == by)
        self.loss_plot.set_axis(by)

    def _show_runs(self) -> None:
        before, self._shown_refs = self._shown_refs, self.comparing.refs
        self.loss_plot.set_runs(self.comparing.runs)
        self._show_comparison()
        base = self.comparing.baseline
        if len(self._shown_refs) >= MIN_RUNS:
            self.comparison_changed.emit(
                [self._shown_refs[base], *self._shown_refs[:base], *self._shown_refs[base + 1 :]], before
            )
        self.actions_changed.emit()

    def _show_comparison(self) -> None:
        comparison, num_runs = self.comparing.comparison, len(self.comparing.runs)
        self._show_title()
        self.chips.set_chips(compare_chart_data.chip_data(self.comparing))
        message = _EMPTY if not num_runs else _ONE_RUN if num_runs < MIN_RUNS else ""
        self.message.setText(tr(message) if message else "")
        self.message.setVisible(bool(message))
        self._body.setVisible(comparison is not None)
        always, never = Qt.ScrollBarPolicy.ScrollBarAlwaysOn, Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        # Always visible with cards, so that their edges align with the chips'.
        self._scroll_area.setVerticalScrollBarPolicy(always if comparison is not None else never)
        self.loss_plot.request_draw()
        if comparison is None:
            return
        self.metric_table.set_data(compare_chart_data.metric_table(comparison))
        self._lay_out()
        self.difference_table.set_data(compare_chart_data.difference_table(comparison))
        for name, table in (("figures", self.metric_table), ("keys", self.difference_table)):
            # A narrower column would cut off numbers; the page scrolls horizontally instead.
            self.cards[name].setMinimumWidth(table.minimumSizeHint().width() + _CARD_MARGINS)
        memory, speed = compare_chart_data.memory_bars(comparison), compare_chart_data.speed_bars(comparison)
        self.memory_bars.set_data(memory)
        self.speed_bars.set_data(speed)
        self.cards["memory"].setVisible(bool(memory.groups))
        self.cards["speed"].setVisible(bool(speed.groups))
        self.cards["figures"].set_subtitle(tr("★ best, or tied with the best"), tr("★ best"))
        raw = tr("raw and smoothed") if num_runs <= MAX_RUNS_WITH_RAW else tr("smoothed")
        self.cards["loss"].set_subtitle(f"{raw}, {tr('◆ held-out')}", raw)
        self.cards["memory"].set_subtitle(compare_chart_data.memory_subtitle(comparison, memory))
        self.cards["loss"].set_source(compare_chart_data.loss_source(comparison))
        self.cards["memory"].set_source(compare_chart_data.memory_source(comparison))
        self.cards["speed"].set_source(compare_chart_data.speed_source(comparison))
        self.cards["keys"].set_subtitle(tr("identical keys are omitted"))

    def _show_title(self) -> None:
        title = tr("Compare")
        if self.comparing.runs:
            title = tr("Compare: {runs}", runs=self.comparing.title())
        if title != self.title:
            self.set_title(title)

    def _on_frame(self) -> None:
        if self.comparing.drain():
            self.loss_plot.request_draw()
        # Only drawing waits for a visible page: a reader stops when nothing takes its data.
        if self.isVisible():
            self.loss_plot.tick()

    # A tab

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), tr("Compare")]

    def tooltip(self) -> str:
        return "\n".join(map(str, self.comparing.refs)) or self.title

    def tab_actions(self) -> list[PageAction]:
        if len(self.comparing.runs) < MIN_RUNS:
            return []
        return [PageAction("save", tr("Save as HTML Page…"), "compare.save")]

    def save_state(self) -> dict[str, Any]:
        return {**self.comparing.save_state(), "by": self.loss_plot.axis}

    def restore_state(self, state: dict[str, Any]) -> None:
        missing = self.comparing.restore_state(state)
        if state.get("by") in self.axis_buttons:
            self.set_axis(state["by"])
        if missing:
            self._actions["say"]("\n".join(missing))

    def sizeHint(self) -> QSize:
        return QSize(900, 600)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._lay_out()

    def _lay_out(self) -> None:
        """Lay out the charts beside the table if the page is wide enough for both, else below the table."""
        half = (self.width() - 16 - _RIGHT - _GAP) // 2
        is_wide = half >= max(_MIN_CHARTS_WIDTH, self.metric_table.data.preferred_width + 20)
        direction = QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom
        if self._columns.direction() != direction:
            self._columns.setDirection(direction)


def _make_body(cards: Mapping[str, ChartCard]) -> tuple[QWidget, QBoxLayout]:
    """Create the body with all cards. Return the body and the layout that places its two halves side by side
    if they fit."""
    inside = QWidget()
    halves = row(
        (column(cards["figures"], None), 1),
        (column(cards["loss"], cards["memory"], cards["speed"], None, spacing=_GAP), 1),
        spacing=_GAP,
    )
    margins = (0, 0, _RIGHT - _EDGE - _SCROLL_BAR, 12)
    column(halves, cards["keys"], None, on=inside, margins=margins, spacing=_GAP)
    return inside, halves


def _close(comparing: RunComparison, _page: object = None) -> None:
    if isValid(comparing):  # a closing window has deleted it already
        comparing.close()
        comparing.deleteLater()
