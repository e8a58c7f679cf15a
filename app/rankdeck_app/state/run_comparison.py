"""A comparison of runs: its runs, the baseline, and their metrics side by side.

Views read `comparison`, which is rebuilt when a run's metrics change. `drain` is called every frame; the few
milliseconds that it spends on applying new data are divided among the runs. The state is saved as plain data
and restored after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from rankdeck.compare.curves import StepAxis, step_axis
from rankdeck.compare.run_metrics import ComparedRun, build_compared_run, open_events, outcome_of
from rankdeck.compare.run_ref import MAX_RUNS, RunRef, parse_run_refs
from rankdeck.compare.run_setup import RunSetup, read_run_setup
from rankdeck.compare.table import Comparison, compare_runs
from rankdeck.run.batch import RunChange
from rankdeck.run_dir import is_run
from rankdeck_app.language import tr
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.run_tail import RunTail

_FRAME_BUDGET_S = 0.004


class RunComparison(QObject):
    """A comparison of runs.

    `runs_changed` is emitted when the runs or the baseline change. `changed` is emitted for new metrics, at
    most a few times a second.
    """

    runs_changed = Signal()
    changed = Signal()

    def __init__(
        self, parent: QObject | None = None, *, is_known: Callable[[Path], bool] = lambda path: False
    ) -> None:
        """Create an empty comparison; `is_known` checks, without reading the disk, whether a run exists."""
        super().__init__(parent)
        self._is_known = is_known
        self.runs: list[ComparisonRun] = []
        self.baseline = 0
        self.comparison: Comparison | None = None
        self._next_index = 0
        self._is_closed = False

    @property
    def refs(self) -> list[RunRef]:
        return [run.ref for run in self.runs]

    def refusal_text(self, at: RunRef) -> str:
        """Return the reason why the run `at` cannot be added to the comparison; empty if it can be added."""
        if at in self.refs:
            return tr("This run is already in the comparison.")
        if len(self.runs) >= MAX_RUNS:
            return tr(
                "You can compare at most {most} runs. Remove a run from the comparison first.", most=MAX_RUNS
            )
        if not self._is_known(at.path) and not is_run(at.path):
            return tr("{path} is not a run folder.", path=at.path)
        return ""

    def add(self, ats: Iterable[RunRef]) -> list[str]:
        """Add runs in the order of `ats`, and return the distinct reasons why runs were refused."""
        refused: dict[str, None] = {}
        for at in ats:
            if reason := self.refusal_text(at):
                refused[reason] = None
                continue
            run = ComparisonRun(at, self)
            run.start()
            self.runs.append(run)
        self._update_comparison()
        self.runs_changed.emit()
        return list(refused)

    def remove(self, at: RunRef) -> None:
        index = self.refs.index(at)
        run = self.runs.pop(index)
        run.close()
        run.deleteLater()
        # The baseline stays the same run. If it was removed from the end, its predecessor takes over.
        if self.baseline > index or self.baseline == len(self.runs):
            self.baseline = max(0, self.baseline - 1)
        self._update_comparison()
        self.runs_changed.emit()

    def set_baseline(self, at: RunRef) -> None:
        self.baseline = self.refs.index(at)
        self._update_comparison()
        self.runs_changed.emit()

    def drain(self) -> bool:
        """Apply the new data of all runs, and update the metrics of at most one run per call. Return whether
        there are new losses."""
        changed = RunChange.NOTHING
        for run in self.runs:
            # The budget is shared, so a frame of many runs takes no longer than that of one run.
            changed |= run.drain(_FRAME_BUDGET_S / len(self.runs))
        self._update_next_run()
        return bool(changed & (RunChange.STEPS | RunChange.EVALUATION))

    def _update_next_run(self) -> None:
        for offset in range(len(self.runs)):
            run = self.runs[(self._next_index + offset) % len(self.runs)]
            # One run per frame, each in turn.
            if run.update_metrics():
                self._next_index = (self._next_index + offset + 1) % len(self.runs)
                self._update_comparison()
                self.changed.emit()
                return

    def _update_comparison(self) -> None:
        """Rebuild `comparison`, which is None until every run's files have been read once."""
        compared_runs = [run.compared_run for run in self.runs if run.compared_run is not None]
        is_known = bool(compared_runs) and len(compared_runs) == len(self.runs)
        self.comparison = compare_runs(compared_runs, self.baseline) if is_known else None

    def title(self) -> str:
        """Return a title such as 'GPT · DP · 4 / GPT · DDP · 4'."""
        names = [run.title + ("" if run.ref.attempt is None else f" @{run.ref.attempt}") for run in self.runs]
        if len(names) > 2:
            return tr("{run} and {n} others", "{run} and {n} other", len(names) - 1, run=names[0])
        return " / ".join(names)

    def close(self) -> None:
        """Close all runs. Closing the window and then the page calls this twice, which is harmless."""
        if not self._is_closed:
            self._is_closed = True
            for run in self.runs:
                run.close()

    # State that is restored after a restart

    def save_state(self) -> dict[str, Any]:
        return {"runs": list(map(str, self.refs)), "baseline": self.baseline}

    def restore_state(self, saved: Any) -> list[str]:
        """Restore a saved comparison, and return the reasons why runs cannot be restored."""
        runs = saved.get("runs") if isinstance(saved, dict) else None
        ats = parse_run_refs(runs)
        refused = self.add(ats)
        baseline = saved.get("baseline") if isinstance(saved, dict) else None
        # The saved index counts all saved runs, also those that were refused just now.
        if isinstance(baseline, int) and 0 <= baseline < len(ats) and ats[baseline] in self.refs:
            self.set_baseline(ats[baseline])
        return refused


# A run of a comparison, or one of its attempts: a live run with its column of metrics. Its tail reads the
# setup (configuration, versions, prediction) before the first event, so that the UI thread never waits for a
# disk. Metrics are rebuilt at most once a second, and less often if that takes long.

_MIN_UPDATE_INTERVAL_S = 1.0
_MAX_TIME_SHARE = 0.005
"""Share of the UI thread's time that may go into building metrics."""


class _ComparisonTail(RunTail):
    def __init__(self, at: RunRef) -> None:
        super().__init__(at.run_dir)
        self._ref = at
        self._reader = open_events(at)
        self.setup: RunSetup | None = None

    def run(self) -> None:
        self.setup = read_run_setup(self._ref)
        super().run()


class ComparisonRun(LiveRun):
    """A run of the comparison.

    `compared_run` is None until the run's files have been read once, because the run's outcome is unknown
    until then.
    """

    def __init__(self, at: RunRef, parent: QObject | None = None) -> None:
        super().__init__(at.path, parent)
        self.ref = at
        self._tail = self._setup_tail = _ComparisonTail(at)
        self.compared_run: ComparedRun | None = None
        self._is_stale = True
        self._due_s = 0.0
        self._axes: dict[str, tuple[object, StepAxis]] = {}
        self.changed.connect(self._mark_stale)
        self.outcome_changed.connect(self._update_at_once)

    def _mark_stale(self, _changed: object) -> None:
        self._is_stale = True

    def _update_at_once(self, _outcome: str) -> None:
        self._due_s = 0.0

    def update_metrics(self) -> bool:
        """Rebuild the metrics if they are stale and an update is due; return whether they were rebuilt."""
        now_s, background = time.monotonic(), self._setup_tail.setup
        if not self._is_stale or background is None or self.outcome is None or now_s < self._due_s:
            return False
        self._is_stale = False
        background = replace(background, title=self.title if self._title else background.title)
        outcome = outcome_of(self.ref, self.state, background, self.outcome)
        self.compared_run = build_compared_run(self.ref, self.state, background, outcome)
        self._due_s = now_s + max(_MIN_UPDATE_INTERVAL_S, (time.monotonic() - now_s) / _MAX_TIME_SHARE)
        return True

    def axis(self, by: str) -> StepAxis:
        """Return the steps' x values for `by` (one of `curves.AXES`), recomputed if steps have been added."""
        key = [(number, len(attempt.table)) for number, attempt in self.state.attempts.items()]
        cached = self._axes.get(by)
        if cached is None or cached[0] != key:
            cached = self._axes[by] = (key, step_axis(self.state, by))
        return cached[1]

    @property
    def other_attempts(self) -> list[int]:
        """The attempts that can be compared with each other; empty if only one attempt has events."""
        numbers = list(self.state.attempts)
        return numbers if len(numbers) > 1 else []
