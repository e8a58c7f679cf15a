"""Store the warning about ranks that make no progress, until the ranks continue or the run ends.

The supervisor warns once for each location where ranks hang (launch/watch.py). A later step, evaluation,
checkpoint or new phase of a rank is progress. attempt.py stores both the warning and the time of the last
progress.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rankdeck.base.errors import Problem

WORKS_ALONE = "rank-works-alone"
"""Code of the note that one rank is busy and the others are waiting for it; this is not a hang."""
_HANG_CODES = frozenset({"hang-suspected", "rank-suspended", "rank-left", WORKS_ALONE})


class HangWarning(NamedTuple):
    """Warning about a hang, and the time at which it was reported (Unix seconds)."""

    problem: Problem
    reported_at: float

    def at(self, now: float) -> Problem:
        """Return the warning with the hang's duration updated to the time `now`."""
        problem = self.problem
        values = problem.arguments.get("message", {})
        seconds = values.get("seconds")
        if not isinstance(seconds, int | float):
            return problem
        lasted = seconds + max(0.0, now - self.reported_at)
        return msgspec.structs.replace(
            problem,
            # The message is formatted already, so the seconds in it are replaced as well as the argument.
            message=problem.message.replace(f" {seconds:.0f} s", f" {lasted:.0f} s", 1),
            arguments={**problem.arguments, "message": {**values, "seconds": lasted}},
        )


def is_hang_problem(problem: Problem) -> bool:
    """Check whether a problem is a warning or note about ranks that make no progress."""
    return problem.severity in ("warning", "info") and problem.code in _HANG_CODES
