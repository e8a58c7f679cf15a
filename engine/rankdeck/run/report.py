"""A run summed up: the figures that the command line, the app and exports show.

`RunFigures` folds events in as they come, so a live display and a report of a finished run read the same
numbers. `summarise` is the contract behind `rankdeck show --json`: keys may be added, never changed. Unknown
is None. step_columns.py joins the ranks' shares of a step; rundir/reading.py reads the events.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from rankdeck import events
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.run import plan_lines
from rankdeck.run.anatomy import Anatomies, totals_s
from rankdeck.run.breakdown import break_down
from rankdeck.run.imbalance import Imbalance, imbalance_of
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.step_columns import Row, StepColumns
from rankdeck.rundir import EventReader, RunDir

WARM_UP_SHARE = 0.2


@dataclass
class DeviceFigures:
    """What is known of one device of the run."""

    device: int
    info: events.DeviceInfo | None = None
    live_bytes: int | None = None
    peak_bytes: int | None = None
    peak_by_kind: Mapping[str, int] | None = None
    used_bytes: int | None = None
    used_peak_bytes: int | None = None
    utilisation: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    processes: Sequence[events.ProcessUse] | None = None
    lost_at: float | None = None
    memory: events.DeviceMemory | None = None
    _busy_s: float = 0.0
    _read_s: float = 0.0

    @property
    def utilisation_mean(self) -> float | None:
        return self._busy_s / self._read_s if self._read_s > 0 else None

    @property
    def breakdown(self) -> dict[str, int] | None:
        """Where a GPU's memory is, as it was read last (breakdown.py); None where no driver was asked."""
        if self.used_bytes is None or self.info is None:
            return None
        return break_down(
            self.used_bytes,
            self.memory,
            self.processes,
            total_bytes=self.info.total_bytes,
            driver_bytes=self.info.driver_bytes,
        )

    def add_memory(self, memory: events.DeviceMemory) -> None:
        self.memory = memory
        self.live_bytes = memory.live_bytes
        if self.peak_bytes is None or memory.peak_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_by_kind = memory.peak_bytes, memory.peak_by_kind

    def add_sample(self, sample: events.DeviceSample, interval_s: float) -> None:
        if sample.missing is not None:
            self.missing = sample.missing
            if "utilisation" in sample.missing:
                self.utilisation = None
            if "used_bytes" in sample.missing:
                self.used_bytes = None
        if sample.used_bytes is not None:
            self.used_bytes = sample.used_bytes
            self.used_peak_bytes = max(sample.used_bytes, self.used_peak_bytes or 0)
        if sample.processes is not None:
            self.processes = sample.processes
        if sample.utilisation is not None:
            self.utilisation = sample.utilisation
            self._busy_s += sample.utilisation * interval_s
            self._read_s += interval_s


@dataclass
class RunFigures:
    """Everything that the events of a run say, folded one event at a time and in any order of writers.

    `started` is the latest attempt's, `first_started` the first one's.
    """

    started: events.RunStarted | None = None
    first_started: events.RunStarted | None = None
    steps: StepColumns = field(default_factory=StepColumns)
    devices: dict[int, DeviceFigures] = field(default_factory=dict)
    phases: dict[int, str] = field(default_factory=dict)
    evaluation: events.Evaluation | None = None
    problems: list[Problem] = field(default_factory=list)
    rank_failures: list[Problem] = field(default_factory=list)
    source: str | None = None
    attempts: int = 0
    dropped_lines: int = 0
    comm: dict[int, dict[str, int]] = field(default_factory=dict)
    sync: dict[int, events.Comm] = field(default_factory=dict)
    pipeline: dict[int, events.Pipeline] = field(default_factory=dict)
    anatomies: Anatomies = field(default_factory=Anatomies)
    _steps_counted: int | None = None

    def feed(self, writer: str, event: events.AnyEvent) -> None:
        """Fold one event of `writer` ("rank-0", "supervisor", "sampler") in."""
        match event:
            case events.Steps():
                self._add_steps(event)
            case events.RunStarted():
                self._start(event)
            case events.RankStarted():
                self.phases[event.rank] = event.phase
            case events.Phase():
                self.phases[event.rank] = event.phase
                self._steps_counted = event.steps or self._steps_counted
            case events.Memory():
                self.source = event.source
                for memory in event.devices:
                    self.device(memory.device).add_memory(memory)
            case events.Sample():
                for sample in event.devices:
                    self.device(sample.device).add_sample(sample, event.interval_s)
            case events.DeviceNotice() if event.device is not None and event.code in ("lost", "back"):
                self.device(event.device).lost_at = event.t if event.code == "lost" else None
            case events.Evaluation():
                if self.evaluation is None or event.step >= self.evaluation.step:
                    self.evaluation = event
            case events.ProblemRaised():
                self.problems.append(event.problem)
            case events.RankFailed():
                self.rank_failures.append(event.problem)
            case events.Comm():
                self.comm.setdefault(event.rank, {})[event.algorithm] = event.sent_bytes
                if event.sync_s is not None:
                    self.sync[event.rank] = event
            case events.Pipeline():
                self.pipeline[event.rank] = event
            case events.Spans():
                self.anatomies.add(event)
            case events.Dropped():
                self.dropped_lines += event.lines

    def _start(self, event: events.RunStarted) -> None:
        before, self.started = self.started, event
        self.attempts += 1
        self.anatomies.world_size = event.world_size
        if before is None:
            self.first_started = event
            self.steps.world_size = event.world_size
            self.steps.join()
        else:
            self._go_on(before, event)
        for info in event.devices:
            self.device(info.index).info = info

    def _go_on(self, before: events.RunStarted, event: events.RunStarted) -> None:
        """A later attempt: what the ones before ended with is history, no longer the run's end."""
        self.steps.begin_attempt(event.world_size)
        self.phases.clear()
        self.rank_failures.clear()
        self.problems = [
            msgspec.structs.replace(problem, severity="warning") if problem.severity == "error" else problem
            for problem in self.problems
        ]
        if (before.strategy, before.options, before.devices) != (
            event.strategy,
            event.options,
            event.devices,
        ):
            # Peaks and bytes of another strategy say nothing about this one.
            self.devices.clear()
            self.comm.clear()

    def _add_steps(self, event: events.Steps) -> None:
        begins = self.steps.add(event)
        if begins and self.evaluation is not None and self.evaluation.step >= event.first:
            self.evaluation = None

    def device(self, index: int) -> DeviceFigures:
        return self.devices.setdefault(index, DeviceFigures(index))

    @property
    def last(self) -> Row | None:
        """The last complete step."""
        return self.steps.row(-1) if len(self.steps) else None

    @property
    def num_steps_planned(self) -> int | None:
        """As asked for; where epochs were, as the ranks counted them once they had read their data."""
        asked = self.started.steps if self.started else None
        return asked if asked is not None else self._steps_counted

    def recent_samples_per_s(self, window_s: float = 5.0) -> float | None:
        """Samples a second over the last `window_s` seconds of steps."""
        if len(self.steps) < 2:
            return None
        start = bisect_left(self.steps.ended, self.steps.ended[-1] - window_s)
        return self._samples_per_s(min(start, len(self.steps) - 2) + 1)

    def remaining_s(self) -> float | None:
        """Seconds until the last step at the pace of the last steps."""
        planned, rate = self.num_steps_planned, self.recent_samples_per_s()
        if planned is None or not rate or self.started is None:
            return None
        return max(0, planned - len(self.steps)) * self.started.global_batch / rate

    def samples_per_s(self) -> float | None:
        """Over the whole run after the first 20 % of its steps, evaluations included."""
        return self._samples_per_s(max(1, int(len(self.steps) * WARM_UP_SHARE)))

    def _samples_per_s(self, start: int) -> float | None:
        """From the end of the step before index `start` to the last step's end."""
        if start >= len(self.steps):
            return None
        elapsed_s = self.steps.elapsed_s(start)
        batch = float(self.started.global_batch) if self.started else math.nan
        samples = math.fsum(batch if math.isnan(count) else count for count in self.steps.samples[start:])
        return samples / elapsed_s if elapsed_s > 0 else None

    def imbalance(self) -> Imbalance | None:
        """The lead device's peak against the median of the others; None below two known peaks."""
        return imbalance_of({index: figures.peak_bytes for index, figures in self.devices.items()})


def prediction_file(run: RunDir) -> Path:
    """Where a run keeps what was predicted for it: one line of a plan."""
    return run.path / "plan.json"


def read_prediction(run: RunDir) -> PlanLine | None:
    """What was predicted for a run, None where nobody did."""
    try:
        return plan_lines.decode(prediction_file(run).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def _predicted_bytes(run: RunDir) -> dict[int, int]:
    """The predicted peak of live tensors by device; nothing where only a bound is known."""
    line = read_prediction(run)
    if line is None or line.is_bound:
        return {}
    return {device.device: device.active_bytes for device in line.devices}


def read_figures(run: RunDir) -> RunFigures:
    """The figures of everything that is in the run's directory now."""
    figures, reader = RunFigures(), EventReader(run)
    while found := reader.read():
        for writer, event in found:
            figures.feed(writer, event)
    return figures


def summarise(run: RunDir, figures: RunFigures | None = None) -> dict[str, Any]:
    """What `rankdeck show --json` prints. `figures` spares reading the events again."""
    outcome = run.outcome()
    figures = figures or read_figures(run)
    strategy, options, planned = _what_ran(run, figures)
    predicted = _predicted_bytes(run)
    end = run.end()
    first = figures.first_started
    started = first.started if first else run.environment().get("started")
    return {
        "run": run.name,
        "path": str(run.path),
        "outcome": outcome,
        "strategy": strategy,
        "options": options,
        "steps": len(figures.steps),
        "attempts": figures.attempts,
        "loss": {"first": _first_known(figures.steps.loss), "last": _last_known(figures.steps.loss)},
        "evaluation": _evaluation(figures.evaluation),
        "samples_per_s": figures.samples_per_s(),
        "step_s": _step_times(figures.steps),
        "first_step_s": _first_step_s(figures),
        "devices": [_device(figures.devices[index], predicted) for index in sorted(figures.devices)],
        "imbalance": _imbalance(figures.imbalance()),
        "comm": _comm(figures),
        "bubble": _bubble(figures),
        "pipeline": _pipeline(figures),
        "anatomy": _anatomy(figures),
        "pace": figures.started.pace if figures.started else None,
        "problems": [_problem(problem) for problem in problems_of(run, figures, outcome)],
        "steps_planned": planned,
        "source": figures.source,
        "started": started,
        "ended": end.ended if end else None,
        "exit_code": end.exit_code if end else None,
        "weights": str(run.weights) if run.weights.is_file() else None,
    }


def _what_ran(run: RunDir, figures: RunFigures) -> tuple[str | None, dict[str, Any], int | None]:
    """Strategy, its options and the planned steps; from the configuration for a run that never started."""
    if figures.started is not None:
        return figures.started.strategy, figures.started.options, figures.num_steps_planned
    try:
        config = run.config()
    except ConfigError:
        return None, {}, None
    return config.strategy.use, config.strategy.options, config.train.steps


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _first_known(column: Sequence[float]) -> float | None:
    return next((value for value in column if math.isfinite(value)), None)


def _last_known(column: Sequence[float]) -> float | None:
    return _known(column[-1]) if column else None


def _evaluation(evaluation: events.Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    return {
        "loss": _finite(evaluation.loss),
        "accuracy": evaluation.accuracy,
        "step": evaluation.step,
        "samples": evaluation.samples,
    }


def _finite(value: float | None) -> float | None:
    return None if value is None else _known(value)


def _step_times(steps: StepColumns) -> dict[str, float | None]:
    """Median and 99th percentile of the seconds from a step's end to the next one's.

    The first step is left out: no step ended before it.
    """
    ended = steps.ended
    breaks = set(steps.breaks)
    times = sorted(
        after - before
        for index, (before, after) in enumerate(itertools.pairwise(ended), start=1)
        if index not in breaks and math.isfinite(after - before)
    )
    if not times:
        return {"median": None, "p99": None}
    return {"median": median(times), "p99": times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]}


def _first_step_s(figures: RunFigures) -> float | None:
    if figures.first_started is None or not len(figures.steps):
        return None
    return _known(figures.steps.ended[0] - figures.first_started.started)


def _device(figures: DeviceFigures, predicted: Mapping[int, int]) -> dict[str, Any]:
    info = figures.info
    return {
        "device": figures.device,
        "name": info.name if info else None,
        "uuid": info.uuid if info else None,
        "kind": info.kind if info else None,
        "total_bytes": info.total_bytes if info else None,
        "peak_bytes": figures.peak_bytes,
        "peak_by_kind": dict(figures.peak_by_kind) if figures.peak_by_kind is not None else None,
        "utilisation_mean": figures.utilisation_mean,
        "used_peak_bytes": figures.used_peak_bytes,
        "breakdown": figures.breakdown,
        "lost_at": figures.lost_at,
        "predicted_peak_bytes": predicted.get(figures.device),
    }


def _imbalance(found: Imbalance | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"device": found.device, "excess_bytes": round(found.excess_bytes), "ratio": found.ratio}


def _comm(figures: RunFigures) -> dict[str, Any] | None:
    if not figures.comm:
        return None
    size = (
        figures.started.world_size
        if figures.started and figures.started.world_size
        else max(figures.comm) + 1
    )
    algorithms = dict.fromkeys(name for by_name in figures.comm.values() for name in by_name)
    per_rank = [sum(figures.comm[rank].values()) if rank in figures.comm else None for rank in range(size)]
    synced = [figures.sync.get(rank) for rank in range(size)]
    return {
        "algorithm": " + ".join(algorithms),
        "sent_bytes_per_step": per_rank,
        "sync_s": [None if told is None else told.sync_s for told in synced],
        "overlapped_s": [None if told is None else told.overlapped_s for told in synced],
    }


def _bubble(figures: RunFigures) -> dict[str, float | None] | None:
    """The share of a step that a pipeline's devices wait, measured and by the schedule's theory."""
    if not figures.pipeline:
        return None
    theories = [told.theory_bubble for told in figures.pipeline.values() if told.theory_bubble is not None]
    theory = max(theories, default=None)
    return {"measured": figures.anatomies.bubble(flushes=bool(theory)), "theory": theory}


def _pipeline(figures: RunFigures) -> list[dict[str, Any]] | None:
    """What each rank said of its stages."""
    if not figures.pipeline:
        return None
    keys = ("rank", "stages", "microbatches", "in_flight", "weight_versions", "staleness")
    told = [figures.pipeline[rank] for rank in sorted(figures.pipeline)]
    return [{key: getattr(event, key) for key in keys} for event in told]


def _anatomy(figures: RunFigures) -> dict[str, Any] | None:
    """Seconds by phase of each device in the last step that was sampled."""
    last = figures.anatomies.last
    if last is None:
        return None
    return {
        "step": last.step,
        "seconds": last.seconds,
        "simulated": last.simulated,
        "devices": [{"device": row.device, "seconds_by_phase": dict(totals_s(row))} for row in last.rows],
    }


def problems_of(run: RunDir, figures: RunFigures, outcome: str) -> list[Problem]:
    """What was raised, and for a run that ended badly at least one cause."""
    found = list(figures.problems)
    if outcome == "lost":
        found.append(lost_problem(run))
    elif outcome == "failed" and not any(problem.severity == "error" for problem in found):
        # The supervisor names one cause for all ranks; without it, what the ranks saw is the best there is.
        found.extend(figures.rank_failures or [failed_problem(run)])
    return found


def lost_problem(run: RunDir) -> Problem:
    """What is said of a run that has no last word and no guard."""
    return Problem(
        "lost",
        "The run was killed from outside: nothing holds its lock and it left no last word.",
        path=str(run.path),
        advice=f"What its ranks wrote until then is in {run.logs_folder}.",
    )


def failed_problem(run: RunDir) -> Problem:
    """What is said of a run that failed and whose ranks raised no problem."""
    end = run.end()
    reason = (end.reason if end else None) or "The run failed without saying why."
    return Problem("failed", reason, path=str(run.path), advice=f"See the files in {run.logs_folder}.")


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "rank": problem.rank,
        "message": problem.message,
        "advice": problem.advice,
        "severity": problem.severity,
        "path": problem.path,
        "line": problem.line,
        "last_lines": list(problem.last_lines),
    }
