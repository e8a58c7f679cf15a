"""A run's weights and figures as one file that other programs read.

A file appears whole or not at all: it is written beside its place and renamed.
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

_TENSORBOARD = "tfevents"


def export_weights(run: RunDir, file: Path) -> None:
    """The final weights under the model's original names, as safetensors.

    Raises:
        ConfigError: the run has none (yet) or is of a person's own script, or the file cannot be written.
    """
    script = read_script_config(run)
    if script is not None:
        raise ConfigError(
            phrase(
                "{run} has no weights to export: {script} is a script of your own, and saves them itself.",
                run=run.name,
                script=script_name(script),
            ),
            code="no-weights",
            path=str(run.path),
            advice=phrase("Look where it was started: {folder}", folder=script.script.folder),
        )
    if not files.is_regular(run.weights):
        outcome = run.outcome()
        later = phrase("They are saved after the last step: rankdeck watch {run}", run=run.name)
        raise ConfigError(
            _no_weights_message(run.name, outcome),
            code="no-weights",
            path=str(run.weights),
            advice=later if outcome == "running" else None,
        )
    write_export(file, lambda target: shutil.copyfile(run.weights, target))


def are_weights_outdated(run: RunDir) -> bool:
    """Whether an ended run has a checkpoint later than its final weights, as one that was stopped has."""
    saved = list_checkpoints(run.checkpoints_folder)
    return bool(saved) and not run.is_alive() and saved[0].step > _read_step(run.weights)


def _read_step(weights: Path) -> int:
    """The step that a file of weights is of; -1 where there is none that can be read."""
    if not files.is_regular(weights):
        return -1
    try:
        with safe_open(weights, framework="numpy") as file:
            return int((file.metadata() or {})["step"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return -1


def export_csv(run: RunDir, file: Path, attempt: int | None = None) -> None:
    """One row per complete step, of the run or as `attempt` left it; an empty cell is unknown. What was
    evaluated or logged has columns of its own, and rows where it is of no complete step.

    Raises:
        ConfigError: the file cannot be written.
    """
    fold = read_run_state(run, attempt=attempt, max_rows=None)
    columns, told = _step_columns(fold), _values_by_step(fold)
    steps = {row.step: _cells(row, len(columns)) for row in fold.rows()}
    unknown = [None] * (len(columns) - 1)

    def write(target: Path) -> None:
        with open(target, "w", newline="", encoding="utf-8") as stream:
            table = csv.writer(stream)
            table.writerow([*columns, *told])
            for step in sorted(steps.keys() | {step for values in told.values() for step in values}):
                cells = steps.get(step, [step, *unknown]) + [values.get(step) for values in told.values()]
                table.writerow(["" if value is None else value for value in cells])

    write_export(file, write)


def _values_by_step(fold: RunState) -> dict[str, dict[int, float]]:
    """By column, step -> value: of evaluations, and of what was logged the last value of a step. Names are
    those that TensorBoard gets, where no other column is called so."""
    told: dict[str, dict[int, float]] = {}
    for one in fold.attempts.values():
        for evaluation in one.evaluations:
            for name, value in (("loss", evaluation.loss), ("accuracy", evaluation.accuracy)):
                if value is not None:
                    told.setdefault(f"held_out/{name}", {})[evaluation.step] = value
    taken = {*_step_columns(fold), *told}
    for name, metric in fold.metrics.items():
        steps, _, values = (column.tolist() for column in metric.points())
        column = f"logged/{name}" if name in taken else name
        told[column] = {int(step): value for step, value in zip(steps, values, strict=True)}
    return told


def export_json(run: RunDir, file: Path, attempt: int | None = None) -> None:
    """`{"summary": what show tells, "steps": [one object per complete step]}`, or as `attempt` left the run.
    What a script, a model or a loss logged is in "metrics": a list of {step, time, value} by name;
    evaluations are in "held_out": a list of {step, time, loss, accuracy}.

    Raises:
        ConfigError: the file cannot be written.
    """
    fold = read_run_state(run, attempt=attempt, max_rows=None)
    columns = _step_columns(fold)
    steps = [dict(zip(columns, _cells(row, len(columns)), strict=True)) for row in fold.rows()]
    whole: dict[str, object] = {"summary": summarize(run, fold, attempt=attempt).facts(), "steps": steps}
    evaluations = [one for attempt in fold.attempts.values() for one in attempt.evaluations]
    if evaluations:
        whole["held_out"] = [
            {"step": one.step, "time": one.t, "loss": one.loss, "accuracy": one.accuracy}
            for one in evaluations
        ]
    whole["metrics"] = {name: _metric_rows(metric) for name, metric in fold.metrics.items()}
    text = json.dumps(whole, indent=1, allow_nan=False)
    write_export(file, lambda target: target.write_text(text + "\n", encoding="utf-8"))


def export_trace(run: RunDir, file: Path, attempt: int | None = None) -> None:
    """The sampled steps of every attempt, or of those up to `attempt`, for the Perfetto viewer; of a script
    every step.

    Raises:
        ConfigError: no step was sampled (yet), or the file cannot be written.
    """
    reader, told = EventReader(run, last_attempt=attempt), list[AnyEvent]()
    while found := reader.read():
        told += [event for _, event in found]
    is_observed = any(isinstance(event, RunStarted) and event.source == SCRIPT for event in told)
    if not any(isinstance(event, Steps if is_observed else Spans) for event in told):
        message = phrase("{run} has no sampled step.", run=run.name)
        advice = phrase("Steps 2 to 4 are sampled always: run four steps or more.")
        if is_observed:
            message = phrase("{run} has no step.", run=run.name)
            advice = phrase("No optimizer step was seen of its script.")
        raise ConfigError(message, code="no-spans", path=str(run.events_folder), advice=advice)
    text = json.dumps(make_trace(told), allow_nan=False, separators=(",", ":"))
    write_export(file, lambda target: target.write_text(text, encoding="utf-8"))


def export_tensorboard(run: RunDir, file: Path, attempt: int | None = None) -> Path:
    """The curves of a run for TensorBoard; the file that was written. `file` is a folder for TensorBoard to
    look into, or a file's whole name, which has "tfevents" in it.

    Raises:
        ConfigError: there is no curve (yet), or the file cannot be written.
    """
    fold = read_run_state(run, attempt=attempt, max_rows=None)
    scalars = list(read_scalars(fold))
    if not scalars:
        message = phrase("{run} has no curve.", run=run.name)
        raise ConfigError(message, code="no-curves", path=str(run.events_folder))
    file = expand_home(file)
    began = min(told.t for told in scalars)
    if _TENSORBOARD not in file.name:
        try:
            file.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _write_error(file, error) from None
        file = file / f"events.out.{_TENSORBOARD}.{int(began)}.{run.name}"

    def write(target: Path) -> None:
        with open(target, "wb") as stream:
            stream.writelines(records(began, scalars))

    write_export(file, write)
    return file


def _step_columns(fold: RunState) -> tuple[str, ...]:
    """Those of the run's tables of steps."""
    return max((one.table.columns for one in fold.attempts.values()), key=len, default=COLUMNS)


def _cells(row: Row, num_columns: int) -> list[Any]:
    """The row with None for what is unknown; samples are a whole number again."""
    known = [value if math.isfinite(value) else None for value in row[:num_columns]]
    samples = COLUMNS.index("samples")
    count = known[samples]
    known[samples] = None if count is None else int(count)
    return known


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
    """Let `fill` write to a path beside `file`, which appears only when that is done.

    Raises:
        ConfigError: the file cannot be written.
        MachineError: the disk is full.
    """
    file = expand_home(file)
    if file.is_dir():
        message, advice = phrase("{path} is a folder.", path=file), phrase("Name a file.")
        raise ConfigError(message, code="unwritable", path=str(file), advice=advice)
    try:
        files.write_atomic(file, fill, make_folder=False)
    except OSError as error:
        raise _write_error(file, error) from None


def _write_error(file: Path, error: OSError) -> RankdeckError:
    import errno

    reason = phrase("{path} cannot be written: {why}.", path=file, why=error.strerror or error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = phrase("Make room, or name another disk.")
        return MachineError(reason, code="disk-full", path=str(file), advice=advice)
    folder = file.resolve().parent
    advice = phrase("Make the folder first: mkdir -p {folder}", folder=shlex.quote(str(folder)))
    if folder.is_dir():
        advice = phrase("Name another file.")
    return ConfigError(reason, code="unwritable", path=str(file), advice=advice)
