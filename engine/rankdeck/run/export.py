"""Export a run's weights or metrics to a file that other programs can read.

A file appears complete or not at all: it is written under a temporary name in the same folder and then
renamed.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rankdeck.base import files
from rankdeck.base.errors import ConfigError, MachineError, RankdeckError
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.events import SCRIPT, AnyEvent, RunStarted, Spans, Steps
from rankdeck.run.problems import read_script_config, script_name
from rankdeck.run.run_state import RunState, read_run_state
from rankdeck.run.script_state import ScriptMetric
from rankdeck.run.step_table import COLUMNS, Row
from rankdeck.run.summary_builder import summarize
from rankdeck.run.tensorboard import read_scalars, records
from rankdeck.run.trace import make_trace
from rankdeck.run_dir import EventReader, RunDir

# TensorBoard reads only files with this in their name.
_TENSORBOARD = "tfevents"


def export_weights(run: RunDir, file: Path) -> None:
    """Export the final weights under the model's original names, as safetensors.

    Raises:
        ConfigError: the run has no final weights (yet) or is a user script, or the file cannot be written.
    """
    script = read_script_config(run)
    if script is not None:
        raise ConfigError(
            phrase(
                "{run} has no weights to export: {script} is your own script and saves them itself.",
                run=run.name,
                script=script_name(script),
            ),
            code="no-weights",
            path=str(run.path),
            advice=phrase(
                "Look for the weights in the folder in which the run was started: {folder}",
                folder=script.script.folder,
            ),
        )
    if not files.is_regular(run.weights):
        outcome = run.outcome()
        later = phrase(
            "Weights are saved after the last step. Follow the run with: rankdeck watch {run}", run=run.name
        )
        raise ConfigError(
            _no_weights_message(run.name, outcome),
            code="no-weights",
            path=str(run.weights),
            advice=later if outcome == "running" else None,
        )
    write_export(file, lambda target: shutil.copyfile(run.weights, target))


def are_weights_outdated(run: RunDir) -> bool:
    """Check whether an ended run has a checkpoint later than its final weights, or a checkpoint but no final
    weights."""
    saved = list_checkpoints(run.checkpoints_folder)
    return bool(saved) and not run.is_alive() and saved[0].step > _read_step(run.weights)


def _read_step(weights: Path) -> int:
    """Return the step of a weights file; -1 if there is no readable file."""
    if not files.is_regular(weights):
        return -1
    try:
        with safe_open(weights, framework="numpy") as file:
            return int((file.metadata() or {})["step"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return -1


def export_csv(run: RunDir, file: Path, attempt: int | None = None) -> None:
    """Export one row per complete step; unknown values are empty cells.

    If `attempt` is set, export the run as it was when that attempt ended. Evaluations and logged values have
    their own columns, and rows of their own if their step is not complete.

    Raises:
        ConfigError: the file cannot be written.
    """
    state = read_run_state(run, attempt=attempt, max_rows=None)
    columns, values_by_column = _step_columns(state), _values_by_step(state)
    steps = {row.step: _cells(row, len(columns)) for row in state.rows()}
    unknown = [None] * (len(columns) - 1)

    def write(target: Path) -> None:
        # newline="": the csv module writes its own line ends.
        with open(target, "w", newline="", encoding="utf-8") as stream:
            table = csv.writer(stream)
            table.writerow([*columns, *values_by_column])
            for step in sorted(
                steps.keys() | {step for values in values_by_column.values() for step in values}
            ):
                cells = steps.get(step, [step, *unknown]) + [
                    values.get(step) for values in values_by_column.values()
                ]
                table.writerow(["" if value is None else value for value in cells])

    write_export(file, write)


def _values_by_step(state: RunState) -> dict[str, dict[int, float]]:
    """Return, for each column, a mapping from step to value: evaluations, and the last value logged in each
    step.

    A column has the same name as in TensorBoard, unless another column already has that name.
    """
    values_by_column: dict[str, dict[int, float]] = {}
    for attempt in state.attempts.values():
        for evaluation in attempt.evaluations:
            for name, value in (("loss", evaluation.loss), ("accuracy", evaluation.accuracy)):
                if value is not None:
                    values_by_column.setdefault(f"held_out/{name}", {})[evaluation.step] = value
    taken = {*_step_columns(state), *values_by_column}
    for name, metric in state.metrics.items():
        steps, _, values = (column.tolist() for column in metric.points())
        column = f"logged/{name}" if name in taken else name
        values_by_column[column] = {int(step): value for step, value in zip(steps, values, strict=True)}
    return values_by_column


def export_json(run: RunDir, file: Path, attempt: int | None = None) -> None:
    """Export a summary and all steps as JSON.

    If `attempt` is set, export the run as it was when that attempt ended. "summary" is `RunSummary.facts()`,
    "steps" has one object per complete step. "metrics" contains the values that a script, a model or a loss
    logged: a list of {step, time, value} by name. "held_out" contains the evaluations: a list of {step, time,
    loss, accuracy}.

    Raises:
        ConfigError: the file cannot be written.
    """
    state = read_run_state(run, attempt=attempt, max_rows=None)
    columns = _step_columns(state)
    steps = [dict(zip(columns, _cells(row, len(columns)), strict=True)) for row in state.rows()]
    document: dict[str, object] = {"summary": summarize(run, state, attempt=attempt).facts(), "steps": steps}
    evaluations = [evaluation for attempt in state.attempts.values() for evaluation in attempt.evaluations]
    if evaluations:
        document["held_out"] = [
            {
                "step": evaluation.step,
                "time": evaluation.t,
                "loss": evaluation.loss,
                "accuracy": evaluation.accuracy,
            }
            for evaluation in evaluations
        ]
    document["metrics"] = {name: _metric_rows(metric) for name, metric in state.metrics.items()}
    text = json.dumps(document, indent=1, allow_nan=False)
    write_export(file, lambda target: target.write_text(text + "\n", encoding="utf-8"))


def export_trace(run: RunDir, file: Path, attempt: int | None = None) -> None:
    """Export the sampled steps of all attempts (up to `attempt`, if it is set) for the Perfetto viewer.

    For a script, every step is exported.

    Raises:
        ConfigError: no step was sampled (yet), or the file cannot be written.
    """
    reader, events = EventReader(run, last_attempt=attempt), list[AnyEvent]()
    while chunk := reader.read():
        events += [event for _, event in chunk]
    is_observed = any(isinstance(event, RunStarted) and event.source == SCRIPT for event in events)
    if not any(isinstance(event, Steps if is_observed else Spans) for event in events):
        message = phrase("{run} has no sampled steps.", run=run.name)
        advice = phrase("Steps 2 to 4 are always sampled: run at least four steps.")
        if is_observed:
            message = phrase("{run} has no steps.", run=run.name)
            advice = phrase("Rankdeck observed no optimizer step in the run's script.")
        raise ConfigError(message, code="no-spans", path=str(run.events_folder), advice=advice)
    text = json.dumps(make_trace(events), allow_nan=False, separators=(",", ":"))
    write_export(file, lambda target: target.write_text(text, encoding="utf-8"))


def export_tensorboard(run: RunDir, file: Path, attempt: int | None = None) -> Path:
    """Export a run's curves for TensorBoard; return the file written.

    `file` is a log folder for TensorBoard, or a complete file name that contains "tfevents".

    Raises:
        ConfigError: there is no curve (yet), or the file cannot be written.
    """
    state = read_run_state(run, attempt=attempt, max_rows=None)
    scalars = list(read_scalars(state))
    if not scalars:
        message = phrase("{run} has no curves.", run=run.name)
        raise ConfigError(message, code="no-curves", path=str(run.events_folder))
    file = expand_home(file)
    start_time = min(scalar.t for scalar in scalars)
    # It names a folder: add a file name that TensorBoard accepts.
    if _TENSORBOARD not in file.name:
        try:
            file.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _write_error(file, error) from None
        file = file / f"events.out.{_TENSORBOARD}.{int(start_time)}.{run.name}"

    def write(target: Path) -> None:
        with open(target, "wb") as stream:
            stream.writelines(records(start_time, scalars))

    write_export(file, write)
    return file


def _step_columns(state: RunState) -> tuple[str, ...]:
    """Return the columns of the run's step tables."""
    # A script's attempt whose start event has not been read still has the fewer columns of a configured run.
    return max((attempt.table.columns for attempt in state.attempts.values()), key=len, default=COLUMNS)


def _cells(row: Row, num_columns: int) -> list[Any]:
    """Return the row's cells: None for unknown values, and the number of samples as an integer."""
    cells = [value if math.isfinite(value) else None for value in row[:num_columns]]
    samples = COLUMNS.index("samples")
    count = cells[samples]
    cells[samples] = None if count is None else int(count)
    return cells


def _metric_rows(metric: ScriptMetric) -> list[dict[str, object]]:
    columns = (column.tolist() for column in metric.points())
    return [
        {"step": int(step), "time": t if math.isfinite(t) else None, "value": value}
        for step, t, value in zip(*columns, strict=True)
    ]


def _no_weights_message(run: str, outcome: str) -> Phrase:
    if outcome == "running":
        return phrase("{run} has no weights yet.", run=run)
    if outcome == "lost":
        return phrase("{run} has no weights: it was killed before they were saved.", run=run)
    if outcome == "stopped":
        return phrase("{run} has no weights: it was stopped before they were saved.", run=run)
    return phrase("{run} has no weights: it ended before they were saved.", run=run)


def write_export(file: Path, fill: Callable[[Path], object]) -> None:
    """Call `fill` with a temporary path next to `file`, and rename the result to `file` once `fill` has
    finished.

    Raises:
        ConfigError: the file cannot be written.
        MachineError: the disk is full.
    """
    file = expand_home(file)
    if file.is_dir():
        message, advice = phrase("{path} is a folder.", path=file), phrase("Choose a file.")
        raise ConfigError(message, code="unwritable", path=str(file), advice=advice)
    try:
        files.write_atomic(file, fill, make_folder=False)
    except OSError as error:
        raise _write_error(file, error) from None


def _write_error(file: Path, error: OSError) -> RankdeckError:
    import errno

    reason = phrase("{path} cannot be written: {why}.", path=file, why=error.strerror or error)
    # A quota that is used up is reported like a full disk.
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = phrase("Free some space, or choose another disk.")
        return MachineError(reason, code="disk-full", path=str(file), advice=advice)
    folder = file.resolve().parent
    advice = phrase("Create the folder first: mkdir -p {folder}", folder=shlex.quote(str(folder)))
    if folder.is_dir():
        advice = phrase("Choose another file.")
    return ConfigError(reason, code="unwritable", path=str(file), advice=advice)
