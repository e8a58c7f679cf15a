"""The driver's XID error numbers that people meet, in words.

Source: NVIDIA, "XID Errors", https://docs.nvidia.com/deploy/xid-errors/.
"""

from __future__ import annotations

from rankdeck.base.phrases import marked, phrase

_BY_THE_PROGRAM = marked("Most often the fault of a program: run it under compute-sanitizer.")
_BY_THE_CARD = marked(
    "Drain the GPU, reset it or restart the machine; if it comes again, have the card checked."
)
_UNKNOWN = marked("Look it up in NVIDIA's list of XID errors; the kernel's log (dmesg) has its details.")
_RESET = marked("Reset the GPU when it is free.")

_WORDS = {
    13: (marked("{gpu}: XID {xid}, a kernel raised an exception."), _BY_THE_PROGRAM),
    31: (marked("{gpu}: XID {xid}, a kernel touched memory that is not its own."), _BY_THE_PROGRAM),
    43: (marked("{gpu}: XID {xid}, a program's work was stopped."), _BY_THE_PROGRAM),
    45: (
        marked(
            "{gpu}: XID {xid}, work was cleaned up after an error before it, or after a program was killed."
        ),
        _UNKNOWN,
    ),
    48: (marked("{gpu}: XID {xid}, memory had an error that could not be corrected."), _BY_THE_CARD),
    61: (marked("{gpu}: XID {xid}, the card's firmware stopped."), _BY_THE_CARD),
    62: (marked("{gpu}: XID {xid}, the card's firmware halted."), _BY_THE_CARD),
    63: (marked("{gpu}: XID {xid}, a row of memory was replaced by a spare one."), _RESET),
    64: (marked("{gpu}: XID {xid}, a row of memory could not be replaced."), _BY_THE_CARD),
    74: (marked("{gpu}: XID {xid}, NVLink had an error."), _BY_THE_CARD),
    79: (
        marked("{gpu}: XID {xid}, the GPU has fallen off the bus."),
        marked("Check power and temperature, then restart the machine."),
    ),
    92: (marked("{gpu}: XID {xid}, single-bit memory errors come at a high rate."), _BY_THE_CARD),
    94: (
        marked("{gpu}: XID {xid}, a memory error was contained: only the program that met it ends."),
        _RESET,
    ),
    95: (
        marked("{gpu}: XID {xid}, a memory error was not contained: every program on the GPU is in doubt."),
        _BY_THE_CARD,
    ),
    119: (marked("{gpu}: XID {xid}, the card's system processor does not answer."), _BY_THE_CARD),
    120: (marked("{gpu}: XID {xid}, the card's system processor failed."), _BY_THE_CARD),
}

BY_PROGRAMS = frozenset({13, 31, 43, 45})
"""Errors after which the GPU itself is well."""


def describe(xid: int, gpu: str) -> tuple[str, str]:
    """(what happened to the GPU of that name, what to do next)."""
    what, advice = _WORDS.get(xid, (marked("{gpu}: XID {xid}, the driver reported an error."), _UNKNOWN))
    return phrase(what, gpu=gpu, xid=xid), phrase(advice)
