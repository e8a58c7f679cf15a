"""Which problems of a run may be the machine's own fault, so that the doctor is offered for them."""

from __future__ import annotations

from rankdeck.base.errors import MachineError, Problem
from rankdeck.base.phrases import phrase

COMMAND = "rankdeck doctor"
_CODES = {
    MachineError.code,
    "no-driver",
    "driver",
    "cannot-start",
    "communication",
    "no-store",
    "shared-memory",
}


def may_explain(problem: Problem) -> bool:
    """Whether a look at the machine may say more of it."""
    return problem.severity == "error" and problem.code in _CODES


def with_offer(problem: Problem) -> Problem:
    """The same with the command in its advice, where that may help. The parts of its advice stay."""
    if not may_explain(problem):
        return problem
    advice = problem.said("advice")
    offer = phrase("Look the machine over with: {command}", command=COMMAND)
    return problem.but(advice=phrase("{before} {one}", before=advice, one=offer) if advice else offer)
