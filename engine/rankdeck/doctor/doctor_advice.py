"""Recommend `rankdeck doctor` for run problems that the machine may have caused."""

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
    """Check whether the doctor may find the problem's cause."""
    return problem.severity == "error" and problem.code in _MACHINE_CODES


def with_doctor_advice(problem: Problem) -> Problem:
    """Return the problem; if the doctor may find its cause, add the doctor's command to the advice.

    The advice stays translatable.
    """
    if not is_machine_problem(problem):
        return problem
    advice = problem.as_phrase("advice")
    offer = phrase("Check the machine with: {command}", command=DOCTOR_COMMAND)
    return problem.replace_fields(
        advice=phrase("{before} {one}", before=advice, one=offer) if advice else offer
    )
