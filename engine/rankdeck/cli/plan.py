"""`rankdeck plan`: predict each strategy's memory, or compare predictions with past runs' measurements."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, Overrides, load_config
from rankdeck.cli.trust import Trust, confirm_execution
from rankdeck.run.bounds import ROW_TIMEOUT_S

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.planner.candidates import Candidate, Target
    from rankdeck.run.plan_lines import PlanLine
    from rankdeck.run_dir import RunDir

Verify = Annotated[
    bool, typer.Option("--verify", help="Also compare two steps of each strategy with those on one device.")
]


def plan(
    config: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="A TOML file, or the name of a preset.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="all (default), own (the configuration's strategy), or names separated by commas."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help='Devices as in train, or GPUs that you do not have: "8 x A100-80GB", "4 x 24GiB".'),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Memory per device, as in 24GiB. Default: the device's own memory.")
    ] = None,
    fit_batch: Annotated[
        bool, typer.Option("--fit-batch", help="Also find the largest global batch that fits.")
    ] = False,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Compare predicted and measured memory of all past runs.")
    ] = False,
    movement: Annotated[
        bool, typer.Option("--movement", help="Also show the data moved between devices in one step.")
    ] = False,
    verified: Verify = False,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="Time limit per strategy in seconds."),
    ] = ROW_TIMEOUT_S,
    overrides: Overrides = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Predict the memory of every strategy on every device.

    Runs the strategies on fake tensors, which use no memory. Nothing is trained, and no GPU is needed.
    """
    if accuracy:
        return _print_accuracy(trust=trust, as_json=as_json)
    if config is None:
        raise ConfigError(
            phrase("rankdeck plan needs a configuration."),
            code="usage",
            advice=phrase("Specify a TOML file or a preset, or use --accuracy."),
        )
    from rankdeck.cli.plan_tables import PlanOutput
    from rankdeck.cli.plan_target import resolve_target

    chosen = load_config(config, to_plan=True, overrides=overrides or ())
    target = resolve_target(chosen, devices, capacity)
    _warn_unknown_torch()
    output = PlanOutput(as_json=as_json)
    options: Any = {"fit_batch": fit_batch, "movement": movement, "timeout_s": timeout}
    lines = predict_lines(chosen, strategy, target, **options)
    for line in _verify_lines(lines, chosen, target.num_devices) if verified else lines:
        output.add(line)
    output.close()
    return 0


def _verify_lines(lines: Iterator[PlanLine], config: RunConfig, num_devices: int) -> Iterator[PlanLine]:
    """Yield the lines; first run every strategy that can run on `num_devices` virtual devices, and add to its
    line how its results compare with those of training on one device."""
    from rankdeck.base.phrases import PhraseSource
    from rankdeck.cli.wait import sigterm_as_interrupt
    from rankdeck.config import DevicesConfig
    from rankdeck.launch.verification import verify_strategies
    from rankdeck.run.plan_lines import CANNOT

    # Virtual devices, because the GPUs of a plan may not exist on this machine.
    rehearsal = config.model_copy(update={"devices": DevicesConfig(use=f"cpu:{num_devices}")})
    with sigterm_as_interrupt():  # so that cleanup ends ranks and removes files
        for line in lines:
            if line.verdict != CANNOT and line.advice is None:
                for _, verification in verify_strategies(rehearsal, [line], command_line=sys.argv):
                    line.verified, line.verified_outcome = str(verification.text), verification.outcome
                    line.phrases[line.verified] = PhraseSource(
                        verification.text.template, verification.text.plain_arguments()
                    )
            yield line


def _warn_unknown_torch() -> None:
    """Print a warning on stderr if the installed version of torch is unknown to Rankdeck."""
    from rankdeck.torch_compat.versions import version_problem

    problem = version_problem()
    if problem is not None:
        console.print_problem(problem)


def predict_lines(
    config: RunConfig,
    strategy: str | None,
    target: Target,
    *,
    fit_batch: bool = False,
    movement: bool = False,
    advice: bool = True,
    timeout_s: float = ROW_TIMEOUT_S,
) -> Iterator[PlanLine]:
    """Yield each strategy's row as soon as it is planned. After the rows, if `advice` is True, yield fixes
    for the configured strategy and, if no strategy fits, combinations of fixes that make a strategy fit."""
    from rankdeck.planner.candidates import candidates_for, largest_batch

    # Refuse mistakes here, before the seconds that importing torch takes.
    rows = candidates_for(config, strategy, target.num_devices)
    if fit_batch and any(device.total_bytes is None for device in target.devices):
        raise ConfigError(
            phrase("The option --fit-batch needs the memory size of every device."),
            path="rehearsal.capacity",
            advice=phrase("Add --capacity 24GiB, or specify GPUs: --devices '4 x RTX-4090'."),
        )
    from rankdeck.planner.preload import preload

    preload()
    from rankdeck import run_dir
    from rankdeck.planner.accuracy import step_time_scale
    from rankdeck.planner.fixes import combined_fixes, single_fixes
    from rankdeck.planner.pool import plan_candidates, read_samples_in_child

    runs = run_dir.list_runs(run_dir.default_runs_folder()) if target.like_cuda else []
    scale = step_time_scale(runs, config, target)

    samples = read_samples_in_child(config, timeout_s)

    def plan_rows(rows: Sequence[Candidate], *, movement: bool = False) -> Iterator[PlanLine]:
        return plan_candidates(
            config, rows, target, scale=scale, timeout_s=timeout_s, samples=samples, movement=movement
        )

    def ask_on(other: Target, rows: Sequence[Candidate]) -> Iterator[PlanLine]:
        return plan_candidates(config, rows, other, timeout_s=timeout_s, samples=samples)

    by_label = {row.label: row for row in rows}
    own_line: PlanLine | None = None
    lines: list[PlanLine] = []
    for line in plan_rows(rows, movement=movement):
        lines.append(line)
        if fit_batch and line.devices and not line.is_bound:
            line.largest_batch = largest_batch(by_label[line.label], config, target, plan_rows)
        elif fit_batch and samples.is_bound:
            line.notes.append("The largest batch is unknown, because the largest sample is unknown.")
        own_line = line if line.configured else own_line
        yield line
    if own_line is not None and advice:
        for line in single_fixes(own_line, by_label[own_line.label], config, target, plan_rows):
            lines.append(line)
            yield line
    if advice:
        yield from combined_fixes(lines, config, target, ask_on)


def _print_accuracy(*, trust: bool, as_json: bool) -> int:
    """Print, for every run, the prediction error of each device whose peak was measured."""
    from rankdeck import run_dir
    from rankdeck.cli.plan_tables import accuracy_table, spread_text

    runs = _trusted_runs(run_dir.list_runs(run_dir.default_runs_folder()), trust=trust)
    from rankdeck.planner.accuracy import compare_with_measured, error_spread

    compared = [row for run in runs for row in compare_with_measured(run)]
    if as_json:
        console.print_json([{**vars(row), "error": row.error} for row in compared])
        return 0
    if not compared:
        console.err().print("No run has a measured peak yet. Start one with: rankdeck train digits-mlp")
        return 0
    console.out().print(accuracy_table(compared))
    console.out().print(spread_text(error_spread(row.error for row in compared), len(compared)))
    return 0


def _trusted_runs(runs: Sequence[RunDir], *, trust: bool) -> Sequence[RunDir]:
    """Return the runs whose prediction executes no user code, or only code that the user has consented to;
    ask for consent if necessary."""
    from rankdeck.config.consent import has_config_consent
    from rankdeck.run.prediction import config_to_predict

    planned: dict[RunDir, RunConfig] = {}
    for run in runs:
        with contextlib.suppress(ConfigError):  # a script's run, or unreadable: never planned
            config = config_to_predict(run)
            planned |= {} if config is None else {run: config}
    # A single question for all runs, because a list of a hundred runs must not ask a hundred times.
    if confirm_execution(list(planned.items()), trust=trust):
        return runs
    # After a refusal, the runs that needed no consent still have their rows.
    left = [run for run in runs if run not in planned or has_config_consent(planned[run])]
    num_refused = len(runs) - len(left)
    counted = f"{num_refused} run{'s' if num_refused > 1 else ''}"
    console.err().print(f"Left out {counted} whose code you did not allow to run.")
    return left
