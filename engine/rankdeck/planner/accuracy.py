"""Predicted beside measured: what the planner says of a run that has been, and a table of all such runs.

A run keeps the line that was predicted for it (plan.json in its directory, plan.<attempt>.json of one that
was resumed), so it is planned once; the table is made from the runs that are there. Compared are peaks of
live tensors: the ledger's in a rehearsal, torch's allocator on a GPU. Read pool.py before.
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
    """One device of a run. `error` is (predicted - measured) / measured."""

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
    """The line for a run as it was configured, from its directory or planned now; None where it never began.

    Raises: ConfigError when its configuration cannot be read.
    """
    file = prediction_file(run)  # an attempt that starts meanwhile has its own
    config = config_to_predict(run)
    if config is None:
        return read_prediction(run)
    infos = run.devices()
    candidate = Candidate(config.strategy.use, dict(config.strategy.options), configured=True)
    (line,) = plan_candidates(config, [candidate], target_of_run(infos))
    files.replace_file(file, plan_lines.encode(line))
    return line


def target_of_run(infos: Sequence[DeviceInfo]) -> Target:
    """What to plan for where a run has been: its own devices, with nothing else on them."""
    like_cuda = infos[0].kind == "gpu"
    devices = tuple(
        TargetDevice.of_gpu(info) if like_cuda else TargetDevice(info.name, info.total_bytes)
        for info in infos
    )
    return Target(f"{len(infos)} x {infos[0].name}", devices, like_cuda)


def compare_with_measured(run: RunDir) -> list[DeviceAccuracy]:
    """Every device of a run of which both figures are known. Plans the run if nobody did."""
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
    """Measured over predicted step time of the newest run of the same model on the same kind of GPU.

    None where no such run has both; in a rehearsal there is no prediction to scale.
    """
    gpu = _gpu_name(target.devices[0].name)
    for run in runs:
        line = read_prediction(run)
        if line is None or line.step is None or line.step.calibrated or not line.devices:
            continue
        try:
            like_this = run.config().model == config.model and _gpu_name(line.devices[0].name) == gpu
        except ConfigError:
            continue
        median_s = summarize(run).step_s.median if like_this else None
        if median_s is not None:
            return float(median_s / (line.step.low_s * line.step.high_s) ** 0.5)
    return None


def _gpu_name(name: str | None) -> str | None:
    """A GPU by its name here, however the driver writes it."""
    gpu = find_gpu(name or "")
    return name if gpu is None else gpu.name


@dataclass(frozen=True)
class ErrorSpread:
    """How far predictions are off, as shares of what was measured: half of them less than `median`, 95 of a
    hundred less than `p95`."""

    median: float
    p95: float
    worst: float


def error_spread(errors: Iterable[float]) -> ErrorSpread | None:
    """The spread of some errors, whatever their sign; None where there is none."""
    sizes = sorted(abs(error) for error in errors)
    if not sizes:
        return None
    p95 = sizes[min(len(sizes) - 1, -(-95 * len(sizes) // 100) - 1)]
    return ErrorSpread(statistics.median(sizes), p95, sizes[-1])
