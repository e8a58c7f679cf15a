"""XID errors as the driver reports them: a thread waits inside the library and counts, the sampler tells.

Some faults make thousands of them a second. Each kind (a GPU and a number) is told at once and then once a
minute, with how often it came meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping
from typing import Any

import pynvml

from rankdeck.base.phrases import marked, phrase
from rankdeck.telemetry.nvml_calls import FAILED, NvmlGpu, known
from rankdeck.telemetry.nvml_devices import Mark
from rankdeck.telemetry.readings import NoticeLine

TELL_AGAIN_S = 60.0
MOST_KINDS = 8
"""So many numbers of a GPU are told apart within a minute; the rest is counted together, as number 0."""
_BREATH_S = 0.001
"""Between two events: a driver that reports without end takes no more than a part of a core."""
_MORE = marked("{what} So {count} more times in {seconds:.0f} s.")
_OTHERS = marked("{gpu}: {count} XID errors of other numbers in {seconds:.0f} s.")

Kind = tuple[str | None, int]


class XidEvents:
    """Of these GPUs, by UUID."""

    def __init__(self, gpus: Mapping[str, NvmlGpu]) -> None:
        self._gpus = gpus
        self._uuids = {_address(gpu.handle): uuid for uuid, gpu in gpus.items() if gpu.handle is not None}
        self._set: Any = None
        self._lock = threading.Lock()
        self._heard: dict[Kind, int] = {}
        self._told_s: dict[Kind, float] = {}

    def register(self, mark: Mark) -> None:
        """Ask the driver to report; where it has no events, nothing is ever heard."""
        self._set = known(pynvml.nvmlEventSetCreate)
        for uuid, gpu in self._gpus.items():
            if self._set is not None and gpu.device.parent is None and gpu.device.lost_at is None:
                mark(uuid, "nvmlDeviceRegisterEvents")
                wanted = pynvml.nvmlEventTypeXidCriticalError
                known(pynvml.nvmlDeviceRegisterEvents, gpu.handle, wanted, self._set)

    def wait(self, timeout_s: float) -> None:
        """Until something has happened, or the time is over; called from a thread."""
        if self._set is None:
            time.sleep(timeout_s)
            return
        try:
            event = _wait(self._set, timeout_s)
        except pynvml.NVMLError_Timeout:
            return
        except FAILED:  # a lost GPU, which readings tell
            time.sleep(timeout_s)
            return
        if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            self.add(self._uuids.get(_address(event.device)), int(event.eventData))
        time.sleep(_BREATH_S)

    def add(self, uuid: str | None, number: int) -> None:
        with self._lock:
            kinds = self._heard.keys() | self._told_s.keys()
            if (uuid, number) not in kinds and sum(of == uuid for of, _ in kinds) >= MOST_KINDS:
                number = 0
            self._heard[uuid, number] = self._heard.get((uuid, number), 0) + 1

    def notices(self, now_s: float, *, at_end: bool = False) -> list[NoticeLine]:
        """What is due to be told; all of it at the end."""
        if not self._heard and not self._told_s:
            return []
        with self._lock:
            due = [kind for kind in self._heard if at_end or now_s - self._last_s(kind) >= TELL_AGAIN_S]
            counts = {kind: self._heard.pop(kind) for kind in due}
        notices = [self._notice(kind, count, now_s) for kind, count in counts.items()]
        with self._lock:
            self._told_s |= dict.fromkeys(due, now_s)
            for kind in [kind for kind in self._told_s if kind not in self._heard]:
                if now_s - self._told_s[kind] >= TELL_AGAIN_S:
                    del self._told_s[kind]
        return notices

    def _last_s(self, kind: Kind) -> float:
        return self._told_s.get(kind, -TELL_AGAIN_S)

    def _notice(self, kind: Kind, count: int, now_s: float) -> NoticeLine:
        uuid, number = kind
        device = None if uuid is None else self._gpus[uuid].device
        gpu = phrase("A GPU") if device is None else f"GPU {device.index} ({device.name})"
        message, advice = describe(number, gpu)
        seconds = min(now_s - self._last_s(kind), TELL_AGAIN_S)
        if number == 0:
            message = phrase(_OTHERS, gpu=gpu, count=count, seconds=seconds)
        elif kind in self._told_s:
            message = phrase(_MORE, what=message, count=count, seconds=seconds)
        return NoticeLine(
            code="xid",
            uuid=uuid,
            xid=number,
            count=count,
            message=message,
            advice=advice,
            severity="warning" if number in BY_PROGRAMS else "error",
        )


def _wait(events: Any, timeout_s: float) -> Any:
    """Raises: NVMLError."""
    # Drivers before 450 have the first version alone; it fills in the beginning.
    ask = getattr(pynvml.nvmlLib, "nvmlEventSetWait_v2", None) or pynvml.nvmlLib.nvmlEventSetWait
    event = pynvml.c_nvmlEventData_t()
    code = ask(events, ctypes.byref(event), ctypes.c_uint(round(timeout_s * 1000)))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return event


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


# The driver's XID error numbers that people meet, in words.
#
# Source: NVIDIA, "XID Errors", https://docs.nvidia.com/deploy/xid-errors/.

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
