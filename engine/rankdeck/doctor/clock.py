"""The clock of this machine: whether something keeps it right, and whether it jumps.

Source: adjtimex(2); it only reads here.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rankdeck.base.phrases import phrase
from rankdeck.doctor.lines import CheckLine, Verdict, row

_LOOKS_S = 0.5
_STEP_S = 0.05
"""More than this between the two clocks within half a second is no drift."""
_UNSYNCHRONISED = 0x40
_FIRST_YEAR = 2025
"""Nothing of this version ran before."""


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


class KernelClock(NamedTuple):
    """What the kernel knows of its clock."""

    is_synchronised: bool
    most_error_s: float


def kernel_clock() -> KernelClock | None:
    """None where the kernel does not tell."""
    told = _Timex()
    try:
        if ctypes.CDLL(None).adjtimex(ctypes.byref(told)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return KernelClock(not told.status & _UNSYNCHRONISED, told.maxerror / 1e6)


def jump_s(wall: Callable[[], float], steady: Callable[[], float], sleep: Callable[[float], None]) -> float:
    """By how much the clock on the wall moved against the steady one while we looked."""
    before = wall() - steady()
    sleep(_LOOKS_S)
    return wall() - steady() - before


def look_at_clock(
    kernel: Callable[[], KernelClock | None] = kernel_clock, wall: Callable[[], float] = time.time
) -> Iterator[CheckLine]:
    jumped_s = jump_s(wall, time.monotonic, time.sleep)
    told = kernel()
    evidence: list[str] = [
        phrase(
            "CLOCK_REALTIME against CLOCK_MONOTONIC within {looked} s: {moved:.1f} ms",
            looked=_LOOKS_S,
            moved=abs(jumped_s) * 1e3,
        )
    ]
    if told is not None:
        words = phrase("adjtimex: synchronised, off by {error:.3f} s at most", error=told.most_error_s)
        evidence.append(words if told.is_synchronised else phrase("adjtimex: not synchronised"))
    else:
        evidence.append(phrase("adjtimex does not tell whether it is synchronised"))
    keep = phrase("Let something keep it right (chrony, systemd-timesyncd).")
    if time.gmtime(wall()).tm_year < _FIRST_YEAR:
        date = time.strftime("%Y-%m-%d", time.gmtime(wall()))
        finding, verdict = phrase("It says {date}, which is long past.", date=date), Verdict.BROKEN
    elif abs(jumped_s) > _STEP_S:
        finding, verdict = phrase("It jumped while we looked."), Verdict.LOOK
    elif told is not None and not told.is_synchronised:
        finding, verdict = phrase("Nothing keeps it right: times of several hosts will differ."), Verdict.LOOK
    else:
        yield row("clock", Verdict.GOOD, phrase("It runs evenly."), *evidence)
        return
    yield row("clock", verdict, finding, *evidence, fix=keep, command="timedatectl set-ntp true")
