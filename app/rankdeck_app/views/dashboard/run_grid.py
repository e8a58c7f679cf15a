"""The grid of a run's cards. A card appears once it has data; for a configured run, the cards that will get
data are shown from the start.

A refresh repaints the cards whose data changed. run_chart_data.py and run_curves.py build the cards' data,
run_csv.py their exports; page.py schedules the refreshes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from rankdeck.run.batch import RunChange
from rankdeck.run.series import Floats
from rankdeck_app.language import tr
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.run_view import RunView
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_chart_data, run_csv, run_curves
from rankdeck_app.views.dashboard.logged_card import LoggedCard
from rankdeck_app.widgets.anatomy import StepAnatomyChart
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_export import CsvRow, CsvRowBlock
from rankdeck_app.widgets.card_layout import ArrangeableGrid
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.heat_strip import HeatStrip
from rankdeck_app.widgets.vram_bars import VramBars
from rankdeck_app.widgets.zoom_plot import ZoomPlot

RunCsvRows = Callable[[RunView], Iterable[CsvRow | CsvRowBlock]]


class RunGrid(ArrangeableGrid):
    """The cards of a run. `body_created` is emitted when a card gets its chart, which stays empty until the
    next refresh."""

    body_created = Signal()

    def __init__(self, run: LiveRun, theme: Theme) -> None:
        self._run = run
        self.bars, self.heat, self.anatomy = VramBars(theme), HeatStrip(theme), StepAnatomyChart(theme)
        cards = self._make_cards(theme)
        self.logged_card = LoggedCard(theme, lambda: self._run.viewed, cards["loss"], self._show_loss)
        devices = ("bars", "anatomy", "heat")
        super().__init__({**cards, "metrics": self.logged_card}, devices=devices, optional=("lr", "norm"))
        for card in self.cards.values():
            card.body_built.connect(partial(self._on_body_created, card))
        # Which cards a run has is known only once its configuration is read.
        self.show_only(())

    def _make_cards(self, theme: Theme) -> dict[str, ChartCard]:
        # Makes factories, because create_next_chart creates the charts later.
        curve = partial(partial, self._make_curve, theme)
        bodies: dict[str, tuple[str, QWidget | Callable[[], QWidget], RunCsvRows]] = {
            "bars": ("", self.bars, run_csv.bars_rows),
            "anatomy": (tr("Step anatomy"), self.anatomy, run_csv.anatomy_rows),
            "heat": (tr("Utilisation"), self.heat, run_csv.heat_rows),
            "band": ("", lambda: BandChart(theme, tr("Memory over time")), run_csv.band_rows),
            "loss": (tr("Training loss"), curve("loss"), run_csv.loss_rows),
            "rate": (tr("Throughput"), curve("rate", from_zero=True), run_csv.rate_rows),
            "wait": (tr("Loader wait"), curve("wait", from_zero=True, scale=100.0), run_csv.wait_rows),
            "lr": (tr("Learning rate"), curve("lr"), run_csv.lr_rows),
            "norm": (tr("Gradient norm"), curve("norm"), run_csv.norm_rows),
        }
        return {
            name: ChartCard(title, theme, body, partial(self._csv_rows, rows))
            for name, (title, body, rows) in bodies.items()
        }

    def _make_curve(self, theme: Theme, name: str, **options: Any) -> CurvePlot:
        data, title = run_curves.curves(self.viewed_run.charted_run)[name], self.cards[name].title
        options |= {"legend": data.legend, "digits": data.digits, "axis_positions": self._x_values}
        return CurvePlot(theme, *data.series, name=title, **options)

    def _x_values(self, axis: str) -> tuple[Floats, Floats] | None:
        return self.viewed_run.charted_run.axis_positions(axis)

    def _csv_rows(self, rows: RunCsvRows) -> Iterable[CsvRow | CsvRowBlock]:
        return rows(self.viewed_run)

    @property
    def viewed_run(self) -> RunView:
        """The run at the viewed time."""
        return self._run.viewed

    def plot(self, name: str) -> ZoomPlot | None:
        """Return a card's plot; None if the plot has not been created yet."""
        plot = self.cards[name].built_body
        return plot if isinstance(plot, ZoomPlot) else None

    def create_next_chart(self) -> bool:
        """Create the chart of one visible card that does not have one yet. Return whether there was such a
        card."""
        unmade = [name for name in self.visible_names if self.cards[name].built_body is None]
        if unmade:
            self.cards[unmade[0]].build_body()
        return bool(unmade)

    def draw_next_plot(self) -> None:
        """Draw the plot that was drawn least recently among the plots that are due."""
        # One plot per frame, the longest waiting first: with 300,000 points p99 is 17.5 ms instead of 23, p50
        # 5.9 instead of 4.0.
        plots = [plot for name in self.cards if (plot := self.plot(name)) is not None]
        # any() stops at the first plot that draws.
        any(plot.tick() for plot in sorted(plots, key=lambda plot: plot.last_drawn_s))

    def mark(self, at_s: float | None, step: float | None) -> None:
        """Mark the viewed time on the axes of all plots, as a time or as a step."""
        for name in self.cards:
            if (plot := self.plot(name)) is not None:
                plot.set_mark(at_s if isinstance(plot, BandChart) else self._marked_step(name, step))

    def _marked_step(self, card: str, step: float | None) -> float | None:
        """Return the step to mark; None for a script's logged metrics, which have their own step count."""
        is_own_count = card == "loss" and self.logged_card.is_enlarged and not self._run.is_planned
        return None if is_own_count else step

    # Refreshing changed cards

    def refresh(self, pending: RunChange) -> None:
        run = self.viewed_run
        if pending & (RunChange.STATE | RunChange.EVALUATION | RunChange.MEMORY):
            self._show_titles()
        if pending & (RunChange.MEMORY | RunChange.STATE | RunChange.READINGS):
            self._show_memory()
        if pending & (RunChange.READINGS | RunChange.STATE):
            self._show_heat()
        if pending & (RunChange.ANATOMY | RunChange.STATE):
            self.anatomy.set_data(run_chart_data.anatomy(run))
            self.cards["anatomy"].set_subtitle(*run_chart_data.anatomy_subtitle(run))
        if pending & (RunChange.STEPS | RunChange.STATE | RunChange.EVALUATION):
            self._show_curves(with_loss=not self.logged_card.is_enlarged)
        if self.logged_card.refresh_if_due(pending) or pending:
            self.show_only(
                run_chart_data.visible_cards(run) | ({"metrics"} if self.logged_card.has_curves else set())
            )

    def _show_titles(self) -> None:
        """Set the cards' titles and data sources."""
        run = self.viewed_run
        for name, title in run_chart_data.card_titles(run).items():
            self.cards[name].set_title(title)
        of_memory, of_others = run_chart_data.card_sources(run)
        for name, card in self.cards.items():
            card.set_source(*(of_memory if name in ("bars", "band") else of_others))

    def _show_curves(self, *, with_loss: bool) -> None:
        run = self.viewed_run
        for name, data in run_curves.curves(run.charted_run).items():
            # A card without a chart gets its data later: `body_created` marks everything as changed.
            if not isinstance(plot := self.plot(name), CurvePlot):
                continue
            plot.empty_text = run_curves.empty_reason(run, name)
            if name != "loss" or with_loss:
                plot.set_curves(*data.series, legend=data.legend, digits=data.digits)
            plot.set_last_step(run.num_steps)
            plot.request_draw()
        if with_loss:
            self.cards["loss"].set_subtitle(*run_curves.loss_subtitle(run))
        self.cards["rate"].set_subtitle(*run_curves.rate_subtitle(run))
        self.cards["wait"].set_subtitle(run_curves.wait_subtitle(run))

    def _show_loss(self) -> None:
        """Show the loss again in the loss card, in place of a logged curve."""
        self.cards["loss"].set_title(tr("Training loss"))
        self._show_curves(with_loss=True)

    def _show_band(self) -> None:
        card = self.cards["band"]
        if isinstance(card.built_body, BandChart):
            card.built_body.set_data(run_chart_data.band(self.viewed_run))
        card.set_subtitle(*run_chart_data.band_subtitle(self.viewed_run))

    def _visible_time_range(self) -> run_chart_data.TimeRange | None:
        """Return the range to which the user zoomed the chart of memory over time; None if not zoomed."""
        band = self.plot("band")
        return None if band is None or band.is_following else band.visible_x()

    def _show_memory(self) -> None:
        run = self.viewed_run
        bars = run_chart_data.bars(run)
        self.bars.set_data(bars)
        self.cards["bars"].set_subtitle(*run_chart_data.bars_subtitle(run, bars))
        self._show_band()

    def _show_heat(self) -> None:
        """Show utilisation over the time range that the memory chart shows."""
        run = self.viewed_run
        self.heat.set_data(run_chart_data.heat(run, self._visible_time_range()))
        self.cards["heat"].set_subtitle(*run_chart_data.heat_subtitle(run))

    def _on_body_created(self, card: ChartCard, body: object) -> None:
        self.body_created.emit()
        if isinstance(body, ZoomPlot):
            body.zoom_changed.connect(partial(self._show_zoom, card, body))

    def _show_zoom(self, card: ChartCard, plot: ZoomPlot) -> None:
        zoom_text = plot.zoom_text
        card.set_note(*((zoom_text, tr("zoomed")) if zoom_text else ()))
        self._show_heat()
