"""The dashboard of a run, whether a configured run or a script.

It consists of the strip of metrics, the banner, the summary of a finished run and a grid of cards
(run_grid.py).

In each frame, the page takes data from the reader thread for at most 4 ms. It then repaints only the visible
cards whose data changed, at most thirty times a second. For a script, cards, cells and facts appear only once
the run reports data for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from PySide6.QtGui import QResizeEvent, QShowEvent

from rankdeck.diagnose.fixes import changes_label, is_memory_problem
from rankdeck.run.batch import RunChange
from rankdeck_app.language import tr, translate
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.ended_run import EndedRun
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.run_view import RunView
from rankdeck_app.state.state_file import SCRIPT, CardLayouts
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import observed_facts, run_chart_data, run_status
from rankdeck_app.views.dashboard.run_grid import RunGrid
from rankdeck_app.views.dashboard.summary import Banner, SummaryPanel
from rankdeck_app.views.dashboard.time_bar import TimeBar, time_travel_headline
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.facts_line import FactsLine, verification_fact
from rankdeck_app.widgets.layouts import column
from rankdeck_app.widgets.run_list import OUTCOME_TONES, folder_breadcrumbs
from rankdeck_app.widgets.stat_strip import StatStrip

PAGE_KIND = "run"
# Numbers that change more often are unreadable.
_STATS_INTERVAL_S = 0.25
_DRAW_WHILE_READING_INTERVAL_S = 0.25
_FRAME_BUDGET_S = 0.004


def page_id(run_path: object) -> str:
    return f"{PAGE_KIND}:{run_path}"


class RunPage(Page):
    """Dashboard page of a run. `on_closed` is called once, when the page is destroyed, so that the caller can
    release the run, which the page does not own.

    `run_command` runs a command by id; without it, the page has no actions. `layouts` stores the user's
    arrangement of the cards.
    """

    breadcrumb_command = "view.show.runs"

    def __init__(
        self,
        run: LiveRun,
        theme: Theme,
        clock: FrameClock,
        *,
        run_command: Callable[[str], object] | None = None,
        on_closed: Callable[[], object] | None = None,
        layouts: CardLayouts | None = None,
    ) -> None:
        super().__init__(page_id(run.run_dir.path), title=run.title, icon="pulse")
        self.run = run
        self._has_actions = run_command is not None
        self._shown_actions: list[PageAction] = []
        self._pending = ~RunChange.NOTHING
        self._stats_shown_s = self._drawn_s = 0.0
        self._postponed: set[str] = set()
        self._last_aging_s = 0
        self._num_devices = 0
        self._stat_strip = StatStrip(theme)
        self._banner, self._summary = Banner(theme), SummaryPanel(theme)
        self._ended_run = EndedRun(run, self)
        self._ended_run.changed.connect(self._show_summary)
        if run_command is not None:
            self._banner.action_triggered.connect(run_command)
            self._summary.action_triggered.connect(run_command)
        self._verification_line = FactsLine(theme, tr("Verification against a single device"))
        self._facts_line = FactsLine(theme, tr("Run details"))
        self.grid = RunGrid(run, theme)
        self.grid.body_created.connect(self._mark_all_changed)
        self.time_bar = TimeBar(run, theme)
        self._layouts, self._layout_kind = layouts, ""
        self.grid.layout_changed.connect(self._save_layout)
        self.grid.maximised_changed.connect(self._summary.set_suppressed)
        below = column(self._banner, self._summary, (self.grid, 1), spacing=10)
        sections = (self._stat_strip, self._verification_line, self._facts_line, (below, 1), self.time_bar)
        column(*sections, on=self, margins=(16, 0, 16, 2), spacing=4)
        run.changed.connect(self._mark_changed)
        run.time_machine.time_changed.connect(self._show_viewed_time)
        run.time_machine.past_loaded.connect(self._mark_all_changed)
        if on_closed is not None:
            self.destroyed.connect(lambda *_: on_closed())
        clock.subscribe(self._on_frame)
        self._refresh()

    @property
    def cards(self) -> dict[str, ChartCard]:
        return self.grid.cards

    @property
    def viewed_run(self) -> RunView:
        """The run at the viewed time."""
        return self.run.viewed

    # The tab

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), *folder_breadcrumbs(self.run.name), tr("Dashboard")]

    def tooltip(self) -> str:
        return str(self.run.run_dir.path)

    def tab_actions(self) -> list[PageAction]:
        if not self._has_actions:
            return []
        return self._ended_actions() if self.run.is_over else self._live_actions()

    def _live_actions(self) -> list[PageAction]:
        """Return the actions for a live run. Only a configured run can be asked to save a checkpoint: scripts
        save their checkpoints themselves."""
        save = [PageAction("save", tr("Save a checkpoint now"), "run.checkpoint")]
        stop = PageAction("debug-stop", tr("Stop this run"), "run.stop")
        return [*(save if self.run.is_planned else []), stop]

    def _ended_actions(self) -> list[PageAction]:
        """Return the actions for a finished run, starting with those most likely to be needed."""
        resume = [PageAction("debug-continue", tr("Resume"), "run.resume")]
        again = PageAction("debug-rerun", tr("Run Again"), "run.again")
        compare = PageAction("git-compare", tr("Compare"), "run.compare")
        actions = [*(resume if self.run.is_resumable else []), again, compare]
        # A banner has room for three buttons beside its text.
        if any(map(is_memory_problem, self.run.problems)):
            return [PageAction("lightbulb", tr("Explain Out of Memory"), "run.why"), *actions][:3]
        if changes := self.run.fix_changes:
            use = tr("Use {fix}", fix=translate(changes_label(changes)))
            return [PageAction("lightbulb", use, "run.cure"), *actions][:3]
        return actions

    def _banner_content(self) -> tuple[tuple[str, str, str] | None, list[PageAction]]:
        """Return the banner's headline and actions."""
        if self.run.time_machine.viewed_time is None:
            return run_status.headline(self.viewed_run), self._banner_actions()
        back = [PageAction("history", tr("Back to Now"), "time.now")] if self._has_actions else []
        return time_travel_headline(self.run), back

    def _summary_actions(self) -> list[PageAction]:
        """Return the export actions and, for a completed run, the `_ended_actions`, because a completed run
        has no banner that could show them."""
        if not self._has_actions:
            return []
        export = [PageAction("save", tr("Export Weights…"), "run.weights")]
        weights = export if self.run.is_planned and self.run.copier is None else []
        report = PageAction("file-code", tr("Save Report…"), "run.report")
        rest = self._ended_actions() if self.run.outcome == "completed" else []
        return [*weights, report, *rest]

    def _show_summary(self) -> None:
        run = self.run
        is_usually_open = run.outcome == "completed"
        title = tr("Completed") if is_usually_open else tr("Summary")  # the banner shows how other runs ended
        actions = self._summary_actions()
        # The report describes the run's end, which would contradict a page that shows the past.
        report = self._ended_run.report if run.time_machine.viewed_time is None else None
        self._summary.show_report(title, report, actions, is_open_by_default=is_usually_open)

    def save_state(self) -> dict[str, Any]:
        return {} if self._summary.open_override is None else {"summary": self._summary.open_override}

    def restore_state(self, state: dict[str, Any]) -> None:
        is_open = state.get("summary")
        self._summary.set_open_override(is_open if isinstance(is_open, bool) else None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._summary.fit_page(self.height())

    def _banner_actions(self) -> list[PageAction]:
        if self.run.ending == "stopping" and self._has_actions:
            return [PageAction("debug-stop", tr("Stop Now"), "run.stopNow")]
        if self.run.hang is not None and self._has_actions:
            return [
                PageAction("file-code", tr("Go to Line"), "run.standstill"),
                PageAction("layers", tr("Show Stacks"), "run.stacks"),
                PageAction("debug-stop", tr("Stop Run"), "run.stop"),
            ]
        return self.tab_actions() if self.run.is_over else []

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._pending = ~RunChange.NOTHING

    def _mark_all_changed(self) -> None:
        self._pending = ~RunChange.NOTHING

    def _show_viewed_time(self) -> None:
        """Show the newly requested time at once. The charts change later, when the run's state at that time
        has been read."""
        self._pending |= RunChange.STATE
        self.time_bar.show_viewed_time()
        self.grid.mark(*self.time_bar.marks())
        self._show_summary()

    def _mark_changed(self, changed: RunChange) -> None:
        self._pending |= changed

    def _on_frame(self) -> None:
        """Handle a tick of the frame clock: take data from the reader, then repaint the cards that
        changed."""
        # CPU time of this thread: time spent waiting for the GIL must not count against the frame.
        began_s = time.thread_time()
        self.run.drain()
        if self._pending & RunChange.STATE:
            self._show_state()
        # Only drawing waits for a visible page: the tab shows the outcome, and a reader stops when nothing
        # takes its data.
        if self.isVisible():
            self._mark_aged()
            is_news = bool(self._pending & RunChange.STATE)  # the tab and its buttons show it already
            is_due = (is_news or not self._should_postpone("cards", began_s)) and self._is_draw_due()
            if is_due:
                self._refresh()
            # Create or draw one plot per frame: all at once would make a slow frame, and a click on a run
            # must respond immediately.
            if not self.grid.create_next_chart() and is_due and not self._should_postpone("plots", began_s):
                self.grid.draw_next_plot()

    def _should_postpone(self, what: str, began_s: float) -> bool:
        """Check whether `what` must wait for the next frame, because this frame, which started at `began_s`,
        has used up its time. Nothing is postponed twice in a row."""
        is_late = time.thread_time() - began_s > _FRAME_BUDGET_S and what not in self._postponed
        (self._postponed.add if is_late else self._postponed.discard)(what)
        return is_late

    def _is_draw_due(self) -> bool:
        """Check whether to draw. While a run is being read for the first time, drawing is only rarely due, so
        that it does not slow down the reading of a million steps."""
        now, is_reading = time.monotonic(), self.run.outcome is None
        if is_reading and now - self._drawn_s < _DRAW_WHILE_READING_INTERVAL_S:
            return False
        self._drawn_s = now
        return True

    def _mark_aged(self) -> None:
        """Once a second, request a repaint of the cards that show the age of their data, even if there is no
        new data."""
        second = int(time.monotonic())
        if not self.run.is_over and second != self._last_aging_s:
            self._last_aging_s = second
            self._pending |= RunChange.MEMORY | RunChange.READINGS | RunChange.ANATOMY

    def _save_layout(self) -> None:
        if self._layouts is not None and self._layout_kind:
            self._layouts.set(self._layout_kind, self.grid.layout_state())

    def _restore_layout(self) -> None:
        """Restore the card layout saved for scripts or for the run's strategy, once the reader has reported
        which of the two applies."""
        if self.run.is_planned is None:
            return
        self.grid.set_default_order(run_chart_data.card_order(self.run))
        kind = self.run.strategy if self.run.is_planned else SCRIPT
        if self._layouts is not None and kind and kind != self._layout_kind:
            self._layout_kind = kind
            self.grid.restore(self._layouts.get(kind))

    def _show_state(self) -> None:
        """Update the tab's title, icon and buttons; the tab can be visible even when the page is not."""
        self._restore_layout()
        color = OUTCOME_TONES.get(self.run.outcome or "running", "descriptionForeground")
        title = self.run.title
        if (title, color) != (self.title, self.icon_color):
            self.set_title(title, icon_color=color)
        if (actions := self.tab_actions()) != self._shown_actions:
            self._shown_actions = actions
            self.actions_changed.emit()

    def _refresh(self) -> None:
        pending = self._pending
        now = time.monotonic()
        if now - self._stats_shown_s >= _STATS_INTERVAL_S or pending & RunChange.STATE:
            self._stats_shown_s = now
            self._stat_strip.set_data(run_status.stats(self.viewed_run))
            self.time_bar.show_viewed_time()
        if pending & (RunChange.STATE | RunChange.PROBLEMS | RunChange.STEPS):
            self._banner.show_headline(*self._banner_content())
            self._ended_run.update()
        if pending & (RunChange.STATE | RunChange.EVALUATION | RunChange.MEMORY):
            self._show_facts()
        self.grid.refresh(pending)
        self.grid.mark(*self.time_bar.marks())
        # The height of the device charts depends on their number of rows.
        if len(self.viewed_run.devices) != self._num_devices:
            self._num_devices = len(self.viewed_run.devices)
            self.grid.relayout()
        self._pending = RunChange.NOTHING

    def _show_facts(self) -> None:
        """Show the verification result, and the observed facts of a script."""
        verified, facts = self.viewed_run.state.verified, observed_facts.facts(self.viewed_run)
        self._verification_line.set_data(() if verified is None else (verification_fact(verified),))
        self._verification_line.setVisible(verified is not None)
        self._facts_line.set_data(facts)
        self._facts_line.setVisible(bool(facts))
