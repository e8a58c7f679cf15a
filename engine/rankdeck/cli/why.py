"""`rankdeck why`: why a run failed, is slow or learns nothing: its own problems, the findings in its figures,
and of a run that ran out of memory what would need less, by the planner.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, RunName, find_run
from rankdeck.cli.trust import Trust, may_execute
from rankdeck.doctor.offering import with_offer
from rankdeck.run.bounds import ROW_TIMEOUT_S

if TYPE_CHECKING:
    from rankdeck.diagnose.out_of_memory import RanOut
    from rankdeck.run.plan_lines import PlanLine
    from rankdeck.rundir import RunDir

_MOST_MODULES = 8


def why(
    name: RunName,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Time limit per plan in seconds.")
    ] = ROW_TIMEOUT_S,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Explain why a run failed, is slow or does not learn.

    Prints the cause first, then the evidence and the fix. If a run ran out of memory, prints what was on
    the device, the allocation that failed, and up to three fixes, which are planned once and kept with the
    run. With --json, such a run gives the lines of that plan, and any other run gives {"problems": [...]}.
    """
    from rankdeck.compare.figures import read
    from rankdeck.compare.naming import RunAt
    from rankdeck.diagnose.findings import problems_and_findings
    from rankdeck.diagnose.out_of_memory import ran_out_of
    from rankdeck.run import plan_lines

    run = find_run(name)
    fold = read(RunAt(run.path)).fold
    ran = ran_out_of(run, fold)
    if ran is None:
        found = problems_and_findings(run, fold)
        if as_json:
            console.problems_json(found)
        else:
            _print_found(run, found)
        return 0
    if not as_json:
        _print(ran)
    lines = []
    for line in lines_of(run, timeout, trust=trust):
        lines.append(line)
        if as_json:
            sys.stdout.buffer.write(plan_lines.encode(line))
            sys.stdout.buffer.flush()
    if not as_json:
        _print_fixes(ran.with_fixes(lines, run))
    return 0


def lines_of(
    run: RunDir, timeout_s: float = ROW_TIMEOUT_S, *, is_planned: bool = True, trust: bool
) -> Iterator[PlanLine]:
    """What the planner says would need less, kept or `is_planned` now; nothing of a person's own script: it
    cannot be planned, nor of a run whose code may not be executed."""
    from rankdeck.config import load
    from rankdeck.diagnose.fixes import kept_lines
    from rankdeck.run.problems import script_of

    kept = kept_lines(run)
    if kept is None and is_planned and script_of(run) is None:
        if not may_execute([(run, load(run.config_to_go_on_with))], trust=trust):
            return
        from rankdeck.planner.preload import preload

        preload()
        from rankdeck.planner.fixes import fixes_of_run

        yield from fixes_of_run(run, timeout_s)
    yield from kept or ()


def _print_found(run: RunDir, found: list[Problem]) -> None:
    """Each with what was seen, its fix, and the command that makes it."""
    from rankdeck.diagnose.fixes import command_of
    from rankdeck.diagnose.own_code import brief
    from rankdeck.run.standstill import is_of_standstill

    out, is_over = console.out(), run.outcome() != "running"
    if not found:
        out.print(phrase("Nothing was found in what {run} recorded.", run=run.name), soft_wrap=True)
        return
    for problem in map(with_offer, found):
        style = {"error": "bold red", "warning": "yellow"}.get(problem.severity, "default")
        out.print(problem.headline(), style=style, soft_wrap=True)
        for line in (*console.seen_lines(problem), *(f"  | {line}" for line in brief(problem.last_lines))):
            out.print(line, style="dim", soft_wrap=True)
        # The advice of a hang says what happens next to a run that is still there.
        if problem.advice and not (is_over and is_of_standstill(problem)):
            out.print(f"  {problem.advice}", soft_wrap=True)
        if problem.cure:
            out.print(f"    {shlex.join(command_of(run, problem.cure))}", style="dim", soft_wrap=True)
    out.print()
    out.print(phrase("Files are named from {folder}", folder=run.path), style="dim", soft_wrap=True)


def _print(ran: RanOut) -> None:
    out = console.out()
    out.print(ran.headline, style="bold red", soft_wrap=True)
    for words in filter(None, (ran.tipped, ran.line)):
        out.print(words, soft_wrap=True)
    out.print(f"\non {ran.device or 'the device'}: {ran.moment}", style="dim", soft_wrap=True)
    for part in ran.kinds:
        out.print(f"  {part.name:<28} {part.size:>10}", soft_wrap=True)
    modules = ran.modules[:_MOST_MODULES]
    if modules:
        out.print("\nby module, when it failed", style="dim")
    for part in modules:
        out.print(f"  {part.name:<28} {part.size:>10}  {part.more}", soft_wrap=True)


def _print_fixes(ran: RanOut) -> None:
    out = console.out()
    out.print("\nways out, predicted", style="dim")
    for fix in ran.fixes:
        verdict = f", {fix.verdict}" if fix.verdict else ""
        out.print(f"  {fix.text}: {fix.headroom}{verdict}", soft_wrap=True)
        out.print(f"    {fix.command_line}", style="dim", soft_wrap=True)
    if not ran.fixes:
        out.print(f"  {ran.no_fixes}", soft_wrap=True)
