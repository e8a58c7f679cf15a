"""What can be done about a problem from here: the buttons of the Problems panel.

A table of rows (when it fits, what the button says, what it does), so that a cause that the engine learns to
name gets its button by one more row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankdeck_app.controllers.device_watch import DeviceWatch
from rankdeck_app.controllers.run_alerts import RunAlerts
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.imbalance_alert import BETTER, CODE
from rankdeck_app.state.problem_list import DEVICES, DRAFT, LAUNCH, ListedProblem
from rankdeck_app.state.suggestion import REHEARSAL
from rankdeck_app.widgets.run_list import strategy_title

Remedy = tuple[str, Callable[[], object]]


@dataclass(frozen=True)
class _Row:
    fits: Callable[[ListedProblem], bool]
    label: str
    act: Callable[[ListedProblem], object]


class Remedies:
    """`of` gives the buttons of an entry. `show_config` opens the configuration at a line."""

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        alerts: RunAlerts,
        watch: DeviceWatch,
        show_config: Callable[[int | None], object],
    ) -> None:
        self._window = window
        self._session = session
        self._tabs = tabs
        self._alerts = alerts
        self._rows = (
            _Row(_needs_rehearsal, "Rehearse Instead", lambda _entry: self._rehearse()),
            _Row(
                lambda entry: entry.owner == DRAFT and entry.problem.line is not None,
                "Go to Line",
                lambda entry: show_config(entry.problem.line),
            ),
            _Row(lambda entry: entry.owner == LAUNCH, "Dismiss", lambda _entry: self._dismiss()),
            *(self._use_row(better) for better in dict.fromkeys(BETTER.values())),
            _Row(lambda entry: entry.owner == DEVICES, "Show Devices", lambda _entry: watch.show()),
            _Row(lambda entry: entry.owner == DEVICES, "Dismiss", lambda _entry: watch.dismiss()),
            _Row(_has_output, "Show Output", self._show_output),
            _Row(_has_output, "Open Its Folder", self._reveal),
        )

    def of(self, entry: ListedProblem) -> list[Remedy]:
        return [(row.label, lambda row=row: row.act(entry)) for row in self._rows if row.fits(entry)]  # type: ignore[misc]

    def _use_row(self, strategy: str) -> _Row:
        """Run again with the strategy that does without the imbalance."""

        def fits(entry: ListedProblem) -> bool:
            return entry.problem.code == CODE and self._alerts.better_for(entry.run) == strategy

        def use(entry: ListedProblem) -> None:
            if entry.run is not None:
                self._alerts.use_strategy(entry.run, strategy)

        return _Row(fits, f"Use {strategy_title(strategy)}", use)

    def _rehearse(self) -> None:
        self._session.draft.set_value(("devices", "use"), REHEARSAL)
        self._session.problems.set(LAUNCH, "", [])

    def _dismiss(self) -> None:
        self._session.problems.set(LAUNCH, "", [])

    def _show_output(self, entry: ListedProblem) -> None:
        from rankdeck_app.views.output import OutputView

        if entry.run is not None:
            self._tabs.open(entry.run)
        view = self._window.show_panel("output")
        if isinstance(view, OutputView):
            view.set_rank(entry.problem.rank)

    def _reveal(self, entry: ListedProblem) -> None:
        if entry.run is not None:
            self._tabs.reveal(entry.run)


def _needs_rehearsal(entry: ListedProblem) -> bool:
    return entry.owner in (DRAFT, LAUNCH) and entry.problem.code in ("no-gpu", "no-driver")


def _has_output(entry: ListedProblem) -> bool:
    return entry.run is not None and entry.problem.code != CODE
