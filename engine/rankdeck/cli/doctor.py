"""`rankdeck doctor`: check whether this machine can train, and print fixes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankdeck.base.errors import ConfigError, MachineError, did_you_mean, format_choices
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson
from rankdeck.cli.rendezvous import parse_host_names

if TYPE_CHECKING:
    from rankdeck.doctor.check_runner import CheckTarget
    from rankdeck.doctor.lines import CheckLine, DoctorLine, DoneLine

_STYLES = {"good": "green", "look": "yellow", "broken": "bold red", "not-tried": "dim"}
_VERDICT_WIDTH, _TITLE_WIDTH = 14, 23

CheckNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CHECK]...",
        help="Checks to run, separated by spaces, as in: gloo hostname. Default: all.",
        show_default=False,
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        metavar="PYTHON",
        help="Interpreter or environment folder to check. Default: the active interpreter.",
    ),
]
Runs = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for runs. Default: ./runs.")]


HostNames = Annotated[
    str | None,
    typer.Option(
        "--hosts", metavar="NAMES", help="Check these hosts together, as in box1,box2.", show_default=False
    ),
]


def doctor(
    rows: CheckNames = None,
    python: Python = None,
    runs: Runs = None,
    hosts: HostNames = None,
    as_json: AsJson = False,
) -> int:
    """Check whether this machine, or several, can train.

    Checks the driver, torch, memory, disk and network, and lets two ranks communicate. With --hosts, checks
    whether several hosts can train one run together. Every check prints a verdict, its evidence and the
    fix; nothing is changed. Exits with 3 if a check fails. With --json, prints one line per check.
    """
    from rankdeck.doctor.lines import announce_rows, encode, summarize_rows

    began_s = time.monotonic()
    names, lines = _multi_host_checks(hosts, rows) if hosts is not None else _local_checks(rows, python, runs)

    def write_line(line: DoctorLine) -> None:
        sys.stdout.buffer.write(encode(line))
        sys.stdout.buffer.flush()

    if as_json:
        write_line(announce_rows(names))
    check_lines: list[CheckLine] = []
    for line in lines:
        check_lines.append(line)
        if as_json:
            write_line(line)
        else:
            print_check(line)
    done = summarize_rows(check_lines, round(time.monotonic() - began_s, 2))
    if as_json:
        write_line(done)
    else:
        _print_totals(done, len(check_lines))
    return MachineError.exit_code if done.broken else 0


def _local_checks(
    rows: Sequence[str] | None, python: str | None, runs: Path | None
) -> tuple[list[str], Iterator[CheckLine]]:
    """Return the result rows' names in display order, and an iterator that runs the local checks.

    `rows` are the rows that the user asked for; empty or None for all rows.
    """
    from rankdeck.doctor.check_runner import build_checks, run_checks, select_checks

    names = set(rows or ())
    _check_names(names)
    checks = select_checks(build_checks(_check_target(python, runs)), names)
    return [name for check in checks for name in check.names], run_checks(checks)


def _multi_host_checks(hosts: str, rows: Sequence[str] | None) -> tuple[list[str], Iterator[CheckLine]]:
    """Return the result rows' names in display order, and an iterator that checks the hosts together.

    Raises:
        ConfigError: there are fewer than two hosts, or `rows`, the checks that the user named, is not empty.
    """
    from rankdeck.doctor.lines import HOST_ROW_TITLES
    from rankdeck.doctor.multi_host import check_hosts

    named = parse_host_names(hosts)
    if len(named) < 2 or rows:
        raise ConfigError(
            phrase(
                "The option --hosts needs at least two hosts, and cannot be combined with names of checks."
            ),
            code="usage",
            advice=phrase("For example: rankdeck doctor --hosts box1,box2"),
        )
    return list(HOST_ROW_TITLES), check_hosts(named)


def _check_target(python: str | None, runs: Path | None) -> CheckTarget:
    """Return the interpreter and the runs folder to check.

    Raises:
        ConfigError: `python` is not an interpreter.
    """
    from rankdeck import run_dir
    from rankdeck.config import interpreters
    from rankdeck.doctor.check_runner import CheckTarget

    # An interpreter in the current folder may be untrusted: it is run only if --python names it.
    chosen = interpreters.choose_python(python, folders=[], environ=os.environ)
    folder = run_dir.runs_folder(runs)
    return CheckTarget(chosen, folder)


def _check_names(names: set[str]) -> None:
    """Check that every name is that of an existing check.

    Raises:
        ConfigError: a name is unknown.
    """
    from rankdeck.doctor.lines import ROW_TITLES

    for name in sorted(names - ROW_TITLES.keys()):
        raise ConfigError(
            phrase('There is no check called "{name}".', name=name),
            code="unknown-check",
            advice=did_you_mean(name, ROW_TITLES)
            or phrase("Available checks: {names}.", names=format_choices(ROW_TITLES)),
        )


def print_check(line: CheckLine, where: Console | None = None) -> None:
    """Print a check's result on stdout, or on `where`."""
    from rankdeck.doctor.lines import VERDICT_TEXTS

    text = Text(line.finding)
    for extra in line.evidence:
        text.append(f"\n{extra}", style="dim")
    for extra in filter(None, (line.fix, line.command)):
        text.append(f"\n{extra}", style="cyan" if extra is line.command else "")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_VERDICT_WIDTH)
    grid.add_column(width=_TITLE_WIDTH)
    # rich's default cuts words that are wider than the column, and evidence has long paths.
    grid.add_column(overflow="fold")
    grid.add_row(Text(VERDICT_TEXTS[line.verdict], style=_STYLES[line.verdict]), line.title, text)
    (where or console.out()).print(grid)


def _print_totals(done: DoneLine, num_rows: int) -> None:
    num_good = num_rows - sum(map(len, (done.broken, done.look, done.not_tried)))
    out = console.out()
    out.print(f"\n{num_good} of {num_rows} checks are good ({done.seconds:.1f} s).", soft_wrap=True)
    _print_names("broken", done.broken, _STYLES["broken"])
    _print_names("worth a look", done.look, _STYLES["look"])
    _print_names("skipped", done.not_tried, _STYLES["not-tried"])


def _print_names(label: str, names: Sequence[str], style: str) -> None:
    if names:
        console.out().print(f"{label}: {', '.join(names)}", style=style, soft_wrap=True)
