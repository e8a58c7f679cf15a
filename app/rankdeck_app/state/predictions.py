"""Predictions of the open runs, shown next to their measurements.

A prediction belongs to one attempt: an attempt whose configuration differs from that of the previous attempt
gets a new prediction. A prediction is read from the run directory (run/prediction.py), taken from the draft's
plan, or requested from the engine, which saves it in the run directory. Requests are made for one run after
another, and only if the run's code is trusted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from rankdeck.config import RunConfig
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.prediction import read_prediction
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.plan import DraftPlan, is_same_strategy
from rankdeck_app.state.plan_process import Planner, PlannerClient
from rankdeck_app.state.plan_text import is_virtual

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun


class Predictions(PlannerClient):
    """Predictions of the added runs; each is set on its LiveRun as soon as it is available."""

    def __init__(
        self,
        planner: Planner,
        plan: DraftPlan,
        parent: QObject | None = None,
        *,
        io_thread: IoThread | None = None,
    ) -> None:
        super().__init__(parent)
        self._io_thread = io_thread or IoThread(self)
        self._planner, self._plan = planner, plan
        self._configs: dict[LiveRun, RunConfig | None] = {}
        """The configuration for which each run's prediction was last requested."""
        self._pending_runs: list[LiveRun] = []
        plan.changed.connect(self._predict_next)

    def add_run(self, run: LiveRun) -> None:
        """Obtain a run's prediction as soon as the run's configuration and devices have been read."""
        if run not in self._configs:
            self._configs[run] = None
            run.changed.connect(partial(self._on_run_changed, run))
            self._on_run_changed(run, None)

    def remove_run(self, run: LiveRun) -> None:
        self._configs.pop(run, None)
        self._remove_pending(run)

    def _remove_pending(self, run: LiveRun) -> None:
        if run in self._pending_runs:
            self._pending_runs.remove(run)

    def close(self) -> None:
        self._configs.clear()
        self._pending_runs.clear()
        self._abort_processes()

    def _on_run_changed(self, run: LiveRun, _changed: object) -> None:
        if run in self._configs and run.config is not self._configs[run] and run.devices:
            self._configs[run] = run.config
            self._remove_pending(run)
            self._pending_runs.append(run)
            self._io_thread.submit(
                partial(read_prediction, run.run_dir), partial(self._on_prediction_read, run)
            )

    def _on_prediction_read(self, run: LiveRun, line: PlanLine | None) -> None:
        self._set_prediction(run, line)
        self._predict_next()

    def _set_prediction(self, run: LiveRun, line: PlanLine | None) -> None:
        if line is not None and run in self._pending_runs and _is_prediction_of(line, run):
            self._pending_runs.remove(run)
            run.set_prediction(line)

    def _predict_next(self) -> None:
        """Take predictions from the draft's plan; if the planner is idle, request a missing prediction."""
        # A copy, because `_set_prediction` removes runs from the list.
        for run in list(self._pending_runs):
            assert run.config is not None
            self._set_prediction(run, self._plan.find_line(run.config))
        is_free = self._process is None and not self._plan.is_planning and self._planner.is_automatic()
        if is_free and self._pending_runs:
            run = self._pending_runs[0]
            assert run.config is not None
            self._planner.check_trust(
                run.config, partial(self._on_trust_checked, run), key=self, run=run.run_dir.path
            )

    def _on_trust_checked(self, run: LiveRun, needs_trust: bool) -> None:
        # While the io thread checked the trust, the run may have closed or another request may have started.
        if run not in self._pending_runs or self._process is not None:
            return
        if needs_trust:
            self._pending_runs.remove(run)
            self._predict_next()
            return
        config = run.config
        self._process = self._planner.predict(run.run_dir.path, self)
        self._process.ended.connect(lambda _reason: self._on_predicted(run, config))
        self._process.start()

    def _on_predicted(self, run: LiveRun, config: RunConfig | None) -> None:
        self._process = None

        def on_read(line: PlanLine | None) -> None:
            self._set_prediction(run, line)
            if run.config is config:  # else a newer attempt has its own
                self._remove_pending(run)
            self._predict_next()

        self._io_thread.submit(partial(read_prediction, run.run_dir), on_read)


def _is_prediction_of(line: PlanLine, run: LiveRun) -> bool:
    """Check whether a line predicts the run's current attempt, with the same number and kind of devices.

    The number and kind must match because a resumed run can have different devices than before.
    """
    are_virtual = all(map(is_virtual, line.devices))
    if run.config is None or not is_same_strategy(line, run.config):
        return False
    return len(line.devices) == len(run.devices) and are_virtual == run.is_rehearsal
