"""A run as it was at an earlier time, with the interface of the live run (run_view.py).

Metrics are those reported up to that time. Curves show the whole run, so that the user sees what came before
and after. But if a later attempt has repeated steps that were complete at that time, the curves show only
what had been reported by then.
"""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.run_intervals import RunInterval
from rankdeck.run.run_state import RunState
from rankdeck_app.state.run_view import RunView, select_charted_devices


class PastRun(RunView):
    """A run as it was at the Unix time `time_s`.

    `state` no longer changes. `prediction` belongs to the attempt that was running at that time.
    """

    def __init__(
        self, live: RunView, state: RunState, time_s: float, prediction: PlanLine | None = None
    ) -> None:
        self._live_run, self._viewed_time = live, time_s
        self.run_dir, self.state = live.run_dir, state
        self.config, self.script = live.config, live.script
        self.fix_plan = None
        self.devices = [device for device in state.devices.values() if device.info is not None]
        self.charted_devices = select_charted_devices(self.devices)
        announced = [attempt for attempt in state.attempts.values() if attempt.started is not None]
        self._attempt = announced[-1].number if announced else None
        ended = announced[-1].ended if announced else None
        # The newest attempt's prediction may come from the draft's plan, which is not stored in a file.
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
        """The number of the attempt that was running at the viewed time."""
        return self._attempt

    @property
    def is_replaced(self) -> bool:
        """Whether a later attempt has repeated the last step that was complete at the viewed time."""
        later = self._live_run.state.attempts.get(-1 if self._attempt is None else self._attempt)
        last_step = None if later is None else later.last_step
        return last_step is not None and self.step is not None and self.step > last_step

    @property
    def charted_run(self) -> RunView:
        return self if self.is_replaced else self._live_run
