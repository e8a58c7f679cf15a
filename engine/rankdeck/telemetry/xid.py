"""The driver's XID error numbers that people meet, in words.

Source: NVIDIA, "XID Errors", https://docs.nvidia.com/deploy/xid-errors/.
"""

from __future__ import annotations

_BY_THE_PROGRAM = "Most often the fault of a program: run it under compute-sanitizer."
_BY_THE_CARD = "Drain the GPU, reset it or restart the machine; if it comes again, have the card checked."
_UNKNOWN = "Look it up in NVIDIA's list of XID errors; the kernel's log (dmesg) has its details."

_WORDS = {
    13: ("a kernel raised an exception", _BY_THE_PROGRAM),
    31: ("a kernel touched memory that is not its own", _BY_THE_PROGRAM),
    43: ("a program's work was stopped", _BY_THE_PROGRAM),
    45: ("work was cleaned up after an error before it, or after a program was killed", _UNKNOWN),
    48: ("memory had an error that could not be corrected", _BY_THE_CARD),
    61: ("the card's firmware stopped", _BY_THE_CARD),
    62: ("the card's firmware halted", _BY_THE_CARD),
    63: ("a row of memory was replaced by a spare one", "Reset the GPU when it is free."),
    64: ("a row of memory could not be replaced", _BY_THE_CARD),
    74: ("NVLink had an error", _BY_THE_CARD),
    79: ("the GPU has fallen off the bus", "Check power and temperature, then restart the machine."),
    92: ("single-bit memory errors come at a high rate", _BY_THE_CARD),
    94: ("a memory error was contained: only the program that met it ends", "Reset the GPU when it is free."),
    95: ("a memory error was not contained: every program on the GPU is in doubt", _BY_THE_CARD),
    119: ("the card's system processor does not answer", _BY_THE_CARD),
    120: ("the card's system processor failed", _BY_THE_CARD),
}

BY_PROGRAMS = frozenset({13, 31, 43, 45})
"""Errors after which the GPU itself is well."""


def describe(xid: int) -> tuple[str, str]:
    """(what happened, what to do next)."""
    return _WORDS.get(xid, ("the driver reported an error", _UNKNOWN))
