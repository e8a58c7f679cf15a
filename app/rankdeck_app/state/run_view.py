"""The interface through which views read a run: live (live_run.py), or as it was earlier (past_run.py).

All values come from a run state (rankdeck.run.run_state). Unknown values are None.
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

# With rows for 256 devices a frame took 72 ms at p99: half of it for scales that each row computed anew, half
# for rows lower than a pixel.
MAX_CHARTED_DEVICES = 32


class RunView:
    """The values of a run that views show, derived from its `state` and its other files."""

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
    """The `devices` that have a row in every chart (see `select_charted_devices`)."""
    silent_hosts: Mapping[str, int] = {}
    """Seconds of silence by host, for silent hosts of a live run only; each host should report once a second.
    """
    _title: str
    _is_stop_requested: bool
    _reader_problems: list[Problem]

    @property
    def now(self) -> float:
        """The Unix time at which the run is viewed."""
        raise NotImplementedError

    @property
    def charted_run(self) -> RunView:
        """The view whose curves are drawn. For a past state, this is the live run, unless a later attempt has
        repeated the viewed step."""
        return self

    @property
    def intervals(self) -> list[RunInterval]:
        """The intervals in which the run was running, regardless of the viewed time."""
        return run_intervals(self.state.attempts.values(), is_over=self.is_over)

    @property
    def total_s(self) -> float | None:
        """Seconds from the start to the present, or to an ended run's end, regardless of the viewed time."""
        return self.since_start_s

    @property
    def viewed_s(self) -> float | None:
        """The viewed time in seconds since the start; None if the present is viewed."""
        return None

    def predicted_bytes(self, device: DeviceState, *, is_driver_reading: bool = False) -> int | None:
        """Return the memory predicted for the live tensors of `device` in a sampled step, to compare with
        `device_bytes`.

        If `is_driver_reading` is True or no step was sampled, return all of the device's predicted
        memory, as the driver would report it.
        """
        return self._planned_bytes(self.prediction, device, is_driver_reading=is_driver_reading)

    def fix_bytes(self, device: DeviceState) -> int | None:
        """Return the memory predicted for `device` with the fix that is shown, to compare with
        `device_bytes`."""
        return self._planned_bytes(None if self.fix_plan is None else self.fix_plan.line, device)

    def _planned_bytes(
        self, line: PlanLine | None, device: DeviceState, *, is_driver_reading: bool = False
    ) -> int | None:
        # A bound is not drawn, because it would look like an exact prediction.
        planned = [] if line is None or line.is_bound else line.devices
        planned_device = next((candidate for candidate in planned if candidate.device == device.device), None)
        if planned_device is None:
            return None
        is_of_driver = is_driver_reading or self.device_memory(device) is None
        return planned_device.total_bytes if is_of_driver else planned_device.active_bytes

    @property
    def strategy(self) -> str | None:
        return self.state.started.strategy if self.state.started else None

    @property
    def num_steps(self) -> int | None:
        """The number of planned steps."""
        planned = self.state.num_steps_planned
        return planned if planned is not None or self.config is None else self.config.train.steps

    @property
    def step(self) -> int | None:
        """The last complete step."""
        return self.state.step

    def axis_positions(self, axis: str) -> tuple[Floats, Floats] | None:
        """Return the steps and their positions on the axis: seconds since the start, or number of samples."""
        step_times, samples, started = self.state.steps_over_time, self.state.samples_seen, self.started_at
        first, last = step_times.first_x, step_times.last_x
        if first is None or last is None or started is None:
            return None
        steps = step_times.window(first, last, 4_096)
        if axis == "time":
            return steps.low.astype(float), steps.x - started
        return steps.low.astype(float), samples.window(first, last, 4_096).low.astype(float)

    @property
    def checkpoint_step(self) -> int | None:
        """The step of the newest reported checkpoint, even if that checkpoint has been deleted since."""
        saved = (attempt.saved_step for attempt in self.state.attempts.values())
        return max((step for step in saved if step), default=None)

    @property
    def is_resumable(self) -> bool:
        """Whether the run ended before its last step and has a checkpoint to resume from."""
        return self.outcome in RESUMABLE and self.checkpoint_step is not None

    @property
    def hang(self) -> HangWarning | None:
        """The warning about ranks that are making no progress now; None if all ranks are making progress."""
        announced = [attempt for attempt in self.state.attempts.values() if attempt.started is not None]
        return announced[-1].hang if announced and self.is_live else None

    @property
    def hang_problem(self) -> Problem | None:
        """The hang as a problem that states how many seconds it has lasted."""
        still = self.hang
        return None if still is None else translate_problem(self.state.with_host(still.at(self.now)))

    @property
    def problems(self) -> list[Problem]:
        """The problems, in the window's language: those reported, and those that occurred while events were
        written or read.

        A hang is included only while it lasts.
        """
        still = self.hang_problem
        raised = [problem for problem in self.state.problems if not is_hang_problem(problem)]
        translated = [translate_problem(problem) for problem in (*raised, *self._reader_problems)]
        return translated if still is None else [*translated, still]

    @property
    def fix_changes(self) -> Mapping[str, Any]:
        """The configuration changes suggested by the first error that suggests any; empty for a script."""
        errors = (problem for problem in self.state.problems if problem.severity == "error")
        return {} if self.config is None else next((error.cure for error in errors if error.cure), {})

    @property
    def started_at(self) -> float | None:
        """The Unix time at which the user's command started."""
        return self.state.first_started.started if self.state.first_started else None

    @property
    def name(self) -> str:
        return self.run_dir.name

    @property
    def title(self) -> str:
        """The run's title; the name of its directory until the title is read."""
        return self._title or self.name

    @property
    def is_live(self) -> bool:
        return self.outcome == "running"

    @property
    def is_over(self) -> bool:
        return self.outcome not in (None, "running")

    @property
    def ending(self) -> str | None:
        """How a live run is ending: "stopping" after a stop request, else "ending"; None while it trains."""
        if not self.is_live:
            return None
        return "stopping" if self._is_stop_requested else self.state.ending

    @property
    def is_planned(self) -> bool | None:
        """Whether a configuration defines the computation, so that all metrics will be reported.

        False for a user's script, whose only metrics are those that the script reports. None until the
        configuration or script has been read.
        """
        if self.config is not None or self.script is not None:
            return self.script is None
        return None if self.state.started is None else self.state.started.source != SCRIPT

    @property
    def is_observed(self) -> bool:
        """Whether steps are observed during training; False only for a script with observe = "none"."""
        return self.script is None or self.script.script.observe != "none"

    @property
    def has_no_steps(self) -> bool:
        """Whether no step was observed and none will be."""
        return self.step is None and (self.is_over or not self.is_observed)

    @property
    def is_rehearsal(self) -> bool | None:
        """Whether virtual devices stand in for GPUs; False for a script that trains on the CPU."""
        return bool(self.is_planned) and not self.has_gpus if self.devices else None

    @property
    def has_gpus(self) -> bool:
        return bool(self.devices) and self.devices[0].kind == "gpu"

    @property
    def has_owner_memory(self) -> bool:
        """Whether memory was measured as the total size of module and optimizer tensors; the peak is then
        unknown."""
        return self.state.source == OWNERS_SEEN

    def device_label(self, device: DeviceState) -> str:
        """Return a label such as 'GPU 0' or 'Virtual 0'; in a script without GPUs, rank 0 is 'CPU 0'."""
        return translate(device.label) if self.is_planned or self.has_gpus else f"CPU {device.device}"

    @property
    def source(self) -> str | None:
        """The metrics' source: 'measured in rehearsal', 'measured on GPU' or one that a script reported."""
        if self.is_rehearsal is None:
            return None
        default = MEASURED_IN_REHEARSAL if self.is_rehearsal else MEASURED_ON_GPU if self.has_gpus else None
        return self.state.source or default

    @property
    def elapsed_s(self) -> float | None:
        """Seconds for which the run has been running, excluding the time between attempts."""
        return total_duration_s(self.intervals, self.now)

    @property
    def since_start_s(self) -> float | None:
        """Seconds from the start to `now`, or to the end if the run has ended: the extent of time axes."""
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
        """A live run's current rate, smoothed, or an ended run's mean rate."""
        mean = self.state.samples_per_s() if self.is_over else None
        return mean if mean is not None else _finite_or_none(self.state.rate_ema.last_y)

    @property
    def steps_per_s(self) -> float | None:
        """A live script's current rate, smoothed, or an ended script's mean rate."""
        mean = self.state.steps_per_s() if self.is_over else None
        return mean if mean is not None else _finite_or_none(self.state.script.step_rate_ema.last_y)

    @property
    def loss(self) -> float | None:
        """The last reported loss; NaN if a script's loss has become non-finite since."""
        lost_in, last_step = self.state.script.first_nonfinite_step, self.state.losses.last_x
        if lost_in is not None and (last_step is None or last_step < lost_in):
            return math.nan
        return self.state.losses.last_y

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of the smallest device, or a rehearsal's simulated capacity; None if neither is
        available."""
        sizes = [device.total_bytes for device in self.devices]
        known_sizes = [size for size in sizes if size is not None]
        if known_sizes:
            return min(known_sizes)
        return self.config.capacity_bytes if self.config is not None and self.is_rehearsal else None

    @property
    def imbalance(self) -> Imbalance | None:
        """The memory imbalance among `charted_devices`; it refers to the devices by their index in that
        list."""
        return find_imbalance(
            {index: self.device_bytes(device) for index, device in enumerate(self.charted_devices)}
        )

    @property
    def is_grouped_by_host(self) -> bool:
        """Whether each chart row represents a whole host instead of a single device."""
        return len(self.charted_devices) < len(self.devices)

    @property
    def is_simulated(self) -> bool:
        """Whether the reported times are those of simulated devices."""
        return self.state.started is not None and self.state.started.pace == "simulated"

    def device_memory(self, device: DeviceState) -> DeviceMemory | None:
        """Return a device's memory: in a live run, its memory in the last sampled step; in an ended run, its
        memory in the step with the largest peak.

        If only the tensors of modules and optimizers were measured, there is no peak, so the last sampled
        step is used even after the end.
        """
        is_newest = not self.is_over or device.is_owners_only
        return device.memory if is_newest else device.largest_memory

    def device_bytes(self, device: DeviceState) -> int | None:
        """Return the peak of `device_memory`; if no step was sampled, the bytes that the driver reports as
        used."""
        memory = self.device_memory(device)
        return memory.peak_bytes if memory is not None else device.used_bytes

    def phase_text(self) -> str | None:
        """Return the phase that the ranks are in before the first step; None if none has been reported."""
        phases = self.state.phases
        if not phases:
            return None
        rank, phase = min(phases.items())
        return tr(phase) if len(phases) == 1 else tr("rank {rank}: {phase}", rank=rank, phase=tr(phase))


def select_charted_devices(devices: list[DeviceState]) -> list[DeviceState]:
    """Return all devices, or each host's device with the largest peak if many devices span several hosts."""
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
