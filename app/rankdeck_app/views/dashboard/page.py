"""The dashboard of one run: what its directory says, drawn, thirty times a second at most.

The frame clock drives it. Every frame takes what the reader thread has (at most 4 ms of it), and then
repaints only the cards whose figures changed, and only while somebody can see them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtGui import QShowEvent

from rankdeck.run.batch import Changed
from rankdeck.run.row import RESUMABLE
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_figures
from rankdeck_app.views.dashboard.banner import Banner
from rankdeck_app.views.dashboard.card_grid import CardGrid
from rankdeck_app.widgets.anatomy import StepAnatomyChart
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.heat_strip import HeatStrip
from rankdeck_app.widgets.layouts import column
from rankdeck_app.widgets.stat_strip import StatStrip
from rankdeck_app.widgets.vram_bars import VramBars

PAGE_KIND = "run"
# Figures that change faster cannot be read.
_STATS_EVERY_S = 0.25

_STATE_COLORS = {
    "running": "rankdeck.rest",
    "completed": "rankdeck.ok",
    "failed": "errorForeground",
    "lost": "errorForeground",
}


def page_id(run: Path) -> str:
    return f"{PAGE_KIND}:{run}"


class RunPage(Page):
    """A tab that shows a run. It does not own the run: `closed` is called once when the tab is gone."""

    def __init__(
        self,
        run: LiveRun,
        theme: Theme,
        clock: FrameClock,
        *,
        stop_command: str | None = None,
        save_command: str | None = None,
        resume_command: str | None = None,
        closed: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(page_id(run.run.path), title=run.name, icon="pulse")
        self.run = run
        self._live_actions = [
            PageAction(icon, text, command)
            for icon, text, command in (
                ("save", "Save a checkpoint now", save_command),
                ("debug-stop", "Stop this run", stop_command),
            )
            if command is not None
        ]
        self._resume_command = resume_command
        self._shown_actions: list[PageAction] = []
        self._pending = ~Changed.NOTHING
        self._stats_at = 0.0
        self._known_devices = 0
        self._strip = StatStrip(theme)
        self._banner = Banner(theme)
        self._make_charts(theme)
        parts = (self._strip, self._banner, (self._grid, 1))
        column(*parts, on=self, margins=(16, 2, 16, 12), spacing=10)
        run.changed.connect(self._note)
        if closed is not None:
            self.destroyed.connect(lambda *_: closed())
        clock.subscribe(self._frame)
        self._refresh()

    def _make_charts(self, theme: Theme) -> None:
        """Every chart in its card, and the cards in their grid."""
        run = self.run
        self._bars, self._heat = VramBars(theme), HeatStrip(theme)
        self._anatomy = StepAnatomyChart(theme)
        self._band = BandChart(theme, "Memory over time")
        self._loss = CurvePlot(theme, run.losses, run.loss_ema, run.held_out, name="Training loss")
        self._rate = CurvePlot(
            theme, run.rates, run.rate_ema, name="Throughput", words=("now", "smoothed", ""), from_zero=True,
            digits=0,
        )  # fmt: skip
        self.cards = {
            name: ChartCard(title, theme, body, partial(rows, run))
            for name, title, body, rows in (
                ("bars", "VRAM per device", self._bars, run_figures.bars_rows),
                ("band", "VRAM over time", self._band, run_figures.band_rows),
                ("heat", "Utilisation", self._heat, run_figures.heat_rows),
                ("anatomy", "Step anatomy", self._anatomy, run_figures.anatomy_rows),
                ("loss", "Training loss", self._loss, run_figures.loss_rows),
                ("rate", "Throughput", self._rate, run_figures.rate_rows),
            )
        }
        above = [self.cards[name] for name in ("bars", "band", "heat")]
        below = [self.cards[name] for name in ("anatomy", "loss", "rate")]
        self._grid = CardGrid(above, below, ((44, 28, 28), (45, 29, 26)))

    def breadcrumbs(self) -> list[str]:
        name = self.run.name
        stamp, _, rest = name.partition("-")
        if len(stamp) != 8 or not stamp.isdigit():
            return ["runs", name, "Dashboard"]
        return ["runs", f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:]}", rest.partition("-")[2] or rest, "Dashboard"]

    def tooltip(self) -> str:
        return str(self.run.run.path)

    def tab_actions(self) -> list[PageAction]:
        if self.run.is_live:
            return list(self._live_actions)
        if self._resume_command is None or self.run.outcome not in RESUMABLE:
            return []
        return [PageAction("debug-continue", "Resume this run", self._resume_command)]

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._pending = ~Changed.NOTHING

    def _note(self, changed: Changed) -> None:
        self._pending |= changed

    def _frame(self) -> None:
        """One tick of the clock: take, then repaint what changed."""
        self.run.drain()
        if self._pending & Changed.STATE:
            self._show_state()
        if self.isVisible():
            self._refresh()
            # One plot a frame, the one that waited longest: all three together would make a slow one.
            plots = (self._band, self._loss, self._rate)
            any(plot.tick() for plot in sorted(plots, key=lambda plot: plot.drawn_at))

    def _show_state(self) -> None:
        """Tab, title and buttons: they are seen even while the page is not."""
        config = self.run.config
        color = _STATE_COLORS.get(self.run.outcome or "running", "descriptionForeground")
        title = config.name if config is not None else self.run.name
        if (title, color) != (self.title, self.icon_color):
            self.set_title(title, icon_color=color)
        if (actions := self.tab_actions()) != self._shown_actions:
            self._shown_actions = actions
            self.actions_changed.emit()

    def _refresh(self) -> None:
        run, pending = self.run, self._pending
        now = time.monotonic()
        if now - self._stats_at >= _STATS_EVERY_S or pending & Changed.STATE:
            self._stats_at = now
            self._strip.set_figure(run_figures.stats(run))
        if pending & (Changed.STATE | Changed.PROBLEMS | Changed.STEPS):
            self._banner.say(run_figures.headline(run))
        if pending & (Changed.STATE | Changed.EVALUATION):
            self._show_devices()
        if pending & (Changed.MEMORY | Changed.STATE | Changed.READINGS):
            self._show_memory(pending)
        if pending & (Changed.READINGS | Changed.STATE):
            self._heat.set_figure(run_figures.heat(run))
        if pending & (Changed.ANATOMY | Changed.STATE):
            self._anatomy.set_figure(run_figures.anatomy(run))
            self.cards["anatomy"].set_subtitle(*run_figures.anatomy_subtitle(run))
        if pending & (Changed.STEPS | Changed.STATE | Changed.EVALUATION):
            for plot in (self._loss, self._rate):
                plot.set_last_step(run.steps)
                plot.request_draw()
        if len(run.devices) != self._known_devices:
            self._known_devices = len(run.devices)
            self._grid.lay_out()
        self._pending = Changed.NOTHING

    def _show_memory(self, pending: Changed) -> None:
        run = self.run
        bars, band = run_figures.bars(run), run_figures.band(run)
        if pending & (Changed.MEMORY | Changed.STATE):
            self._bars.set_figure(bars)
            self.cards["bars"].set_subtitle(run_figures.bars_subtitle(run, bars))
        self._band.set_figure(band)
        self.cards["band"].set_subtitle(run_figures.band_subtitle(band, bars))

    def _show_devices(self) -> None:
        """What the figures are, and room for as many devices as there are."""
        run = self.run
        of_memory, of_others = run_figures.sources(run)
        for name, card in self.cards.items():
            card.set_source(*(of_memory if name in ("bars", "band") else of_others))
        what = "thread busy" if run.is_rehearsal else "% SM"
        self.cards["heat"].set_subtitle(f"{what}, last 60 s", what)
        held_out = ("raw and EMA, ◆ held-out", "EMA, ◆ held-out")
        self.cards["loss"].set_subtitle(*(held_out if len(run.held_out) else ("raw and EMA",)))
        self.cards["rate"].set_subtitle(*run_figures.rate_subtitle(run))
