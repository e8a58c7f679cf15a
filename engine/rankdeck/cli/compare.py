"""`rankdeck compare` and `report`: several runs side by side, or a single run, in the terminal or as an HTML
page."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError, RunNotFoundError
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.console import is_stdout, output_name, output_path
from rankdeck.cli.options import AsJson, check_output_file, find_run
from rankdeck.cli.trust import Trust

if TYPE_CHECKING:
    from rankdeck.compare.curves import LossCurve
    from rankdeck.compare.run_ref import RunRef
    from rankdeck.compare.table import Comparison


class LossAxis(enum.StrEnum):
    STEP = "step"
    TIME = "time"
    SAMPLES = "samples"


def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Two to eight runs. RUN@0 is attempt 0, before any resume."),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Run to compare with. Default: the first run."),
    ] = None,
    by: Annotated[LossAxis, typer.Option(help="X axis of the loss curves.")] = LossAxis.STEP,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write an HTML page, not text; - is stdout."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Compare runs side by side.

    Marks the best value of each row, and lists losses, memory by device, and the keys that differ.
    """
    from rankdeck.compare.curves import loss_curve, step_axis
    from rankdeck.compare.run_metrics import load_run
    from rankdeck.compare.run_ref import check_run_count
    from rankdeck.compare.table import compare_runs as make_comparison

    named = [_find_ref(name) for name in names]
    check_run_count(named)
    base = 0 if baseline is None else _baseline_index(baseline, names, named)
    if page is not None:
        # Check the page before reading the runs, which may take seconds.
        page = _check_page(page, as_json)
    loaded_runs = [load_run(at) for at in named]
    comparison = make_comparison([run.run for run in loaded_runs], base)
    if page is not None:
        from rankdeck.compare.page import write_page

        with output_path(page) as file:
            write_page(file, comparison, [run.state for run in loaded_runs], by.value)
        text = f"Saved the comparison of {len(named)} runs to {output_name(page)}."
        console.err().print(text, soft_wrap=True)
    if page is None or as_json:
        lines = [loss_curve(run.state, step_axis(run.state, by.value)) for run in loaded_runs]
        _print(comparison, by.value, lines, as_json)
    return 0


def report(
    name: Annotated[
        str,
        typer.Argument(metavar="RUN", help='Directory or name of a run, or "last". RUN@0 is attempt 0.'),
    ],
    page: Annotated[
        Path,
        typer.Option("--html", metavar="FILE", help="File to write, overwritten if it exists; - is stdout."),
    ],
    by: Annotated[LossAxis, typer.Option(help="X axis of the loss curves.")] = LossAxis.STEP,
    plan: Annotated[
        bool, typer.Option(help="Plan fixes if the run ran out of memory and none are saved.")
    ] = True,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Write a run's report as one HTML page.

    The page has the metrics, the memory next to its prediction, and what to try next. If the run ran out of
    memory, the page also shows the cause and fixes.
    """
    from rankdeck.cli.why import fix_lines
    from rankdeck.compare.page import write_report
    from rankdeck.compare.run_metrics import load_run
    from rankdeck.diagnose.out_of_memory import load_out_of_memory

    at, page = _find_ref(name), _check_page(page, as_json)
    loaded_run = load_run(at)
    ran = load_out_of_memory(at.run_dir, loaded_run.state)
    if ran is not None:
        ran = ran.with_fixes(fix_lines(at.run_dir, can_plan=plan, trust=trust), at.run_dir)
    with output_path(page) as file:
        write_report(file, loaded_run, by.value, ran)
    console.err().print(f"Saved the report of {at.run_dir.name} to {output_name(page)}.", soft_wrap=True)
    if as_json:
        console.print_json({"run": at.run_dir.name, "file": str(page)})
    return 0


def _check_page(page: Path, as_json: bool) -> Path:
    """Return the page's path with ~ expanded.

    Raises:
        ConfigError: the page cannot be written to this path.
    """
    if not is_stdout(page, as_json=as_json):
        page = expand_home(page)
        check_output_file(page)
    return page


def _print(comparison: Comparison, by: str, lines: list[LossCurve], as_json: bool) -> None:
    if as_json:
        from rankdeck.compare.json_output import comparison_to_json

        console.print_json(comparison_to_json(comparison, by, lines), indent=2)
    else:
        from rankdeck.cli.compare_tables import print_comparison

        print_comparison(comparison, by, lines)


def _find_ref(name: str) -> RunRef:
    from rankdeck.compare.run_ref import find_run_ref
    from rankdeck.run_dir import default_runs_folder

    try:
        return find_run_ref(name, default_runs_folder())
    except RunNotFoundError:
        find_run(name.rpartition("@")[0] or name)  # raises a better error for a race
        raise


def _baseline_index(baseline: str, names: list[str], named: list[RunRef]) -> int:
    """Return the index of the baseline in `named`, the runs to compare; `names` are the same runs as the user
    typed them.

    Raises:
        ConfigError: the baseline is not among the runs.
    """
    # The same text must mean the same run, even if a new run has started meanwhile and "last" now means that.
    at = named[names.index(baseline)] if baseline in names else _find_ref(baseline)
    if at in named:
        return named.index(at)
    raise ConfigError(
        phrase('The baseline "{baseline}" is not among the compared runs.', baseline=baseline),
        code="baseline",
        advice=phrase("Add it to the runs to compare."),
    )
