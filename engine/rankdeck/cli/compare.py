"""`rankdeck compare` and `report`: runs side by side, or one run, in the terminal or as a page of its own."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError, RunNotFoundError
from rankdeck.base.home import expanded
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.console import check_stdout, name_of, written
from rankdeck.cli.options import AsJson, check_file, find_run
from rankdeck.cli.trust import Trust

if TYPE_CHECKING:
    from rankdeck.compare.curves import LossLine
    from rankdeck.compare.naming import RunAt
    from rankdeck.compare.table import Comparison


class LossBy(enum.StrEnum):
    STEP = "step"
    TIME = "time"
    SAMPLES = "samples"


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Two to eight runs. RUN@0 is attempt 0, before it was resumed."
        ),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Run to compare with. Default: the first one."),
    ] = None,
    by: Annotated[LossBy, typer.Option(help="X axis of the losses.")] = LossBy.STEP,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one HTML page instead; - is stdout."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Compare runs side by side.

    Marks the best value of each row, and lists losses, memory by device, and the keys that differ.
    """
    from rankdeck.compare.curves import loss_line, step_axis
    from rankdeck.compare.figures import read
    from rankdeck.compare.naming import check_number
    from rankdeck.compare.table import compare as beside

    named = [_find(name) for name in names]
    check_number(named)
    base = 0 if baseline is None else _place_of(baseline, names, named)
    if page is not None:
        page = _checked(page, as_json)
    found = [read(at) for at in named]
    comparison = beside([run.figures for run in found], base)
    if page is not None:
        from rankdeck.compare.page import write_page

        with written(page) as file:
            write_page(file, comparison, [run.fold for run in found], by.value)
        console.err().print(f"{name_of(page)} holds the comparison of {len(named)} runs.", soft_wrap=True)
    if page is None or as_json:
        lines = [loss_line(run.fold, step_axis(run.fold, by.value)) for run in found]
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
    by: Annotated[LossBy, typer.Option(help="X axis of the losses.")] = LossBy.STEP,
    plan: Annotated[
        bool, typer.Option(help="Plan fixes for a run that ran out of memory, if there are none yet.")
    ] = True,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Write the report of a run as one HTML page.

    The page has the metrics, the memory next to its prediction, and what to try next. If the run ran out of
    memory, it has the cause and planned fixes.
    """
    from rankdeck.cli.why import lines_of
    from rankdeck.compare.figures import read
    from rankdeck.compare.page import write_report
    from rankdeck.diagnose.out_of_memory import ran_out_of

    at, page = _find(name), _checked(page, as_json)
    found = read(at)
    ran = ran_out_of(at.run, found.fold)
    if ran is not None:
        ran = ran.with_fixes(lines_of(at.run, is_planned=plan, trust=trust), at.run)
    with written(page) as file:
        write_report(file, found, by.value, ran)
    console.err().print(f"{name_of(page)} holds the report of {at.run.name}.", soft_wrap=True)
    if as_json:
        console.as_json({"run": at.run.name, "file": str(page)})
    return 0


def _checked(page: Path, as_json: bool) -> Path:
    """Raises: ConfigError where no page can be written there."""
    if not check_stdout(page, as_json=as_json):
        page = expanded(page)
        check_file(page)
    return page


def _print(comparison: Comparison, by: str, lines: list[LossLine], as_json: bool) -> None:
    if as_json:
        from rankdeck.compare.telling import as_json as told

        console.as_json(told(comparison, by, lines), indent=2)
    else:
        from rankdeck.cli.compare_tables import print_comparison

        print_comparison(comparison, by, lines)


def _find(name: str) -> RunAt:
    from rankdeck.compare.naming import find
    from rankdeck.rundir import default_runs_folder

    try:
        return find(name, default_runs_folder())
    except RunNotFoundError:
        find_run(name.rpartition("@")[0] or name)  # has words for a race
        raise


def _place_of(baseline: str, names: list[str], named: list[RunAt]) -> int:
    """Raises: ConfigError where the baseline is none of the runs."""
    at = named[names.index(baseline)] if baseline in names else _find(baseline)
    if at in named:
        return named.index(at)
    raise ConfigError(
        phrase('The baseline "{baseline}" is none of the runs that are compared.', baseline=baseline),
        code="baseline",
        advice=phrase("Name it among the runs as well."),
    )
