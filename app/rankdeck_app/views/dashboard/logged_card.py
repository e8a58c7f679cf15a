"""The card of what a run logs itself: a small curve for each name, of which one can be shown large where the
loss stands. A script logs through its libraries or `rankdeck.log`, a configured run's own model through the
latter.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rankdeck.base.phrases import marked
from rankdeck.run.batch import Changed
from rankdeck_app.language import tr
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_curves, run_rows
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.layouts import scrolled
from rankdeck_app.widgets.metric_curves import MetricCurves

_EVERY_S = 0.5


class LoggedCard(ChartCard):
    """Of the run that `shown` answers for. `loss` is the card of the loss; `bring_back` shows it again."""

    def __init__(
        self,
        theme: Theme,
        shown: Callable[[], RunAnswers],
        loss: ChartCard,
        bring_back: Callable[[], object],
    ) -> None:
        self.curves = MetricCurves(theme)
        self._scroll = scrolled(self.curves, "")
        super().__init__("", theme, self._scroll, lambda: run_rows.metrics_rows(shown()))
        self._shown, self._loss, self._bring_back = shown, loss, bring_back
        self._shown_at, self._has_news = 0.0, False
        self.curves.chosen.connect(self._show_large)

    def set_title(self, text: str) -> None:
        super().set_title(text)
        self._scroll.setAccessibleName(text)

    @property
    def is_filled(self) -> bool:
        return bool(self.curves.figure.curves)

    @property
    def is_large(self) -> bool:
        """Whether a curve stands in the place of the loss."""
        return bool(self.curves.selected)

    def take(self, pending: Changed) -> bool:
        """At most twice a second, there may be hundreds of curves; whether they were shown anew."""
        now = time.monotonic()
        self._has_news = self._has_news or bool(pending & (Changed.METRICS | Changed.STATE))
        if not self._has_news or now - self._shown_at < _EVERY_S:
            return False
        self._shown_at, self._has_news = now, False
        self.curves.set_figure(run_curves.metrics(self._shown()))
        self.set_subtitle(run_curves.metrics_subtitle(self._shown()))
        if self.is_large and isinstance(plot := self._loss.made_body, CurvePlot):
            plot.request_draw()
        return True

    def _show_large(self, name: str) -> None:
        """A curve in the place of the loss; "" brings the loss back."""
        card, metric, plot = self._loss, self._shown().fold.metrics.get(name), self._loss.body
        assert isinstance(plot, CurvePlot)
        if metric is None:
            self._bring_back()
        else:
            card.set_title(name)
            words = tr("logged through {library}; Escape for the loss", library=metric.through)
            card.set_subtitle(words, tr("logged"))
            plot.set_curves(metric.curve, metric.curve, digits=4, words=(marked("value"), "", ""))
        plot.follow()
