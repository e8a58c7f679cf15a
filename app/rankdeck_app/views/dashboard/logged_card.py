"""Shows the metrics that a run's own code logs, with a small curve for each metric.

One curve at a time can be enlarged in the loss card. Scripts log through their libraries or through
`rankdeck.log`; the models of configured runs log only through `rankdeck.log`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rankdeck.base.phrases import tr_noop
from rankdeck.run.batch import RunChange
from rankdeck_app.language import tr
from rankdeck_app.state.run_view import RunView
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_csv, run_curves
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.curve_plot import CurvePlot
from rankdeck_app.widgets.layouts import make_scroll_area
from rankdeck_app.widgets.metric_curves import MetricCurves

_REFRESH_INTERVAL_S = 0.5


class LoggedCard(ChartCard):
    """Card of logged metrics. `get_run` returns the viewed run, `loss` is the loss card, and `bring_back` is
    called to show the loss in that card again."""

    def __init__(
        self,
        theme: Theme,
        get_run: Callable[[], RunView],
        loss: ChartCard,
        bring_back: Callable[[], object],
    ) -> None:
        self.curves = MetricCurves(theme)
        self._scroll = make_scroll_area(self.curves, "")
        super().__init__("", theme, self._scroll, lambda: run_csv.logged_metrics_rows(get_run()))
        self._get_run, self._loss_card, self._restore_loss = get_run, loss, bring_back
        self._refreshed_s, self._has_changes = 0.0, False
        self.curves.selection_changed.connect(self._enlarge)

    def set_title(self, text: str) -> None:
        super().set_title(text)
        self._scroll.setAccessibleName(text)

    @property
    def has_curves(self) -> bool:
        return bool(self.curves.data.curves)

    @property
    def is_enlarged(self) -> bool:
        """Whether the loss card shows a logged curve."""
        return bool(self.curves.selected)

    def refresh_if_due(self, pending: RunChange) -> bool:
        """Refresh the card if `pending` or an earlier call reported changes that it does not show yet, but at
        most twice a second, as there may be hundreds of curves. Return whether the card was refreshed."""
        now = time.monotonic()
        self._has_changes = self._has_changes or bool(pending & (RunChange.METRICS | RunChange.STATE))
        if not self._has_changes or now - self._refreshed_s < _REFRESH_INTERVAL_S:
            return False
        self._refreshed_s, self._has_changes = now, False
        self.curves.set_data(run_curves.logged_metrics(self._get_run()))
        self.set_subtitle(run_curves.logged_metrics_subtitle(self._get_run()))
        if self.is_enlarged and isinstance(plot := self._loss_card.built_body, CurvePlot):
            plot.request_draw()
        return True

    def _enlarge(self, name: str) -> None:
        """Show the curve of the metric `name` in the loss card; if `name` is "", show the loss again."""
        card, metric, plot = self._loss_card, self._get_run().state.metrics.get(name), self._loss_card.body
        assert isinstance(plot, CurvePlot)
        if metric is None:
            self._restore_loss()
        else:
            card.set_title(name)
            subtitle = tr("logged through {library}; press Escape to show the loss", library=metric.through)
            card.set_subtitle(subtitle, tr("logged"))
            plot.set_curves(metric.curve, metric.curve, digits=4, legend=(tr_noop("value"), "", ""))
        # Another curve has other values, which the previous zoom may hide.
        plot.reset_zoom()
