"""`rankdeck runs`, `show` and `export`: what runs left behind."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, RunName, find_race, find_run, is_script
from rankdeck.cli.trust import Trust, check_trust

if TYPE_CHECKING:
    from rankdeck.rundir import RunDir

Attempt = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="The run as attempt N left it; 0 is the first."),
]


class ExportFormat(enum.StrEnum):
    SAFETENSORS = "safetensors"
    CSV = "csv"
    JSON = "json"
    TRACE = "trace"
    TENSORBOARD = "tensorboard"


def runs(
    everything: Annotated[bool, typer.Option("--all", help="Those that were archived, too.")] = False,
    as_json: AsJson = False,
) -> int:
    """List every run, the newest first. A race is one row."""
    from rankdeck import rundir
    from rankdeck.cli.summary import runs_table
    from rankdeck.run.race_row import row_of_race
    from rankdeck.run.row import row_of
    from rankdeck.run.row_index import RunRows

    known, folder = RunRows(), rundir.default_runs_folder()
    found = [row_of(run, known.info(run)) for run in rundir.list_runs(folder)]
    races = [row_of_race(known.info(race)) for race in rundir.list_races(folder)]
    known.save()
    found = sorted([*found, *races], key=lambda row: str(row["run"]), reverse=True) if races else found
    rows = [row for row in found if everything or not row["archived"]]
    if as_json:
        console.as_json(rows)
    elif rows:
        out = console.out()
        out.print(runs_table(rows, out.width), soft_wrap=True)
    elif found:
        console.err().print(f"All {len(found)} runs are archived. Show them with: rankdeck runs --all")
    else:
        console.err().print("There is no run yet. Start one with: rankdeck train digits-mlp")
    return 0


def show(
    name: RunName,
    with_plan: Annotated[
        bool, typer.Option("--plan", help="Predict its memory first, where nobody did: a few seconds.")
    ] = False,
    attempt: Attempt = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Show what a run did and what it cost on every device, beside what was predicted; or how a race went."""
    from rankdeck.cli.summary import print_report
    from rankdeck.run.summary import summarise

    race = find_race(name) if attempt is None else None
    if race is not None:
        from rankdeck.cli.race import show_race

        return show_race(race, as_json=as_json)
    run = find_run(name)
    _check_attempt(run, attempt)
    if with_plan:
        from rankdeck.planner.accuracy import predict, to_predict

        planned = to_predict(run)
        if planned is not None:
            check_trust(run, planned, trust=trust)
        predict(run)
    facts = summarise(run, attempt=attempt)
    if as_json:
        console.as_json(facts, indent=2)
    else:
        print_report(facts)
    return 0


def export(
    name: RunName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write; replaced if it is there.")],
    to: Annotated[
        ExportFormat,
        typer.Option(
            "--to",
            help="Weights, one row per step, everything that show tells, a Perfetto trace, or a folder for "
            "TensorBoard.",
        ),
    ],
    attempt: Attempt = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Write a run's weights or its figures to a file."""
    from rankdeck.run import export as exporting

    run = find_run(name)
    is_past = _check_attempt(run, attempt)
    if to is ExportFormat.SAFETENSORS and not is_script(run) and (is_past or exporting.is_behind(run)):
        from rankdeck.config import load

        check_trust(run, load(run.config_to_go_on_with), trust=trust)  # its model is built
        from rankdeck.training.saved_weights import export_saved

        step = export_saved(run, file, attempt if is_past else None)
        if step is not None:
            which = f"which attempt {attempt} left" if is_past else "its newest checkpoint"
            console.err().print(f"{file} holds the weights of {run.name} after step {step}, {which}.")
            return _say_file(file, step, as_json)
        if is_past:
            raise ConfigError(
                phrase(
                    "No whole checkpoint of what attempt {attempt} left is there any more.", attempt=attempt
                ),
                code="no-weights",
                path=str(run.checkpoints_folder),
                advice=phrase("Leave --attempt out for the newest weights."),
            )
    if to is ExportFormat.SAFETENSORS:
        exporting.weights(run, file)
    elif to is ExportFormat.TENSORBOARD:
        file = exporting.tensorboard(run, file, attempt)
    else:
        write = {
            ExportFormat.CSV: exporting.steps_csv,
            ExportFormat.JSON: exporting.everything_json,
            ExportFormat.TRACE: exporting.trace,
        }[to]
        write(run, file, attempt)
    what = "the weights" if to is ExportFormat.SAFETENSORS else to.value
    console.err().print(f"{file} holds {what} of {run.name}.")
    return _say_file(file, None, as_json)


def _say_file(file: Path, step: int | None, as_json: bool) -> int:
    """`step` is that of a checkpoint from which it was written."""
    if as_json:
        console.as_json({"file": str(file), "step": step})
    return 0


def _check_attempt(run: RunDir, attempt: int | None) -> bool:
    """Whether it is one before the newest.

    Raises: ConfigError where the run has no such attempt.
    """
    newest = run.next_attempt() - 1
    if attempt is not None and attempt > newest:
        raise ConfigError(
            phrase("{run} has no attempt {attempt}.", run=run.name, attempt=attempt),
            code="no-attempt",
            advice=phrase("Its newest is {newest}.", newest=newest)
            if newest
            else phrase("It was never resumed: leave --attempt out."),
        )
    return attempt is not None and attempt < newest
