"""`rankdeck runs`, `show` and `export`: list runs, and show or export their results."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.console import is_stdout, output_name, output_path
from rankdeck.cli.options import AsJson, RunName, RunOrRaceName, find_race, find_run
from rankdeck.cli.trust import Trust, check_trust

if TYPE_CHECKING:
    from rankdeck.run_dir import RunDir

Attempt = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Use the run's state after attempt N; 0 is the first attempt."),
]


class ExportFormat(enum.StrEnum):
    SAFETENSORS = "safetensors"
    CSV = "csv"
    JSON = "json"
    TRACE = "trace"
    TENSORBOARD = "tensorboard"


_CONTENTS = {
    ExportFormat.SAFETENSORS: "the weights",
    ExportFormat.CSV: "the metrics",
    ExportFormat.JSON: "the summary",
    ExportFormat.TRACE: "the trace",
    ExportFormat.TENSORBOARD: "the metrics",
}


def runs(
    everything: Annotated[bool, typer.Option("--all", help="Include archived runs.")] = False,
    as_json: AsJson = False,
) -> int:
    """List runs, newest first.

    A race is one row.
    """
    from rankdeck import run_dir
    from rankdeck.cli.summary import runs_table
    from rankdeck.run.row import row_json
    from rankdeck.run.row_index import RunRows

    rows, folder = RunRows(), run_dir.default_runs_folder()
    infos = [rows.info(run) for run in run_dir.list_runs(folder)]
    races = [rows.info(race) for race in run_dir.list_races(folder)]
    rows.save()
    # list_runs sorts already, so a list without races is not sorted again.
    infos = sorted([*infos, *races], key=lambda info: info.name, reverse=True) if races else infos
    listed = [info for info in infos if everything or not info.labels.is_archived]
    if as_json:
        console.print_json(list(map(row_json, listed)))
    elif listed:
        out = console.out()
        out.print(runs_table(listed, out.width), soft_wrap=True)
    elif infos:
        console.err().print("All runs are archived. Show them with: rankdeck runs --all")
    else:
        console.err().print("There are no runs yet. Start one with: rankdeck train digits-mlp")
    return 0


def show(
    name: RunOrRaceName,
    with_plan: Annotated[
        bool, typer.Option("--plan", help="Predict the memory first if there is no plan (a few seconds).")
    ] = False,
    attempt: Attempt = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Show the results and costs of a run or a race.

    Prints losses, speed, and the memory of every device next to its prediction.
    """
    from rankdeck.cli.summary import print_report
    from rankdeck.diagnose.findings import run_findings
    from rankdeck.run.run_state import read_run_state
    from rankdeck.run.summary_builder import summarize

    # A race has no attempts, so with --attempt the name must be a run's.
    race = find_race(name) if attempt is None else None
    if race is not None:
        from rankdeck.cli.race import show_race

        return show_race(race, as_json=as_json)
    run = find_run(name)
    _check_attempt(run, attempt)
    if with_plan:
        from rankdeck.run.prediction import config_to_predict

        planned = config_to_predict(run)
        if planned is not None:
            check_trust(run, planned, trust=trust)
            from rankdeck.planner.accuracy import predict_run

            predict_run(run)
    state = read_run_state(run, attempt=attempt, curves=True)
    summary = summarize(run, state, attempt=attempt)
    findings = run_findings(run, state, is_over=summary.outcome != "running")
    summary = msgspec.structs.replace(summary, findings=list(findings))
    if as_json:
        console.print_json(summary.facts(), indent=2)
    else:
        print_report(summary)
    return 0


def export(
    name: RunName,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write, overwritten if it exists; - is stdout.")
    ],
    to: Annotated[
        ExportFormat,
        typer.Option(
            "--to",
            help=(
                "Weights, a table of steps, the output of rankdeck show, a Perfetto trace, or a "
                "folder for TensorBoard."
            ),
        ),
    ],
    attempt: Attempt = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Export the weights or metrics of a run to a file."""
    run = find_run(name)
    is_past = _check_attempt(run, attempt)
    if is_stdout(file, as_json=as_json) and to is ExportFormat.TENSORBOARD:
        raise ConfigError(
            phrase("TensorBoard reads a folder, which cannot be written to stdout."),
            code="usage",
            advice=phrase("Specify a folder instead of -."),
        )
    with output_path(file) as there:
        if to is ExportFormat.SAFETENSORS:
            step = _write_weights(run, there, attempt, is_older=is_past, trust=trust)
        else:
            written, step = _write_metrics(run, there, to, attempt), None
            # Otherwise the written file may be the temporary file for stdout, which no message should name.
            file = written if to is ExportFormat.TENSORBOARD else file
    which = f"its newest checkpoint up to attempt {attempt}" if is_past else "its newest checkpoint"
    source = "" if step is None else f" (after step {step}, {which})"
    console.err().print(f"Saved {_CONTENTS[to]} of {run.name} to {output_name(file)}{source}.")
    if as_json:
        console.print_json({"file": str(file), "step": step})
    return 0


def _write_weights(
    run: RunDir, file: Path, attempt: int | None, *, is_older: bool, trust: bool
) -> int | None:
    """Write the weights; return the step of the checkpoint that they come from, or None for the run's final
    weights. `is_older` is whether the run has a newer attempt than `attempt`."""
    from rankdeck.run import export as exporting
    from rankdeck.run.problems import read_script_config

    if read_script_config(run) is None and (is_older or exporting.are_weights_outdated(run)):
        from rankdeck.config import load

        check_trust(run, load(run.config_to_resume), trust=trust)  # the model is built
        from rankdeck.training.saving import export_checkpoint_weights

        step = export_checkpoint_weights(run, file, attempt if is_older else None)
        if step is not None:
            return step
        if is_older:
            raise ConfigError(
                phrase(
                    "No complete checkpoint from attempt {attempt} or earlier exists any more.",
                    attempt=attempt,
                ),
                code="no-weights",
                path=str(run.checkpoints_folder),
                advice=phrase("Leave --attempt out for the newest weights."),
            )
    exporting.export_weights(run, file)
    return None


def _write_metrics(run: RunDir, file: Path, to: ExportFormat, attempt: int | None) -> Path:
    """Write the metrics and return the written file or folder."""
    from rankdeck.run import export as exporting

    if to is ExportFormat.TENSORBOARD:
        return exporting.export_tensorboard(run, file, attempt)
    write = {
        ExportFormat.CSV: exporting.export_csv,
        ExportFormat.JSON: exporting.export_json,
        ExportFormat.TRACE: exporting.export_trace,
    }[to]
    write(run, file, attempt)
    return file


def _check_attempt(run: RunDir, attempt: int | None) -> bool:
    """Return whether `attempt` is older than the run's newest attempt.

    Raises:
        ConfigError: the run has no such attempt.
    """
    newest = run.next_attempt() - 1
    if attempt is not None and attempt > newest:
        raise ConfigError(
            phrase("{run} has no attempt {attempt}.", run=run.name, attempt=attempt),
            code="no-attempt",
            advice=phrase("The run's newest attempt is {newest}.", newest=newest)
            if newest
            else phrase("The run was never resumed: leave --attempt out."),
        )
    return attempt is not None and attempt < newest
