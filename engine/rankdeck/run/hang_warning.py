"""A run whose ranks make no progress: what was said of it, until they do again or the run ends.

The supervisor warns once of each place where ranks stand still (launch/watch.py). A step, an evaluation, a
checkpoint or another phase of a rank after that is progress. attempt.py keeps both.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rankdeck.base.errors import Problem

_HANG_CODES = frozenset({"hang-suspected", "rank-suspended", "rank-left"})


class HangWarning(NamedTuple):
    """The warning, and when it was given (Unix seconds)."""

    problem: Problem
    reported_at: float

    def at(self, now: float) -> Problem:
        """The warning with the seconds that have passed by `now`."""
        problem = self.problem
        values = problem.arguments.get("message", {})
        seconds = values.get("seconds")
        if not isinstance(seconds, int | float):
            return problem
        lasted = seconds + max(0.0, now - self.reported_at)
        return msgspec.structs.replace(
            problem,
            message=problem.message.replace(f" {seconds:.0f} s", f" {lasted:.0f} s", 1),
            arguments={**problem.arguments, "message": {**values, "seconds": lasted}},
        )


def is_hang_problem(problem: Problem) -> bool:
    """Whether it warns of ranks that make no progress."""
    return problem.severity == "warning" and problem.code in _HANG_CODES
