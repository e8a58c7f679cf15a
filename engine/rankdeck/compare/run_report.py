"""Report the results of a run as text: memory compared with its prediction, time by phase, metrics, and
fixes.

Both the page of `rankdeck report` and the summary above a dashboard show this report.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from rankdeck.base import files
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.base.units import format_bytes, format_count
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.compare import formatting
from rankdeck.compare.run_metrics import ComparedRun
from rankdeck.compare.run_setup import config_file_of
from rankdeck.compare.table import compare_runs
from rankdeck.diagnose.fixes import Fix
from rankdeck.run.anatomy import SIMULATED_TIME, seconds_by_phase
from rankdeck.run.imbalance import find_imbalance
from rankdeck.run.row import RESUMABLE
from rankdeck.run.run_state import RunState
from rankdeck.run_dir import is_entry

SUMMARY_KEYS = (
    "step", "loss", "held_out", "best_held_out", "accuracy", "samples_per_s", "steps_per_s", "step_s",
    "trained_s", "wait", "bubble", "imbalance", "sent",
)  # fmt: skip
"""Keys of the comparison rows that a report shows, in the order of table.ROW_SPECS."""


class ReportedDevice(NamedTuple):
    """A device's measured memory compared with the prediction."""

    label: str
    measured: str
    predicted: str
    error: str
    kinds: str


class PhaseTable(NamedTuple):
    """Seconds by phase in the last sampled step: a row per phase, a column per device.

    Each row of `summary` contains a phase's median and maximum across the devices.
    """

    step: int
    devices: list[str]
    rows: list[tuple[str, list[str]]]
    summary: list[tuple[str, list[str]]]
    note: str


class SummaryMetric(NamedTuple):
    """One metric with its label, text and detail."""

    key: str
    label: str
    text: str
    detail: str


ERROR_SIGN_NOTE = tr_noop("+ means that the prediction exceeds the measurement")
"""Note that explains the sign of a prediction error."""


class RunReport(NamedTuple):
    """Report of a run. `memory_source` is how the memory was measured; None if unknown."""

    metrics: list[SummaryMetric]
    devices: list[ReportedDevice]
    is_predicted: bool
    memory_source: str | None
    phases: PhaseTable | None
    fixes: list[Fix]


def build_report(run: ComparedRun, state: RunState) -> RunReport:
    """Build the report. Do not call this function on the UI thread: to suggest fixes, it reads the run's
    folder."""
    rows = compare_runs([run]).rows
    return RunReport(
        [
            SummaryMetric(row.key, row.label, row.cell(0), row.detail(0))
            for row in rows
            if row.key in SUMMARY_KEYS
        ],
        list(_reported_devices(run)),
        any(device.predicted_bytes is not None for device in run.devices),
        run.memory_source_text or None,
        _phase_table(run, state),
        suggest_fixes(run),
    )


def _reported_devices(run: ComparedRun) -> Iterator[ReportedDevice]:
    for device in run.devices:
        measured, predicted = device.num_bytes, device.predicted_bytes
        error = f"{(predicted / measured - 1) * 100:+.2f} %" if predicted and measured else formatting.UNKNOWN
        largest = sorted(device.by_kind.items(), key=lambda kind: -kind[1])[:4]
        yield ReportedDevice(
            device.label,
            formatting.UNKNOWN if measured is None else format_bytes(measured),
            formatting.UNKNOWN if predicted is None else format_bytes(predicted),
            error,
            ", ".join(f"{kind} {format_bytes(size)}" for kind, size in largest if size),
        )


def _phase_table(run: ComparedRun, state: RunState) -> PhaseTable | None:
    sampled = state.anatomy
    if sampled is None:
        return None
    by_device = [dict(seconds_by_phase(row)) for row in sampled.rows]
    names = dict.fromkeys(name for totals in by_device for name in totals)
    times_by_phase = {
        name: [device_totals[name] for device_totals in by_device if name in device_totals] for name in names
    }
    labels = {index: device.label for index, device in enumerate(run.devices)}
    return PhaseTable(
        sampled.step,
        [labels.get(row.device, str(row.device)) for row in sampled.rows],
        [
            (
                name,
                [
                    formatting.format_step_time(device_totals[name])
                    if name in device_totals
                    else formatting.UNKNOWN
                    for device_totals in by_device
                ],
            )
            for name in names
        ],
        [
            (name, [formatting.format_step_time(median(times)), formatting.format_step_time(max(times))])
            for name, times in times_by_phase.items()
        ],
        phrase(SIMULATED_TIME) if sampled.simulated else formatting.format_time_source(run),
    )


# Fixes after a run: each follows from a measured metric and names it.

_LARGE_BUBBLE, _LONG_WAIT, _WORSE_RATIO = 0.15, 0.15, 1.02
# By outcome: the text before the first step, and after a step.
_END_TEXTS = {
    "stopped": (
        tr_noop("The run was stopped before its first step."),
        tr_noop("The run was stopped at step {step}."),
    ),
    "failed": (tr_noop("The run failed before its first step."), tr_noop("The run failed at step {step}.")),
    "lost": (tr_noop("The run was lost before its first step."), tr_noop("The run was lost at step {step}.")),
}


def suggest_fixes(run: ComparedRun) -> list[Fix]:
    """Return fixes, the most significant first; empty if nothing stands out."""
    return [
        *_imbalance_fixes(run),
        *_bubble_fixes(run),
        *_loader_fixes(run),
        *_overfitting_fixes(run),
        *_next_command_fixes(run),
    ]


def _retrain_command(run: ComparedRun, *options: str) -> list[str]:
    return ["rankdeck", "train", str(config_file_of(run.ref)), *options]


def _imbalance_fixes(run: ComparedRun) -> Iterator[Fix]:
    imbalance = find_imbalance({index: device.num_bytes for index, device in enumerate(run.devices)})
    if imbalance is None or not imbalance.is_notable or run.strategy not in ("dp", "DataParallel"):
        return
    label, excess = run.devices[imbalance.device].label, format_bytes(imbalance.excess_bytes)
    why = phrase("{device} uses {excess} more memory than the other devices.", device=label, excess=excess)
    what = phrase("Train with DistributedDataParallel, which uses the same amount of memory on every device.")
    # A script wraps its model itself, so no command of ours can change that.
    command = _retrain_command(run, "--strategy", "ddp") if run.strategy == "dp" else []
    yield Fix(what, why, command=command)


def _bubble_fixes(run: ComparedRun) -> Iterator[Fix]:
    bubble, theory = run.value("bubble"), run.value("bubble_theory")
    if bubble is None or bubble < _LARGE_BUBBLE:
        return
    # Much more than the schedule explains: the stages are unequal.
    if theory is not None and bubble > 1.5 * theory:
        yield Fix(
            phrase("Balance the stages by measured time."),
            phrase(
                "Devices are idle for {bubble:.0%} of a step; the schedule alone explains {theory:.0%}.",
                bubble=bubble,
                theory=theory,
            ),
            command=_retrain_command(run, "--set", "strategy.balance=time"),
        )
    else:
        yield Fix(
            phrase("Split the batch into more microbatches, or use an interleaved or zero-bubble schedule."),
            phrase("Devices are idle for {bubble:.0%} of a step.", bubble=bubble),
        )


def _loader_fixes(run: ComparedRun) -> Iterator[Fix]:
    wait = run.value("wait")
    if wait is not None and wait >= _LONG_WAIT:
        yield Fix(
            phrase("Give the DataLoader more workers."),
            phrase("{wait:.0%} of a step is spent waiting for data.", wait=wait),
        )


def _overfitting_fixes(run: ComparedRun) -> Iterator[Fix]:
    last, best = run.metrics.get("held_out"), run.metrics.get("best_held_out")
    if last is None or best is None or best.step is None or last.value < _WORSE_RATIO * best.value:
        return
    step = format_count(best.step)
    yield Fix(
        phrase("Stop training after step {step}, or use stronger regularisation.", step=step),
        phrase(
            "The held-out loss was {best:.4f} at step {step} and rose to {last:.4f}.",
            best=best.value,
            step=step,
            last=last.value,
        ),
    )


def _next_command_fixes(run: ComparedRun) -> Iterator[Fix]:
    name = run.ref.path.name
    if run.ref.attempt is not None or run.observed is not None or is_entry(run.ref.path):
        return
    if run.outcome in RESUMABLE:
        if not list_checkpoints(run.ref.run_dir.checkpoints_folder):
            return
        yield Fix(
            phrase("Continue from the run's newest checkpoint."),
            _end_text(run),
            command=["rankdeck", "resume", name],
        )
    elif files.is_regular(run.ref.run_dir.weights):
        command = ["rankdeck", "export", name, "weights.safetensors", "--to", "safetensors"]
        what, why = phrase("Export the run's weights."), phrase("The weights were saved when the run ended.")
        yield Fix(what, why, command=command)


def _end_text(run: ComparedRun) -> str:
    step, (before, after) = run.value("step"), _END_TEXTS[run.outcome]
    return phrase(before) if step is None else phrase(after, step=format_count(step))
