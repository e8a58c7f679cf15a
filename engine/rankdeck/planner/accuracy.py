"""Compare the planner's predictions with the measurements of past runs.

A run stores the plan line that was predicted for it (plan.json in its directory, plan.<attempt>.json after a
resume), so each run is planned once; `rankdeck plan --accuracy` builds its table from the existing runs. The
compared values are peaks of live tensors: measured by the ledger in a rehearsal, by torch's allocator on a
GPU. Read pool.py first.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig
from rankdeck.config.gpu_models import find_gpu
from rankdeck.events import DeviceInfo
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.pool import plan_candidates
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.prediction import config_to_predict, prediction_file, read_prediction
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import RunDir


@dataclass(frozen=True)
class DeviceAccuracy:
    """Prediction and measurement for one device of a run. `error` is (predicted - measured) / measured."""

    run: str
    strategy: str
    device: int
    kind: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def predict_run(run: RunDir) -> PlanLine | None:
    """Return the plan line for a run as configured, read from its directory or planned now.

    Return None if the run never started.

    Raises:
        ConfigError: the run's configuration cannot be read.
    """
    file = prediction_file(run)  # first: an attempt that starts meanwhile has another file
    config = config_to_predict(run)
    if config is None:
        return read_prediction(run)
    infos = run.devices()
    candidate = Candidate(config.strategy.use, dict(config.strategy.options), configured=True)
    (line,) = plan_candidates(config, [candidate], target_of_run(infos))
    files.replace_file(file, plan_lines.encode(line))
    return line


def target_of_run(infos: Sequence[DeviceInfo]) -> Target:
    """Return the target for planning a past run: its own devices, as if nothing else had used them."""
    like_cuda = infos[0].kind == "gpu"
    devices = tuple(
        TargetDevice.of_gpu(info) if like_cuda else TargetDevice(info.name, info.total_bytes)
        for info in infos
    )
    return Target(f"{len(infos)} x {infos[0].name}", devices, like_cuda)


def compare_with_measured(run: RunDir) -> list[DeviceAccuracy]:
    """Return the accuracy for each device with both a prediction and a measurement.

    The run is planned now if it has no prediction yet.
    """
    try:
        measured = [device for device in summarize(run).devices if device.peak_bytes]
        line = predict_run(run) if measured else None
    except (ConfigError, msgspec.ValidationError):
        return []
    if line is None or line.is_bound:
        return []
    predicted = {device.device: device.active_bytes for device in line.devices}
    return [
        DeviceAccuracy(
            run.name,
            line.label,
            device.device,
            device.kind or "",
            predicted[device.device],
            device.peak_bytes or 0,
        )
        for device in measured
        if device.device in predicted
    ]


def step_time_scale(runs: Iterable[RunDir], config: RunConfig, target: Target) -> float | None:
    """Return the ratio of measured to predicted step time.

    The ratio is that of the newest run of the same model on the same GPU model. Return None if no such run
    has both times; a rehearsal has no predicted step time.
    """
    gpu = _gpu_name(target.devices[0].name)
    for run in runs:
        line = read_prediction(run)
        # A calibrated prediction already contains a scale.
        if line is None or line.step is None or line.step.calibrated or not line.devices:
            continue
        try:
            like_this = run.config().model == config.model and _gpu_name(line.devices[0].name) == gpu
        except ConfigError:
            continue
        median_s = summarize(run).step_s.median if like_this else None
        if median_s is not None:
            # The geometric mean is the middle of a range that spans ratios.
            return float(median_s / (line.step.low_s * line.step.high_s) ** 0.5)
    return None


def _gpu_name(name: str | None) -> str | None:
    """Return the catalogue's name for a GPU, however the driver spells it, or `name` if the GPU is not in the
    catalogue."""
    gpu = find_gpu(name or "")
    return name if gpu is None else gpu.name


@dataclass(frozen=True)
class ErrorSpread:
    """Distribution of absolute prediction errors, as fractions of the measured values.

    Half of the errors are at most `median`, 95 % are at most `p95`.
    """

    median: float
    p95: float
    worst: float


def error_spread(errors: Iterable[float]) -> ErrorSpread | None:
    """Return the distribution of absolute errors; None if `errors` is empty."""
    sizes = sorted(abs(error) for error in errors)
    if not sizes:
        return None
    # Nearest rank: ceil(0.95 n), which is defined for any number of runs.
    p95 = sizes[min(len(sizes) - 1, -(-95 * len(sizes) // 100) - 1)]
    return ErrorSpread(statistics.median(sizes), p95, sizes[-1])
