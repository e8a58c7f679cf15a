"""A run as it was at a moment, for whoever draws runs: it answers like the run that goes on (run_view.py).

Its figures are of what was told until then. Its curves are those of the whole run, so that one sees what came
before and after, unless the steps of that moment were trained again: then they are drawn as they were.
"""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.run_intervals import RunInterval
from rankdeck.run.run_state import RunState
from rankdeck_app.state.run_view import RunView, select_charted_devices


class PastRun(RunView):
    """`state` is what was told until `moment`, and nobody changes it; `prediction` is of the attempt that was
    under way."""

    def __init__(
        self, live: RunView, fold: RunState, moment: float, prediction: PlanLine | None = None
    ) -> None:
        self._live_run, self._viewed_time = live, moment
        self.run_dir, self.state = live.run_dir, fold
        self.config, self.script = live.config, live.script
        self.fix_plan = None
        self.devices = [device for device in fold.devices.values() if device.info is not None]
        self.charted_devices = select_charted_devices(self.devices)
        announced = [one for one in fold.attempts.values() if one.started is not None]
        self._attempt = announced[-1].number if announced else None
        ended = announced[-1].ended if announced else None
        is_newest = self._attempt == max(live.state.attempts, default=None)
        self.prediction = live.prediction if is_newest else prediction
        self.outcome = None if not announced else "running" if ended is None else ended.outcome
        self.exit_record = None
        self._title, self._is_stop_requested = live.title, False
        self._reader_problems: list[Problem] = []

    @property
    def now(self) -> float:
        return self._viewed_time

    @property
    def intervals(self) -> list[RunInterval]:
        return self._live_run.intervals

    @property
    def total_s(self) -> float | None:
        return self._live_run.since_start_s

    @property
    def viewed_s(self) -> float | None:
        return self._viewed_time - (self._live_run.started_at or self._viewed_time)

    @property
    def attempt(self) -> int | None:
        """The number of the attempt that was under way."""
        return self._attempt

    @property
    def is_replaced(self) -> bool:
        """Whether a later attempt trained the newest step of that moment again."""
        later = self._live_run.state.attempts.get(-1 if self._attempt is None else self._attempt)
        kept = None if later is None else later.last_step
        return kept is not None and self.step is not None and self.step > kept

    @property
    def charted_run(self) -> RunView:
        return self if self.is_replaced else self._live_run
