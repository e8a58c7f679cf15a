"""What every tab of a run is: the strip of figures, the banner, the summary of its end, a grid of cards, and
what drives them.

Every frame takes what the reader thread has (at most 4 ms of it), and then repaints only the cards whose
figures changed, and only while somebody can see them. page.py has the cards of a configured run and
those of a person's own script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from PySide6.QtGui import QResizeEvent, QShowEvent

from rankdeck.base.phrases import marked
from rankdeck.run.batch import Changed
from rankdeck.run.series import Curve, Floats
from rankdeck_app.language import tr
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.ended_run import EndedRun
from rankdeck_app.state.kept_file import SCRIPT, CardLayouts
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_figures
from rankdeck_app.views.dashboard.summary import Banner, SummaryPanel
from rankdeck_app.views.dashboard.time_bar import TimeBar, looking_back
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_layout import ArrangedGrid
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.heat_strip import HeatStrip
from rankdeck_app.widgets.layouts import Part, column
from rankdeck_app.widgets.run_list import OUTCOME_TONES, folder_crumbs
from rankdeck_app.widgets.stat_strip import Stat, StatStrip
from rankdeck_app.widgets.vram_bars import VramBars
from rankdeck_app.widgets.zoom_plot import ZoomPlot

PAGE_KIND = "run"
Curves = tuple[Curve, Curve, Curve | None]
"""Raw, their average, and single points."""
PACE_WORDS = (marked("now"), marked("smoothed"), "")
LR_WORDS, NORM_WORDS = (marked("lr"), "", ""), (marked("norm"), "", "")
# Figures that change faster cannot be read.
_STATS_EVERY_S = 0.25
_DRAWN_READING_S = 0.25
_MUCH_S = 0.004


def page_id(run_path: object) -> str:
    return f"{PAGE_KIND}:{run_path}"


class RunTab(Page):
    """It does not own the run: `closed` is called once when the tab is gone. `run_command` runs a command by
    its id; without it nothing can be done with the run. `layouts` keeps how its cards are arranged.
    """

    path_command = "view.show.runs"

    def __init__(
        self,
        run: LiveRun,
        theme: Theme,
        clock: FrameClock,
        *,
        run_command: Callable[[str], object] | None = None,
        closed: Callable[[], object] | None = None,
        layouts: CardLayouts | None = None,
    ) -> None:
        super().__init__(page_id(run.run.path), title=run.title, icon="pulse")
        self.run = run
        self._can_act = run_command is not None
        self._shown_actions: list[PageAction] = []
        self._pending = ~Changed.NOTHING
        self._stats_at = self._drawn_at = 0.0
        self._put_off: set[str] = set()
        self._aged_at = 0
        self._known_devices = 0
        self._strip = StatStrip(theme)
        self._banner, self._summary = Banner(theme), SummaryPanel(theme)
        self._ended = EndedRun(run, self)
        self._ended.changed.connect(self._show_summary)
        if run_command is not None:
            self._banner.acted.connect(run_command)
            self._summary.acted.connect(run_command)
        self._bars, self._heat = VramBars(theme), HeatStrip(theme)
        self.cards: dict[str, ChartCard] = {}
        self.grid = self._make_cards(theme)
        self.time_bar = TimeBar(run, theme)
        self._layouts, self._layout_kind = layouts, ""
        self.grid.arranged.connect(self._keep_layout)
        self.grid.filled.connect(self._summary.step_aside)
        below = column(self._banner, self._summary, (self.grid, 1), spacing=10)
        parts = (self._strip, *self._facts_parts(theme), (below, 1), self.time_bar)
        column(*parts, on=self, margins=(16, 0, 16, 2), spacing=4)
        for card in self.cards.values():
            card.made.connect(partial(self._take_body, card))
        run.changed.connect(self._note)
        run.time.moved.connect(self._show_moment)
        run.time.arrived.connect(self._note_all)
        if closed is not None:
            self.destroyed.connect(lambda *_: closed())
        clock.subscribe(self._frame)
        self._refresh()

    @property
    def shown(self) -> RunAnswers:
        """The run at the moment that one looks at."""
        return self.run.shown

    # What the kinds of tabs differ in

    def _make_cards(self, theme: Theme) -> ArrangedGrid:
        """Every chart in its card, and the cards in their grid."""
        raise NotImplementedError

    def _curves(self, run: RunAnswers) -> Mapping[str, Curves]:
        """What the plots of curves show of a run, by card."""
        raise NotImplementedError

    def _facts_parts(self, theme: Theme) -> Sequence[Part]:
        """What stands below the strip of figures."""
        return ()

    @property
    def _busy_words(self) -> str:
        """What utilisation is of."""
        raise NotImplementedError

    def _plot(self, name: str) -> ZoomPlot | None:
        """The plot of a card, once it is made."""
        plot = self.cards[name].made_body
        return plot if isinstance(plot, ZoomPlot) else None

    @property
    def _plots(self) -> list[ZoomPlot]:
        """Those that are made."""
        return [plot for name in self.cards if (plot := self._plot(name)) is not None]

    def _stats(self) -> tuple[Stat, ...]:
        raise NotImplementedError

    def _headline(self) -> tuple[str, str, str] | None:
        """(tone, message, advice) of the banner."""
        raise NotImplementedError

    def _live_actions(self) -> list[PageAction]:
        """What one can do while it runs."""
        raise NotImplementedError

    def _ended_actions(self) -> list[PageAction]:
        """And once it is over, the most likely first."""
        raise NotImplementedError

    def _refresh_cards(self, pending: Changed) -> None:
        raise NotImplementedError

    # The tab

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), *folder_crumbs(self.run.name), tr("Dashboard")]

    def tooltip(self) -> str:
        return str(self.run.run.path)

    def tab_actions(self) -> list[PageAction]:
        if not self._can_act:
            return []
        return self._ended_actions() if self.run.is_over else self._live_actions()

    def _state_in_words(self) -> tuple[tuple[str, str, str] | None, list[PageAction]]:
        """What the banner says, and what one can do about it."""
        if self.run.time.moment is None:
            return self._headline(), self._banner_actions()
        back = [PageAction("history", tr("Back to Now"), "time.now")] if self._can_act else []
        return looking_back(self.run), back

    def _summary_actions(self) -> list[PageAction]:
        """What can be taken along; and of a completed run, which has no banner, what else can be done."""
        if not self._can_act:
            return []
        export = [PageAction("save", tr("Export Weights…"), "run.weights")]
        weights = [] if self.run.is_script or self.run.copying is not None else export
        report = PageAction("file-code", tr("Save a Report…"), "run.report")
        rest = self._ended_actions() if self.run.outcome == "completed" else []
        return [*weights, report, *rest]

    def _show_summary(self) -> None:
        run = self.run
        is_usually_open = run.outcome == "completed"
        title = tr("Completed") if is_usually_open else tr("Summary")  # how others ended is the banner's
        actions = self._summary_actions()
        report = self._ended.report if run.time.moment is None else None
        self._summary.show_report(title, report, actions, is_usually_open=is_usually_open)

    def save_state(self) -> dict[str, Any]:
        return {} if self._summary.wanted is None else {"summary": self._summary.wanted}

    def restore_state(self, state: dict[str, Any]) -> None:
        wanted = state.get("summary")
        self._summary.set_wanted(wanted if isinstance(wanted, bool) else None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._summary.fit(self.height())

    def _banner_actions(self) -> list[PageAction]:
        if self.run.ending == "stopping" and self._can_act:
            return [PageAction("debug-stop", tr("Stop Now"), "run.stopNow")]
        if self.run.standstill is not None and self._can_act:
            return [
                PageAction("file-code", tr("Go to Line"), "run.standstill"),
                PageAction("layers", tr("Show Stacks"), "run.stacks"),
                PageAction("debug-stop", tr("Stop Run"), "run.stop"),
            ]
        return self.tab_actions() if self.run.is_over else []

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._pending = ~Changed.NOTHING

    def _note_all(self) -> None:
        self._pending = ~Changed.NOTHING

    def _show_moment(self) -> None:
        """Another one is asked for: said and marked at once, the figures follow when they are read."""
        self._pending |= Changed.STATE
        self.time_bar.show_moment()
        self._mark_plots()
        self._show_summary()

    def _mark_plots(self) -> None:
        """The moment on every axis of time and of steps."""
        at_s, step = self.time_bar.marks()
        for name in self.cards:
            if (plot := self._plot(name)) is not None:
                plot.mark(at_s if isinstance(plot, BandChart) else self._step_marked(name, step))

    def _step_marked(self, _card: str, step: float | None) -> float | None:
        return step

    def _note(self, changed: Changed) -> None:
        self._pending |= changed

    def _frame(self) -> None:
        """One tick of the clock: take, then repaint what changed."""
        began_s = time.thread_time()
        self.run.drain()
        if self._pending & Changed.STATE:
            self._show_state()
        if self.isVisible():
            self._grow_old()
            is_news = bool(self._pending & Changed.STATE)  # which is said with the buttons beside the tab
            is_due = (is_news or not self._puts_off("cards", began_s)) and self._is_due()
            if is_due:
                self._refresh()
            # One plot a frame is made, or drawn, the one that waited longest: all together would make a slow
            # frame, and a click on a run has to answer at once.
            unmade = [name for name in self.grid.shown if self.cards[name].made_body is None]
            if unmade:
                self.cards[unmade[0]].make_body()
            elif is_due and not self._puts_off("plots", began_s):
                any(plot.tick() for plot in sorted(self._plots, key=lambda plot: plot.drawn_at))

    def _puts_off(self, what: str, began_s: float) -> bool:
        """Whether this frame has done its share, and leaves that to the next one: what many devices tell at
        once is taken in one frame and drawn in others. Nothing is put off twice in a row."""
        is_late = time.thread_time() - began_s > _MUCH_S and what not in self._put_off
        (self._put_off.add if is_late else self._put_off.discard)(what)
        return is_late

    def _is_due(self) -> bool:
        """What is read for the first time is drawn now and then only: a million steps come first."""
        now, is_reading = time.monotonic(), self.run.outcome is None
        if is_reading and now - self._drawn_at < _DRAWN_READING_S:
            return False
        self._drawn_at = now
        return True

    def _make_curve(self, theme: Theme, name: str, **look: Any) -> CurvePlot:
        """The plot of a card, as `_curves` names it."""
        curves, title = self._curves(self.shown.charted)[name], self.cards[name].title
        return CurvePlot(theme, *curves, name=title, along=self._along, **look)

    def _along(self, axis: str) -> tuple[Floats, Floats] | None:
        return self.shown.charted.along(axis)

    def _show_band(self) -> None:
        card = self.cards["band"]
        if isinstance(card.made_body, BandChart):
            card.made_body.set_figure(run_figures.band(self.shown))
        card.set_subtitle(*run_figures.band_subtitle(self.shown))

    def _seen_moments(self) -> run_figures.Moments | None:
        """What a person chose to see of memory over time."""
        band = self._plot("band")
        return None if band is None or band.follows else band.visible_x()

    def _show_memory(self) -> None:
        run = self.shown
        bars = run_figures.bars(run)
        self._bars.set_figure(bars)
        self.cards["bars"].set_subtitle(*run_figures.bars_subtitle(run, bars))
        self._show_band()

    def _show_heat(self) -> None:
        """The strip of utilisation shows the time that memory does."""
        self._heat.set_figure(run_figures.heat(self.shown, self._seen_moments()))
        self.cards["heat"].set_subtitle(*run_figures.heat_subtitle(self.shown, self._busy_words))

    def _take_body(self, card: ChartCard, body: object) -> None:
        self._pending = ~Changed.NOTHING
        if isinstance(body, ZoomPlot):
            body.zoom_changed.connect(partial(self._show_zoom, card, body))

    def _show_zoom(self, card: ChartCard, plot: ZoomPlot) -> None:
        words = plot.zoom_words
        card.set_note(*((words, tr("zoomed")) if words else ()))
        self._show_heat()

    def _grow_old(self) -> None:
        """Once a second what is shown is a second older, whether anything new came or not."""
        second = int(time.monotonic())
        if not self.run.is_over and second != self._aged_at:
            self._aged_at = second
            self._pending |= Changed.MEMORY | Changed.READINGS | Changed.ANATOMY

    def _keep_layout(self) -> None:
        if self._layouts is not None and self._layout_kind:
            self._layouts.keep(self._layout_kind, self.grid.layout_state())

    def _find_layout(self) -> None:
        """Once it is known which strategy this is: as a person arranged the cards of such a run before."""
        kind = SCRIPT if self.run.is_script else self.run.strategy
        if self._layouts is not None and kind and kind != self._layout_kind:
            self._layout_kind = kind
            self.grid.restore(self._layouts.of(kind))

    def _show_state(self) -> None:
        """Tab, title and buttons: they are seen even while the page is not."""
        self._find_layout()
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
        if now - self._stats_at >= _STATS_EVERY_S or pending & Changed.STATE:
            self._stats_at = now
            self._strip.set_figure(self._stats())
            self.time_bar.show_moment()
        if pending & (Changed.STATE | Changed.PROBLEMS | Changed.STEPS):
            self._banner.say(*self._state_in_words())
            self._ended.look()
        self._refresh_cards(pending)
        self._mark_plots()
        if len(self.shown.devices) != self._known_devices:
            self._known_devices = len(self.shown.devices)
            self.grid.lay_out()
        self._pending = Changed.NOTHING
