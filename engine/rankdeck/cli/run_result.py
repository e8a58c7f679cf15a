"""The final lines of `rankdeck run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankdeck.base.units import format_duration
from rankdeck.cli.formatting import loss_range_text, non_finite_loss_text
from rankdeck.cli.wait import exit_status

if TYPE_CHECKING:
    from rankdeck.run.run_state import RunState
    from rankdeck.run_dir import RunDir

_MAX_FINDINGS = 3


def result_lines(run: RunDir) -> list[str]:
    """Return the final lines of `rankdeck run`: the result, and the first findings.

    The result is, for example: 'completed after 0:12, 200 steps, loss 2.3021 to 0.0123 at step 198; rankdeck
    show 20260101-train'.
    """
    # The run directory may have been deleted while the script ran.
    if not run.path.exists():
        from rankdeck.run.problems import lost_problem

        return [lost_problem(run).message]
    from rankdeck.run.row import EVENTS_LOST_TEXT, outcome_label

    end, status = run.exit_record(), exit_status(run)
    state = outcome_label(run.outcome(), None if end is None else end.reason)
    texts = [state if not status or end is None else f"{end.outcome} with exit status {status}"]
    lost = f"\n{end.reason}" if end is not None and state == EVENTS_LOST_TEXT else ""
    started = run.environment().get("started")
    if end is not None and isinstance(started, (int, float)):
        texts[0] += f" after {format_duration(end.ended - started)}"
    findings: list[str] = []
    # A script that no rank observed has nothing to summarize, so the import and the reading are saved.
    if any(run.events_folder.glob("rank-*.jsonl")):
        from rankdeck.run.run_state import read_run_state
        from rankdeck.run.summary_builder import summarize

        observed = read_run_state(run, curves=True)
        summary = summarize(run, observed)
        findings = _finding_lines(run, observed)
        texts += filter(None, [non_finite_loss_text(summary)])
        if steps := summary.steps:
            texts.append(f"{steps} step{'s' if steps != 1 else ''}")
        if summary.loss.last is not None:
            texts.append(f"loss {loss_range_text(summary)}")
    return [f"{', '.join(texts)}; rankdeck show {run.name}{lost}", *findings]


def _finding_lines(run: RunDir, state: RunState) -> list[str]:
    """Return the first findings of an ended run, and the command that prints all of them with their fixes."""
    from rankdeck.diagnose.findings import run_findings

    found = run_findings(run, state, is_over=True)
    if not found:
        return []
    lines = [f"warning: {problem.headline()}" for problem in found[:_MAX_FINDINGS]]
    more = len(found) - len(lines)
    command = f"rankdeck why {run.name}"
    return [*lines, f"{more} more; {command}" if more else command]
