"""The cards of a run, in their grid. A card appears once its figures do; those that a configuration promises
have their places before.

A refresh repaints the cards whose figures changed. run_figures.py and run_curves.py make what they show,
run_rows.py what they are exported as; page.py says when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from rankdeck.run.batch import Changed
from rankdeck.run.series import Floats
from rankdeck_app.language import tr
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_curves, run_figures, run_rows
from rankdeck_app.views.dashboard.logged_card import LoggedCard
from rankdeck_app.widgets.anatomy import StepAnatomyChart
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_files import ManyRows, Row
from rankdeck_app.widgets.card_layout import ArrangedGrid
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.heat_strip import HeatStrip
from rankdeck_app.widgets.vram_bars import VramBars
from rankdeck_app.widgets.zoom_plot import ZoomPlot

RunRows = Callable[[RunAnswers], Iterable[Row | ManyRows]]


class RunGrid(ArrangedGrid):
    """`body_made`: a card has its chart now, which shows nothing until the next refresh."""

    body_made = Signal()

    def __init__(self, run: LiveRun, theme: Theme) -> None:
        self._run = run
        self.bars, self.heat, self.anatomy = VramBars(theme), HeatStrip(theme), StepAnatomyChart(theme)
        cards = self._make_cards(theme)
        self.logged = LoggedCard(theme, lambda: self._run.shown, cards["loss"], self._show_loss)
        devices = ("bars", "anatomy", "heat")
        super().__init__({**cards, "metrics": self.logged}, devices=devices, optional=("lr", "norm"))
        for card in self.cards.values():
            card.made.connect(partial(self._take_body, card))
        self.show_only(())

    def _make_cards(self, theme: Theme) -> dict[str, ChartCard]:
        curve = partial(partial, self._make_curve, theme)
        bodies: dict[str, tuple[str, QWidget | Callable[[], QWidget], RunRows]] = {
            "bars": ("", self.bars, run_rows.bars_rows),
            "anatomy": (tr("Step anatomy"), self.anatomy, run_rows.anatomy_rows),
            "heat": (tr("Utilisation"), self.heat, run_rows.heat_rows),
            "band": ("", lambda: BandChart(theme, tr("Memory over time")), run_rows.band_rows),
            "loss": (tr("Training loss"), curve("loss"), run_rows.loss_rows),
            "rate": (tr("Throughput"), curve("rate", from_zero=True), run_rows.rate_rows),
            "wait": (tr("Loader wait"), curve("wait", from_zero=True, scale=100.0), run_rows.wait_rows),
            "lr": (tr("Learning rate"), curve("lr"), run_rows.lr_rows),
            "norm": (tr("Gradient norm"), curve("norm"), run_rows.norm_rows),
        }
        return {
            name: ChartCard(title, theme, body, partial(self._csv, rows))
            for name, (title, body, rows) in bodies.items()
        }

    def _make_curve(self, theme: Theme, name: str, **look: Any) -> CurvePlot:
        figure, title = run_curves.curves(self.shown_run.charted)[name], self.cards[name].title
        look |= {"words": figure.words, "digits": figure.digits, "along": self._along}
        return CurvePlot(theme, *figure.series, name=title, **look)

    def _along(self, axis: str) -> tuple[Floats, Floats] | None:
        return self.shown_run.charted.along(axis)

    def _csv(self, rows: RunRows) -> Iterable[Row | ManyRows]:
        return rows(self.shown_run)

    @property
    def shown_run(self) -> RunAnswers:
        """The run at the moment that one looks at."""
        return self._run.shown

    def plot(self, name: str) -> ZoomPlot | None:
        """The plot of a card, once it is made."""
        plot = self.cards[name].made_body
        return plot if isinstance(plot, ZoomPlot) else None

    def make_next(self) -> bool:
        """Make the chart of one card that is shown and has none yet; whether there was one."""
        unmade = [name for name in self.shown if self.cards[name].made_body is None]
        if unmade:
            self.cards[unmade[0]].make_body()
        return bool(unmade)

    def draw_next(self) -> None:
        """Draw the plot that waited longest, of those that want to be drawn."""
        plots = [plot for name in self.cards if (plot := self.plot(name)) is not None]
        any(plot.tick() for plot in sorted(plots, key=lambda plot: plot.drawn_at))

    def mark(self, at_s: float | None, step: float | None) -> None:
        """The moment that one looks at, on every axis of time and of steps."""
        for name in self.cards:
            if (plot := self.plot(name)) is not None:
                plot.mark(at_s if isinstance(plot, BandChart) else self._step_marked(name, step))

    def _step_marked(self, card: str, step: float | None) -> float | None:
        """What a script logs stands over its own count of steps."""
        is_own_count = card == "loss" and self.logged.is_large and not self._run.is_planned
        return None if is_own_count else step

    # What changed is shown

    def refresh(self, pending: Changed) -> None:
        run = self.shown_run
        if pending & (Changed.STATE | Changed.EVALUATION | Changed.MEMORY):
            self._show_words()
        if pending & (Changed.MEMORY | Changed.STATE | Changed.READINGS):
            self._show_memory()
        if pending & (Changed.READINGS | Changed.STATE):
            self._show_heat()
        if pending & (Changed.ANATOMY | Changed.STATE):
            self.anatomy.set_figure(run_figures.anatomy(run))
            self.cards["anatomy"].set_subtitle(*run_figures.anatomy_subtitle(run))
        if pending & (Changed.STEPS | Changed.STATE | Changed.EVALUATION):
            self._show_curves(with_loss=not self.logged.is_large)
        if self.logged.take(pending) or pending:
            self.show_only(run_figures.shown_cards(run) | ({"metrics"} if self.logged.is_filled else set()))

    def _show_words(self) -> None:
        """What the cards are called, and what their figures are."""
        run = self.shown_run
        for name, title in run_figures.titles(run).items():
            self.cards[name].set_title(title)
        of_memory, of_others = run_figures.sources(run)
        for name, card in self.cards.items():
            card.set_source(*(of_memory if name in ("bars", "band") else of_others))

    def _show_curves(self, *, with_loss: bool) -> None:
        run = self.shown_run
        for name, figure in run_curves.curves(run.charted).items():
            if not isinstance(plot := self.plot(name), CurvePlot):
                continue
            plot.awaited = run_curves.awaited(run, name)
            if name != "loss" or with_loss:
                plot.set_curves(*figure.series, words=figure.words, digits=figure.digits)
            plot.set_last_step(run.steps)
            plot.request_draw()
        if with_loss:
            self.cards["loss"].set_subtitle(*run_curves.loss_subtitle(run))
        self.cards["rate"].set_subtitle(*run_curves.rate_subtitle(run))
        self.cards["wait"].set_subtitle(run_curves.wait_subtitle(run))

    def _show_loss(self) -> None:
        """After a curve that was logged stood in its place."""
        self.cards["loss"].set_title(tr("Training loss"))
        self._show_curves(with_loss=True)

    def _show_band(self) -> None:
        card = self.cards["band"]
        if isinstance(card.made_body, BandChart):
            card.made_body.set_figure(run_figures.band(self.shown_run))
        card.set_subtitle(*run_figures.band_subtitle(self.shown_run))

    def _seen_moments(self) -> run_figures.Moments | None:
        """What a person chose to see of memory over time."""
        band = self.plot("band")
        return None if band is None or band.follows else band.visible_x()

    def _show_memory(self) -> None:
        run = self.shown_run
        bars = run_figures.bars(run)
        self.bars.set_figure(bars)
        self.cards["bars"].set_subtitle(*run_figures.bars_subtitle(run, bars))
        self._show_band()

    def _show_heat(self) -> None:
        """The strip of utilisation shows the time that memory does."""
        run = self.shown_run
        self.heat.set_figure(run_figures.heat(run, self._seen_moments()))
        self.cards["heat"].set_subtitle(*run_figures.heat_subtitle(run))

    def _take_body(self, card: ChartCard, body: object) -> None:
        self.body_made.emit()
        if isinstance(body, ZoomPlot):
            body.zoom_changed.connect(partial(self._show_zoom, card, body))

    def _show_zoom(self, card: ChartCard, plot: ZoomPlot) -> None:
        words = plot.zoom_words
        card.set_note(*((words, tr("zoomed")) if words else ()))
        self._show_heat()
