"""`rankdeck why`: explain why a run failed, is slow or does not learn.

It prints the run's problems and the findings in its metrics, and for a run that ran out of memory, the
planner's fixes.
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
from rankdeck.cli.trust import Trust, confirm_execution
from rankdeck.doctor.doctor_advice import with_doctor_advice
from rankdeck.run.bounds import ROW_TIMEOUT_S

if TYPE_CHECKING:
    from rankdeck.diagnose.out_of_memory import OutOfMemoryReport
    from rankdeck.run.plan_lines import PlanLine
    from rankdeck.run_dir import RunDir

_MAX_MODULES = 8


def why(
    name: RunName,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Time limit for planning each fix, in seconds.")
    ] = ROW_TIMEOUT_S,
    trust: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Explain why a run failed, is slow or does not learn.

    Prints the cause first, then the evidence and the fix. If a run ran out of memory, prints the device's
    memory contents, the failed allocation, and up to three fixes, which are planned once and saved with the
    run. With --json, prints the lines of the plan with these fixes if the run ran out of memory, and
    {"problems": [...]} otherwise.
    """
    from rankdeck.compare.run_metrics import load_run
    from rankdeck.compare.run_ref import RunRef
    from rankdeck.diagnose.findings import problems_and_findings
    from rankdeck.diagnose.out_of_memory import load_out_of_memory
    from rankdeck.run import plan_lines

    run = find_run(name)
    state = load_run(RunRef(run.path)).state
    ran = load_out_of_memory(run, state)
    if ran is None:
        problems = problems_and_findings(run, state)
        if as_json:
            console.print_problems_json(problems)
        else:
            _print_findings(run, problems)
        return 0
    if not as_json:
        # Printed before the fixes, because planning them takes seconds.
        _print_out_of_memory(ran)
    lines = []
    for line in fix_lines(run, timeout, trust=trust):
        lines.append(line)
        if as_json:
            sys.stdout.buffer.write(plan_lines.encode(line))
            sys.stdout.buffer.flush()
    if not as_json:
        _print_fixes(ran.with_fixes(lines, run))
    return 0


def fix_lines(
    run: RunDir, timeout_s: float = ROW_TIMEOUT_S, *, can_plan: bool = True, trust: bool
) -> Iterator[PlanLine]:
    """Yield the planner's fixes that reduce memory: saved fixes or, if there are none and `can_plan` is set,
    newly planned fixes.

    No fixes are planned for a script, or without the user's consent to execute the run's code.
    """
    from rankdeck.config import load
    from rankdeck.diagnose.fixes import read_planned_lines
    from rankdeck.run.problems import read_script_config

    saved_lines = read_planned_lines(run)
    if saved_lines is None and can_plan and read_script_config(run) is None:
        if not confirm_execution([(run, load(run.config_to_resume))], trust=trust):
            return
        from rankdeck.planner.preload import preload

        preload()
        from rankdeck.planner.fixes import plan_run_fixes

        yield from plan_run_fixes(run, timeout_s)
    yield from saved_lines or ()


def _print_findings(run: RunDir, problems: list[Problem]) -> None:
    """Print each problem with its evidence, its advice, and the command that applies the fix."""
    from rankdeck.diagnose.fixes import fix_command
    from rankdeck.diagnose.user_code import short_traceback
    from rankdeck.run.hang_warning import is_hang_problem
    from rankdeck.run.problems import is_lightly_observed

    out, is_over = console.out(), run.outcome() != "running"
    if not problems:
        out.print(phrase("No problems were found in the records of {run}.", run=run.name), soft_wrap=True)
        if is_lightly_observed(run):
            note = phrase(
                "Some checks ran in only a few steps. With --observe check, they run in every step."
            )
            out.print(note, style="dim", soft_wrap=True)
        return
    for problem in map(with_doctor_advice, problems):
        style = {"error": "bold red", "warning": "yellow"}.get(problem.severity, "default")
        out.print(problem.headline(), style=style, soft_wrap=True)
        for line in (
            *console.evidence_lines(problem),
            *(f"  | {line}" for line in short_traceback(problem.last_lines)),
        ):
            out.print(line, style="dim", soft_wrap=True)
        # A hang's advice says what happens next to a running run, so it is wrong for an ended one.
        if problem.advice and not (is_over and is_hang_problem(problem)):
            out.print(f"  {problem.advice}", soft_wrap=True)
        if problem.cure:
            out.print(f"    {shlex.join(fix_command(run, problem.cure))}", style="dim", soft_wrap=True)
    out.print()
    out.print(phrase("File paths are relative to {folder}", folder=run.path), style="dim", soft_wrap=True)


def _print_out_of_memory(ran: OutOfMemoryReport) -> None:
    out = console.out()
    out.print(ran.headline, style="bold red", soft_wrap=True)
    for text in filter(None, (ran.failed_allocation, ran.code_text)):
        out.print(text, soft_wrap=True)
    out.print(f"\non {ran.device or 'the device'}: {ran.memory_time}", style="dim", soft_wrap=True)
    for row in ran.kinds:
        out.print(f"  {row.name:<28} {row.size:>10}", soft_wrap=True)
    modules = ran.modules[:_MAX_MODULES]
    if modules:
        out.print("\nby module, when it failed", style="dim")
    for row in modules:
        out.print(f"  {row.name:<28} {row.size:>10}  {row.detail}", soft_wrap=True)


def _print_fixes(ran: OutOfMemoryReport) -> None:
    out = console.out()
    out.print("\nfixes, predicted", style="dim")
    for fix in ran.fixes:
        verdict = f", {fix.verdict}" if fix.verdict else ""
        out.print(f"  {fix.text}: {fix.headroom}{verdict}", soft_wrap=True)
        out.print(f"    {fix.command_line}", style="dim", soft_wrap=True)
    if not ran.fixes:
        out.print(f"  {ran.no_fixes_text}", soft_wrap=True)
