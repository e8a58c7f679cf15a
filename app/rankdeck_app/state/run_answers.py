"""What a run answers whoever draws it: a run that is followed (live_run.py), or one as it was at a moment
(past_run.py). Every figure comes from a fold (rankdeck.run.fold). What is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rankdeck.base.errors import Problem
from rankdeck.config import RunConfig
from rankdeck.config.script import ScriptConfig
from rankdeck.events import MEASURED_IN_REHEARSAL, MEASURED_ON_GPU, OWNERS_SEEN, SCRIPT, DeviceMemory
from rankdeck.run.attempt import spells_of
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.fold import Fold
from rankdeck.run.imbalance import Imbalance, imbalance_of
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.row import RESUMABLE
from rankdeck.run.series import Floats
from rankdeck.run.spells import Spell, lasted_s
from rankdeck.run.standstill import Standstill, is_of_standstill
from rankdeck.rundir import End, RunDir
from rankdeck_app.language import in_words, spoken, tr
from rankdeck_app.state.plan_words import FixPlan

MOST_ROWS = 32


class RunAnswers:
    """Figures of `fold`, and of what other files say."""

    run: RunDir
    fold: Fold
    config: RunConfig | None
    script: ScriptConfig | None
    outcome: str | None
    end: End | None
    prediction: PlanLine | None
    fix_plan: FixPlan | None
    devices: list[DeviceFigures]
    rows: list[DeviceFigures]
    """Those of `devices` that have a row in every chart (`rows_of`)."""
    silent_hosts: Mapping[str, int] = {}
    """Since when a host of a live run has told nothing, in seconds; none that tells something each second."""
    _title: str
    _is_asked_to_stop: bool
    _own_problems: list[Problem]

    @property
    def now(self) -> float:
        """The Unix time of which everything is."""
        raise NotImplementedError

    @property
    def charted(self) -> RunAnswers:
        """The run whose curves are drawn."""
        return self

    @property
    def spells(self) -> list[Spell]:
        """When it ran, whichever moment is shown."""
        return spells_of(self.fold.attempts.values(), is_over=self.is_over)

    @property
    def whole_s(self) -> float | None:
        """Since the start by now, whichever moment is shown."""
        return self.since_start_s

    @property
    def looked_back_at(self) -> float | None:
        """The moment that is shown, in seconds since the start, where that is not now."""
        return None

    def predicted_bytes_of(self, device: DeviceFigures, *, as_read: bool = False) -> int | None:
        """The predicted figure that `total_bytes_of` is to be compared with: live tensors of sampled steps,
        or with `as_read`, and where no step was sampled, all that the driver counts.
        """
        return self._planned_bytes(self.prediction, device, as_read=as_read)

    def fix_bytes_of(self, device: DeviceFigures) -> int | None:
        """What is planned for the fix on show, of what `total_bytes_of` tells."""
        return self._planned_bytes(None if self.fix_plan is None else self.fix_plan.line, device)

    def _planned_bytes(
        self, line: PlanLine | None, device: DeviceFigures, *, as_read: bool = False
    ) -> int | None:
        planned = [] if line is None or line.is_bound else line.devices
        found = next((one for one in planned if one.device == device.device), None)
        if found is None:
            return None
        is_of_driver = as_read or self.memory_of(device) is None
        return found.total_bytes if is_of_driver else found.active_bytes

    @property
    def strategy(self) -> str | None:
        return self.fold.started.strategy if self.fold.started else None

    @property
    def steps(self) -> int | None:
        """How many are planned."""
        planned = self.fold.num_steps_planned
        return planned if planned is not None or self.config is None else self.config.train.steps

    @property
    def step(self) -> int | None:
        """The last complete step."""
        return self.fold.step

    def along(self, axis: str) -> tuple[Floats, Floats] | None:
        """(steps, what they are called on another axis): seconds since the start, or samples seen by then."""
        moments, seen, started = self.fold.moments, self.fold.samples_seen, self.started
        first, last = moments.first_x, moments.last_x
        if first is None or last is None or started is None:
            return None
        steps = moments.window(first, last, 4_096)
        if axis == "time":
            return steps.low.astype(float), steps.x - started
        return steps.low.astype(float), seen.window(first, last, 4_096).low.astype(float)

    @property
    def saved_step(self) -> int | None:
        """Of the newest checkpoint that was told of; it may be gone by now."""
        saved = (one.saved_step for one in self.fold.attempts.values())
        return max((step for step in saved if step), default=None)

    @property
    def is_resumable(self) -> bool:
        """Whether it ended before its last step, and has a checkpoint to continue from."""
        return self.outcome in RESUMABLE and self.saved_step is not None

    @property
    def standstill(self) -> Standstill | None:
        """What was said of ranks that make no progress now."""
        announced = [one for one in self.fold.attempts.values() if one.started is not None]
        return announced[-1].standstill if announced and self.is_live else None

    @property
    def standstill_problem(self) -> Problem | None:
        """The same with the seconds that have passed by now."""
        still = self.standstill
        return None if still is None else in_words(self.fold.placed(still.as_of(self.now)))

    @property
    def problems(self) -> list[Problem]:
        """What was raised, and what of the events could not be written or read; in the window's words. A
        standstill is one only while it lasts."""
        still = self.standstill_problem
        raised = [problem for problem in self.fold.problems if not is_of_standstill(problem)]
        found = [in_words(problem) for problem in (*raised, *self._own_problems)]
        return found if still is None else [*found, still]

    @property
    def fix_changes(self) -> Mapping[str, Any]:
        """The changes that fix a configured run: those of the first error that has any."""
        errors = (problem for problem in self.fold.problems if problem.severity == "error")
        return {} if self.config is None else next((one.cure for one in errors if one.cure), {})

    @property
    def started(self) -> float | None:
        """When the person's command started, Unix seconds."""
        return self.fold.first_started.started if self.fold.first_started else None

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def title(self) -> str:
        """What it is called; the directory's name until that is read."""
        return self._title or self.name

    @property
    def is_live(self) -> bool:
        return self.outcome == "running"

    @property
    def is_over(self) -> bool:
        return self.outcome not in (None, "running")

    @property
    def ending(self) -> str | None:
        """What it does between being asked to stop, or its ranks' end, and its last word: "stopping" or
        "ending"; None while it trains and once it is over."""
        if not self.is_live:
            return None
        return "stopping" if self._is_asked_to_stop else self.fold.ending

    @property
    def is_planned(self) -> bool | None:
        """Whether a configuration says what is computed, so that each of its figures is known to come. Of a
        person's own script there is what it tells. None until either was read.
        """
        if self.config is not None or self.script is not None:
            return self.script is None
        return None if self.fold.started is None else self.fold.started.source != SCRIPT

    @property
    def is_observed(self) -> bool:
        """Whether steps are seen as they are taken."""
        return self.script is None or self.script.script.observe != "none"

    @property
    def is_stepless(self) -> bool:
        """Whether no step was seen and none will be."""
        return self.step is None and (self.is_over or not self.is_observed)

    @property
    def is_rehearsal(self) -> bool | None:
        """Whether virtual devices stand for GPUs; a script without GPUs trains on the CPU and rehearses
        nothing."""
        return bool(self.is_planned) and not self.has_gpus if self.devices else None

    @property
    def has_gpus(self) -> bool:
        return bool(self.devices) and self.devices[0].kind == "gpu"

    @property
    def is_by_owners(self) -> bool:
        """Whether memory is what owners were found for, of which no peak is known."""
        return self.fold.source == OWNERS_SEEN

    def label_of(self, device: DeviceFigures) -> str:
        """'GPU 0', 'Virtual 0'; of a script without GPUs the CPU's share of a rank."""
        return spoken(device.label) if self.is_planned or self.has_gpus else f"CPU {device.device}"

    @property
    def source(self) -> str | None:
        """'measured in rehearsal', 'measured on GPU'; of a script what its memory was read from."""
        if self.is_rehearsal is None:
            return None
        usual = MEASURED_IN_REHEARSAL if self.is_rehearsal else MEASURED_ON_GPU if self.has_gpus else None
        return self.fold.source or usual

    @property
    def elapsed_s(self) -> float | None:
        """How long it ran, without the time between its attempts."""
        return lasted_s(self.spells, self.now)

    @property
    def since_start_s(self) -> float | None:
        """Until now while the run is alive, else until its end: as far as axes of time go."""
        started = self.started
        if started is None:
            return None
        if not self.is_over:
            return max(0.0, self.now - started)
        last = self.fold.last
        ended = self.end.ended if self.end is not None else None if last is None else last.ended
        return None if ended is None else max(0.0, ended - started)

    @property
    def eta_s(self) -> float | None:
        return self.fold.remaining_s() if self.is_live and self.standstill is None else None

    @property
    def samples_per_s(self) -> float | None:
        """Now, smoothed, while the run is alive; then its mean."""
        mean = self.fold.samples_per_s() if self.is_over else None
        return mean if mean is not None else _finite(self.fold.rate_ema.last_y)

    @property
    def steps_per_s(self) -> float | None:
        """Of a script: now, smoothed, while it is alive; then its mean."""
        mean = self.fold.steps_per_s() if self.is_over else None
        return mean if mean is not None else _finite(self.fold.script.step_rate_ema.last_y)

    @property
    def loss(self) -> float | None:
        """The loss of the last step that told one; NaN where a script's is not finite since."""
        lost_in, known = self.fold.script.not_finite, self.fold.losses.last_x
        if lost_in is not None and (known is None or known < lost_in):
            return math.nan
        return self.fold.losses.last_y

    @property
    def capacity_bytes(self) -> int | None:
        """The size of the smallest device, or what the rehearsal pretends; None when there is none."""
        sizes = [device.total_bytes for device in self.devices]
        known = [size for size in sizes if size is not None]
        if known:
            return min(known)
        return self.config.capacity_bytes if self.config is not None and self.is_rehearsal else None

    @property
    def imbalance(self) -> Imbalance | None:
        """Of the `rows`, by their place."""
        return imbalance_of({place: self.total_bytes_of(device) for place, device in enumerate(self.rows)})

    @property
    def is_by_hosts(self) -> bool:
        """Whether a row stands for all devices of its host."""
        return len(self.rows) < len(self.devices)

    @property
    def is_simulated(self) -> bool:
        """Whether times are those of pretended devices."""
        return self.fold.started is not None and self.fold.started.pace == "simulated"

    def memory_of(self, device: DeviceFigures) -> DeviceMemory | None:
        """The last sampled step while the run is alive; then the one with the largest peak of the run. What
        owners hold has no peak: it is the last one always.
        """
        is_newest = not self.is_over or device.is_of_owners
        return device.memory if is_newest else device.largest

    def total_bytes_of(self, device: DeviceFigures) -> int | None:
        """The peak of that step; without one, what the driver says is in use."""
        memory = self.memory_of(device)
        return memory.peak_bytes if memory is not None else device.used_bytes

    def phase(self) -> str | None:
        """What the ranks are busy with before the first step; None while none has said anything."""
        phases = self.fold.phases
        if not phases:
            return None
        rank, phase = min(phases.items())
        return tr(phase) if len(phases) == 1 else tr("rank {rank}: {phase}", rank=rank, phase=tr(phase))


def rows_of(devices: list[DeviceFigures]) -> list[DeviceFigures]:
    """All of them, but of many over several hosts the fullest of each host, the first of those as full."""
    if len(devices) <= MOST_ROWS or any(not device.host for device in devices):
        return devices
    fullest: dict[str, tuple[int, DeviceFigures]] = {}
    for device in devices:
        largest = device.largest
        most_bytes = (device.used_peak_bytes or 0) if largest is None else largest.peak_bytes
        if most_bytes > fullest.get(device.host, (-1, device))[0]:
            fullest[device.host] = most_bytes, device
    return [device for _, device in fullest.values()]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
