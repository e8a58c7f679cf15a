"""The dashboard of a person's own script: its loss, what it logs itself, its pace, and what its devices hold.

Nobody knows beforehand what a script will tell: cards come when there is something on them. There is no plan,
no step anatomy and no end in sight. Read run_tab.py first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from PySide6.QtWidgets import QWidget

from rankdeck.run.batch import Changed
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import PageAction
from rankdeck_app.state.card_layouts import CardLayouts
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_figures, script_figures
from rankdeck_app.views.dashboard.run_tab import RunTab
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_layout import ArrangedGrid
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.facts_line import FactsLine
from rankdeck_app.widgets.heat_strip import HeatStrip
from rankdeck_app.widgets.layouts import Part, scrolled
from rankdeck_app.widgets.metric_curves import MetricCurves
from rankdeck_app.widgets.stat_strip import Stat
from rankdeck_app.widgets.vram_bars import VramBars
from rankdeck_app.widgets.zoom_plot import ZoomPlot

_METRICS_EVERY_S = 0.5
_PACE_WORDS = ("now", "smoothed", "")
_LOSS_WORDS = ("sampled", "EMA", "")


class ScriptPage(RunTab):
    """A tab that shows a run of a script."""

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
        self._metrics_at, self._has_news = 0.0, False
        super().__init__(run, theme, clock, run_command=run_command, closed=closed, layouts=layouts)

    def _make_cards(self, theme: Theme) -> ArrangedGrid:
        run, script = self.run, self.run.fold.script
        self._bars, self._heat = VramBars(theme), HeatStrip(theme)
        self._band = BandChart(theme, "Memory over time")
        self._metrics = MetricCurves(theme)
        self._metrics.chosen.connect(self._show_large)
        self._loss = CurvePlot(
            theme, run.losses, run.loss_ema, name="Training loss", words=_LOSS_WORDS, along=run.along
        )
        self._rate = CurvePlot(
            theme, script.step_rates, script.step_rate_ema, name="Throughput", words=_PACE_WORDS,
            from_zero=True, digits=2, along=run.along,
        )  # fmt: skip
        self._wait = CurvePlot(
            theme, script.waits, script.waits, name="Loader wait", words=("%", "", ""), from_zero=True,
            digits=1, scale=100.0, along=run.along,
        )  # fmt: skip
        self._lr, self._norm = (
            CurvePlot(theme, curve, curve, name=name, words=(word, "", ""), digits=5, along=run.along)
            for curve, name, word in (
                (run.fold.lrs, "Learning rate", "lr"), (script.grad_norms, "Gradient norm", "norm"),
            )
        )  # fmt: skip
        bodies: dict[str, tuple[str, QWidget]] = {
            "loss": ("Training loss", self._loss),
            "bars": ("Memory per device", self._bars),
            "metrics": ("Logged by the script", scrolled(self._metrics)),
            "band": ("Memory over time", self._band),
            "rate": ("Throughput", self._rate),
            "wait": ("Loader wait", self._wait),
            "heat": ("Utilisation", self._heat),
            "lr": ("Learning rate", self._lr),
            "norm": ("Gradient norm", self._norm),
        }
        for name, (title, body) in bodies.items():
            self.cards[name] = ChartCard(title, theme, body, script_figures.rows_of(run, name))
        return ArrangedGrid(self.cards, devices=("bars", "heat"), optional=("lr", "norm"))

    def _parts(self, theme: Theme) -> Sequence[Part]:
        self._facts = FactsLine(theme, "What runs")
        return (self._strip, self._facts, self._banner, (self.grid, 1))

    def _plots(self) -> Sequence[ZoomPlot]:
        return (self._loss, self._rate, self._wait, self._band, self._lr, self._norm)

    def _stats(self) -> tuple[Stat, ...]:
        return script_figures.stats(self.run)

    def _headline(self) -> tuple[str, str, str] | None:
        return script_figures.headline(self.run)

    def _live_actions(self) -> list[PageAction]:
        return [PageAction("debug-stop", "Stop this run", "run.stop")]

    def _ended_actions(self) -> list[PageAction]:
        compare = PageAction("git-compare", "Compare", "run.compare")
        return [PageAction("debug-rerun", "Run Again", "run.again"), compare]

    def _refresh_cards(self, pending: Changed) -> None:
        run = self.run
        if pending & (Changed.STATE | Changed.MEMORY):
            self._show_state_of_cards()
        if pending & (Changed.MEMORY | Changed.STATE | Changed.READINGS):
            self._show_memory()
        if pending & (Changed.READINGS | Changed.STATE):
            self._show_heat()
        if pending & (Changed.STEPS | Changed.STATE):
            self._show_curves()
        if self._show_metrics(pending) or pending:
            shown = script_figures.shown_cards(run)
            if self._metrics.figure.curves:
                shown.add("metrics")
            self.grid.show_only(shown)

    def _show_state_of_cards(self) -> None:
        run = self.run
        self._facts.set_figure(script_figures.facts(run))
        for name in ("bars", "band"):
            self.cards[name].set_source(run.source or "")

    def _show_memory(self) -> None:
        run = self.run
        bars, band = run_figures.bars(run), run_figures.band(run)
        self._bars.set_figure(bars)
        self.cards["bars"].set_subtitle(*run_figures.bars_subtitle(run, bars))
        self._band.set_figure(band)
        self.cards["band"].set_subtitle(*run_figures.band_subtitle(run))

    def _show_heat(self) -> None:
        seen = None if self._band.follows else self._band.visible_x()
        self._heat.set_figure(run_figures.heat(self.run, seen))
        what = "% SM" if self.run.has_gpus else "CPU busy"
        self.cards["heat"].set_subtitle(*run_figures.heat_subtitle(self.run, what))

    def _show_curves(self) -> None:
        """Loss, pace and waiting; samples instead of steps once they are seen."""
        run, script = self.run, self.run.fold.script
        self._loss.awaited = script_figures.absence(run, "loss")
        self._rate.awaited = script_figures.absence(run)
        if run.samples_per_s is not None:
            self._rate.set_curves(run.rates, run.rate_ema, 0, _PACE_WORDS)
        else:
            self._rate.set_curves(script.step_rates, script.step_rate_ema, 2, _PACE_WORDS)
        if not self._metrics.selected:
            self.cards["loss"].set_subtitle(*script_figures.loss_subtitle(run))
        self.cards["rate"].set_subtitle(script_figures.rate_subtitle(run))
        self.cards["wait"].set_subtitle(script_figures.wait_subtitle(run))
        for plot in (self._loss, self._rate, self._wait, self._lr, self._norm):
            plot.request_draw()

    def _show_large(self, name: str) -> None:
        """A curve that the script logs in the place of the loss; "" brings the loss back."""
        run, card = self.run, self.cards["loss"]
        metric = run.fold.metrics.get(name)
        if metric is None:
            card.set_title("Training loss")
            card.set_subtitle(*script_figures.loss_subtitle(run))
            self._loss.set_curves(run.losses, run.loss_ema, 4, _LOSS_WORDS)
        else:
            card.set_title(name)
            card.set_subtitle(f"logged through {metric.through}; Escape for the loss", "logged")
            self._loss.set_curves(metric.curve, metric.curve, 4, ("value", "", ""))
        self._loss.follow()

    def _show_metrics(self, pending: Changed) -> bool:
        """At most twice a second, there may be hundreds of them; whether they were shown anew."""
        now = time.monotonic()
        self._has_news = self._has_news or bool(pending & (Changed.METRICS | Changed.STATE))
        if not self._has_news or now - self._metrics_at < _METRICS_EVERY_S:
            return False
        self._metrics_at, self._has_news = now, False
        self._metrics.set_figure(script_figures.metrics(self.run))
        self.cards["metrics"].set_subtitle(script_figures.metrics_subtitle(self.run))
        if self._metrics.selected:
            self._loss.request_draw()
        return True
