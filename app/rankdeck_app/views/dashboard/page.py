"""The dashboard of a configured run: what its directory says, drawn, thirty times a second at most.

Read run_tab.py first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rankdeck.run.batch import Changed
from rankdeck.run.row import RESUMABLE
from rankdeck_app.shell.page import PageAction
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_figures
from rankdeck_app.views.dashboard.run_tab import RunTab
from rankdeck_app.widgets.anatomy import StepAnatomyChart
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_layout import ArrangedGrid
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.heat_strip import HeatStrip
from rankdeck_app.widgets.stat_strip import Stat
from rankdeck_app.widgets.vram_bars import VramBars
from rankdeck_app.widgets.zoom_plot import ZoomPlot


class RunPage(RunTab):
    """A tab that shows a run of a configuration."""

    def _make_cards(self, theme: Theme) -> ArrangedGrid:
        """Every chart in its card, and the cards in their grid."""
        run = self.run
        self._bars, self._heat = VramBars(theme), HeatStrip(theme)
        self._anatomy = StepAnatomyChart(theme)
        self._band = BandChart(theme, "Memory over time")
        along = run.along
        self._loss = CurvePlot(
            theme, run.losses, run.loss_ema, run.held_out, name="Training loss", along=along
        )
        self._lr, self._norm = (
            CurvePlot(theme, curve, curve, name=name, words=(word, "", ""), digits=5, along=along)
            for curve, name, word in (
                (run.fold.lrs, "Learning rate", "lr"),
                (run.fold.grad_norms, "Gradient norm", "norm"),
            )
        )
        self._norm.awaited = "no gradient was clipped: train.clip_norm tells their norms"
        self._rate = CurvePlot(
            theme, run.rates, run.rate_ema, name="Throughput", words=("now", "smoothed", ""), from_zero=True,
            digits=0, along=along,
        )  # fmt: skip
        self.cards = {
            name: ChartCard(title, theme, body, partial(rows, run))
            for name, title, body, rows in (
                ("bars", "VRAM per device", self._bars, run_figures.bars_rows),
                ("anatomy", "Step anatomy", self._anatomy, run_figures.anatomy_rows),
                ("heat", "Utilisation", self._heat, run_figures.heat_rows),
                ("band", "VRAM over time", self._band, run_figures.band_rows),
                ("loss", "Training loss", self._loss, run_figures.loss_rows),
                ("rate", "Throughput", self._rate, run_figures.rate_rows),
                ("lr", "Learning rate", self._lr, run_figures.lr_rows),
                ("norm", "Gradient norm", self._norm, run_figures.norm_rows),
            )
        }
        return ArrangedGrid(self.cards, devices=("bars", "anatomy", "heat"), optional=("lr", "norm"))

    def _plots(self) -> Sequence[ZoomPlot]:
        return (self._band, self._loss, self._rate, self._lr, self._norm)

    def _stats(self) -> tuple[Stat, ...]:
        return run_figures.stats(self.run)

    def _headline(self) -> tuple[str, str, str] | None:
        return run_figures.headline(self.run)

    def _live_actions(self) -> list[PageAction]:
        save = PageAction("save", "Save a checkpoint now", "run.checkpoint")
        return [save, PageAction("debug-stop", "Stop this run", "run.stop")]

    def _ended_actions(self) -> list[PageAction]:
        resume = PageAction("debug-continue", "Resume", "run.resume")
        again = PageAction("debug-rerun", "Run Again", "run.again")
        compare = PageAction("git-compare", "Compare", "run.compare")
        return [resume, again, compare] if self.run.outcome in RESUMABLE else [again, compare]

    def _refresh_cards(self, pending: Changed) -> None:
        run = self.run
        if pending & (Changed.STATE | Changed.EVALUATION):
            self._show_devices()
        if pending & (Changed.MEMORY | Changed.STATE | Changed.READINGS):
            self._show_memory(pending)
        if pending & (Changed.READINGS | Changed.STATE):
            self._show_heat()
        if pending & (Changed.ANATOMY | Changed.STATE):
            self._anatomy.set_figure(run_figures.anatomy(run))
            self.cards["anatomy"].set_subtitle(*run_figures.anatomy_subtitle(run))
        if pending & (Changed.STEPS | Changed.STATE | Changed.EVALUATION):
            for plot in (self._loss, self._rate, self._lr, self._norm):
                plot.set_last_step(run.steps)
                plot.request_draw()

    def _show_memory(self, pending: Changed) -> None:
        run = self.run
        bars, band = run_figures.bars(run), run_figures.band(run)
        if pending & (Changed.MEMORY | Changed.STATE):
            self._bars.set_figure(bars)
        self.cards["bars"].set_subtitle(*run_figures.bars_subtitle(run, bars))
        self._band.set_figure(band)
        self.cards["band"].set_subtitle(*run_figures.band_subtitle(run))

    def _show_heat(self) -> None:
        """Of the time that memory is shown of, also where a person zooms there."""
        seen = None if self._band.follows else self._band.visible_x()
        self._heat.set_figure(run_figures.heat(self.run, seen))
        what = "thread busy" if self.run.is_rehearsal else "% SM"
        self.cards["heat"].set_subtitle(*run_figures.heat_subtitle(self.run, what))

    def _show_devices(self) -> None:
        """What the figures are, and room for as many devices as there are."""
        run = self.run
        of_memory, of_others = run_figures.sources(run)
        for name, card in self.cards.items():
            card.set_source(*(of_memory if name in ("bars", "band") else of_others))
        held_out = ("raw and EMA, ◆ held-out", "EMA, ◆ held-out")
        self.cards["loss"].set_subtitle(*(held_out if len(run.held_out) else ("raw and EMA",)))
        self.cards["rate"].set_subtitle(*run_figures.rate_subtitle(run))
