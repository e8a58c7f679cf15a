"""What a run answers whoever draws it: a run that is followed (live_run.py), or one as it was at a moment
(past_run.py). Every figure comes from a fold (rankdeck.run.run_state). What is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rankdeck.base.errors import Problem
from rankdeck.config import RunConfig
from rankdeck.config.script import ScriptConfig
from rankdeck.events import MEASURED_IN_REHEARSAL, MEASURED_ON_GPU, OWNERS_SEEN, SCRIPT, DeviceMemory
from rankdeck.run.attempt import run_intervals
from rankdeck.run.devices import DeviceState
from rankdeck.run.hang_warning import HangWarning, is_hang_problem
from rankdeck.run.imbalance import Imbalance, find_imbalance
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.row import RESUMABLE
from rankdeck.run.run_intervals import RunInterval, total_duration_s
from rankdeck.run.run_state import RunState
from rankdeck.run.series import Floats
from rankdeck.run_dir import ExitRecord, RunDir
from rankdeck_app.language import tr, translate, translate_problem
from rankdeck_app.state.plan_text import FixPlan

MAX_CHARTED_DEVICES = 32


class RunView:
    """Figures of `state`, and of what other files say."""

    run_dir: RunDir
    state: RunState
    config: RunConfig | None
    script: ScriptConfig | None
    outcome: str | None
    exit_record: ExitRecord | None
    prediction: PlanLine | None
    fix_plan: FixPlan | None
    devices: list[DeviceState]
    charted_devices: list[DeviceState]
    """Those of `devices` that have a row in every chart (`select_charted_devices`)."""
    silent_hosts: Mapping[str, int] = {}
    """Since when a host of a live run has told nothing, in seconds; none that tells something each second."""
    _title: str
    _is_stop_requested: bool
    _reader_problems: list[Problem]

    @property
    def now(self) -> float:
        """The Unix time of which everything is."""
        raise NotImplementedError

    @property
    def charted_run(self) -> RunView:
        """The run whose curves are drawn."""
        return self

    @property
    def intervals(self) -> list[RunInterval]:
        """When it ran, whichever moment is shown."""
        return run_intervals(self.state.attempts.values(), is_over=self.is_over)

    @property
    def total_s(self) -> float | None:
        """Since the start by now, whichever moment is shown."""
        return self.since_start_s

    @property
    def viewed_s(self) -> float | None:
        """The moment that is shown, in seconds since the start, where that is not now."""
        return None

    def predicted_bytes(self, device: DeviceState, *, is_driver_reading: bool = False) -> int | None:
        """The predicted figure that `device_bytes` is to be compared with: live tensors of sampled steps,
        or with `is_driver_reading`, and where no step was sampled, all that the driver counts.
        """
        return self._planned_bytes(self.prediction, device, is_driver_reading=is_driver_reading)

    def fix_bytes(self, device: DeviceState) -> int | None:
        """What is planned for the fix on show, of what `device_bytes` tells."""
        return self._planned_bytes(None if self.fix_plan is None else self.fix_plan.line, device)

    def _planned_bytes(
        self, line: PlanLine | None, device: DeviceState, *, is_driver_reading: bool = False
    ) -> int | None:
        planned = [] if line is None or line.is_bound else line.devices
        found = next((one for one in planned if one.device == device.device), None)
        if found is None:
            return None
        is_of_driver = is_driver_reading or self.device_memory(device) is None
        return found.total_bytes if is_of_driver else found.active_bytes

    @property
    def strategy(self) -> str | None:
        return self.state.started.strategy if self.state.started else None

    @property
    def num_steps(self) -> int | None:
        """How many are planned."""
        planned = self.state.num_steps_planned
        return planned if planned is not None or self.config is None else self.config.train.steps

    @property
    def step(self) -> int | None:
        """The last complete step."""
        return self.state.step

    def axis_positions(self, axis: str) -> tuple[Floats, Floats] | None:
        """(steps, what they are called on another axis): seconds since the start, or samples seen by then."""
        moments, seen, started = self.state.steps_over_time, self.state.samples_seen, self.started_at
        first, last = moments.first_x, moments.last_x
        if first is None or last is None or started is None:
            return None
        steps = moments.window(first, last, 4_096)
        if axis == "time":
            return steps.low.astype(float), steps.x - started
        return steps.low.astype(float), seen.window(first, last, 4_096).low.astype(float)

    @property
    def checkpoint_step(self) -> int | None:
        """Of the newest checkpoint that was told of; it may be gone by now."""
        saved = (one.saved_step for one in self.state.attempts.values())
        return max((step for step in saved if step), default=None)

    @property
    def is_resumable(self) -> bool:
        """Whether it ended before its last step, and has a checkpoint to continue from."""
        return self.outcome in RESUMABLE and self.checkpoint_step is not None

    @property
    def hang(self) -> HangWarning | None:
        """What was said of ranks that make no progress now."""
        announced = [one for one in self.state.attempts.values() if one.started is not None]
        return announced[-1].hang if announced and self.is_live else None

    @property
    def hang_problem(self) -> Problem | None:
        """The same with the seconds that have passed by now."""
        still = self.hang
        return None if still is None else translate_problem(self.state.with_host(still.at(self.now)))

    @property
    def problems(self) -> list[Problem]:
        """What was raised, and what of the events could not be written or read; in the window's words. A
        standstill is one only while it lasts."""
        still = self.hang_problem
        raised = [problem for problem in self.state.problems if not is_hang_problem(problem)]
        found = [translate_problem(problem) for problem in (*raised, *self._reader_problems)]
        return found if still is None else [*found, still]

    @property
    def fix_changes(self) -> Mapping[str, Any]:
        """The changes that fix a configured run: those of the first error that has any."""
        errors = (problem for problem in self.state.problems if problem.severity == "error")
        return {} if self.config is None else next((one.cure for one in errors if one.cure), {})

    @property
    def started_at(self) -> float | None:
        """When the person's command started, Unix seconds."""
        return self.state.first_started.started if self.state.first_started else None

    @property
    def name(self) -> str:
        return self.run_dir.name

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
        return "stopping" if self._is_stop_requested else self.state.ending

    @property
    def is_planned(self) -> bool | None:
        """Whether a configuration says what is computed, so that each of its figures is known to come. Of a
        person's own script there is what it tells. None until either was read.
        """
        if self.config is not None or self.script is not None:
            return self.script is None
        return None if self.state.started is None else self.state.started.source != SCRIPT

    @property
    def is_observed(self) -> bool:
        """Whether steps are seen as they are taken."""
        return self.script is None or self.script.script.observe != "none"

    @property
    def has_no_steps(self) -> bool:
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
    def has_owner_memory(self) -> bool:
        """Whether memory is what owners were found for, of which no peak is known."""
        return self.state.source == OWNERS_SEEN

    def device_label(self, device: DeviceState) -> str:
        """'GPU 0', 'Virtual 0'; of a script without GPUs the CPU's share of a rank."""
        return translate(device.label) if self.is_planned or self.has_gpus else f"CPU {device.device}"

    @property
    def source(self) -> str | None:
        """'measured in rehearsal', 'measured on GPU'; of a script what its memory was read from."""
        if self.is_rehearsal is None:
            return None
        usual = MEASURED_IN_REHEARSAL if self.is_rehearsal else MEASURED_ON_GPU if self.has_gpus else None
        return self.state.source or usual

    @property
    def elapsed_s(self) -> float | None:
        """How long it ran, without the time between its attempts."""
        return total_duration_s(self.intervals, self.now)

    @property
    def since_start_s(self) -> float | None:
        """Until now while the run is alive, else until its end: as far as axes of time go."""
        started = self.started_at
        if started is None:
            return None
        if not self.is_over:
            return max(0.0, self.now - started)
        last = self.state.last_row
        ended = (
            self.exit_record.ended if self.exit_record is not None else None if last is None else last.ended
        )
        return None if ended is None else max(0.0, ended - started)

    @property
    def eta_s(self) -> float | None:
        return self.state.remaining_s() if self.is_live and self.hang is None else None

    @property
    def samples_per_s(self) -> float | None:
        """Now, smoothed, while the run is alive; then its mean."""
        mean = self.state.samples_per_s() if self.is_over else None
        return mean if mean is not None else _finite_or_none(self.state.rate_ema.last_y)

    @property
    def steps_per_s(self) -> float | None:
        """Of a script: now, smoothed, while it is alive; then its mean."""
        mean = self.state.steps_per_s() if self.is_over else None
        return mean if mean is not None else _finite_or_none(self.state.script.step_rate_ema.last_y)

    @property
    def loss(self) -> float | None:
        """The loss of the last step that told one; NaN where a script's is not finite since."""
        lost_in, known = self.state.script.first_nonfinite_step, self.state.losses.last_x
        if lost_in is not None and (known is None or known < lost_in):
            return math.nan
        return self.state.losses.last_y

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
        """Of the `charted_devices`, by their place."""
        return find_imbalance(
            {place: self.device_bytes(device) for place, device in enumerate(self.charted_devices)}
        )

    @property
    def is_grouped_by_host(self) -> bool:
        """Whether a row stands for all devices of its host."""
        return len(self.charted_devices) < len(self.devices)

    @property
    def is_simulated(self) -> bool:
        """Whether times are those of pretended devices."""
        return self.state.started is not None and self.state.started.pace == "simulated"

    def device_memory(self, device: DeviceState) -> DeviceMemory | None:
        """The last sampled step while the run is alive; then the one with the largest peak of the run. What
        owners hold has no peak: it is the last one always.
        """
        is_newest = not self.is_over or device.is_owners_only
        return device.memory if is_newest else device.largest_memory

    def device_bytes(self, device: DeviceState) -> int | None:
        """The peak of that step; without one, what the driver says is in use."""
        memory = self.device_memory(device)
        return memory.peak_bytes if memory is not None else device.used_bytes

    def phase_text(self) -> str | None:
        """What the ranks are busy with before the first step; None while none has said anything."""
        phases = self.state.phases
        if not phases:
            return None
        rank, phase = min(phases.items())
        return tr(phase) if len(phases) == 1 else tr("rank {rank}: {phase}", rank=rank, phase=tr(phase))


def select_charted_devices(devices: list[DeviceState]) -> list[DeviceState]:
    """All of them, but of many over several hosts the fullest of each host, the first of those as full."""
    if len(devices) <= MAX_CHARTED_DEVICES or any(not device.host for device in devices):
        return devices
    fullest: dict[str, tuple[int, DeviceState]] = {}
    for device in devices:
        largest = device.largest_memory
        most_bytes = (device.used_peak_bytes or 0) if largest is None else largest.peak_bytes
        if most_bytes > fullest.get(device.host, (-1, device))[0]:
            fullest[device.host] = most_bytes, device
    return [device for _, device in fullest.values()]


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
