"""Which problems of a run may be the machine's own fault, so that the doctor is offered for them."""

from __future__ import annotations

from rankdeck.base.errors import MachineError, Problem
from rankdeck.base.phrases import phrase

DOCTOR_COMMAND = "rankdeck doctor"
_MACHINE_CODES = {
    MachineError.code,
    "no-driver",
    "driver",
    "cannot-start",
    "communication",
    "no-store",
    "shared-memory",
}


def is_machine_problem(problem: Problem) -> bool:
    """Whether a look at the machine may say more of it."""
    return problem.severity == "error" and problem.code in _MACHINE_CODES


def with_doctor_advice(problem: Problem) -> Problem:
    """The same with the command in its advice, where that may help. The parts of its advice stay."""
    if not is_machine_problem(problem):
        return problem
    advice = problem.as_phrase("advice")
    offer = phrase("Look the machine over with: {command}", command=DOCTOR_COMMAND)
    return problem.replace_fields(
        advice=phrase("{before} {one}", before=advice, one=offer) if advice else offer
    )
