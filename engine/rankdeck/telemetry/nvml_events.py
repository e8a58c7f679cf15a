"""Collect XID errors from the driver: a thread waits inside the library and counts them, and the sampler
reports them.

Some faults cause thousands of errors per second. Each kind (a GPU and an XID number) is reported at once and
then once a minute, with its count since the last report.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping
from typing import Any

import pynvml

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.telemetry.nvml_calls import NVML_ERRORS, NvmlGpu, call_or_none
from rankdeck.telemetry.nvml_devices import MarkCall
from rankdeck.telemetry.readings import NoticeLine

REPEAT_NOTICE_S = 60.0
MAX_KINDS = 8
"""Maximum number of XID numbers that are counted separately per GPU and minute; the others are counted
together as number 0."""
_EVENT_PAUSE_S = 0.001
"""Pause after each event, so that an endless stream of events does not occupy a whole core."""
_MORE_TEXT = tr_noop("{what} Further occurrences in {seconds:.0f} s: {count}.")
_OTHERS_TEXT = tr_noop("{gpu}: XID errors with other numbers in {seconds:.0f} s: {count}.")

XidKind = tuple[str | None, int]


class XidEvents:
    """Counter of XID errors by GPU (UUID) and error number."""

    def __init__(self, gpus: Mapping[str, NvmlGpu]) -> None:
        self._gpus = gpus
        self._uuids = {_address(gpu.handle): uuid for uuid, gpu in gpus.items() if gpu.handle is not None}
        self._event_set: Any = None
        self._lock = threading.Lock()
        self._counts: dict[XidKind, int] = {}
        self._reported_s: dict[XidKind, float] = {}

    def register(self, mark: MarkCall) -> None:
        """Ask the driver to report events; a driver that does not support events reports nothing."""
        self._event_set = call_or_none(pynvml.nvmlEventSetCreate)
        for uuid, gpu in self._gpus.items():
            if self._event_set is not None and gpu.device.parent is None and gpu.device.lost_at is None:
                mark(uuid, "nvmlDeviceRegisterEvents")
                event_types = pynvml.nvmlEventTypeXidCriticalError
                call_or_none(pynvml.nvmlDeviceRegisterEvents, gpu.handle, event_types, self._event_set)

    def wait(self, timeout_s: float) -> None:
        """Wait for an event or the timeout; called from a background thread."""
        if self._event_set is None:
            time.sleep(timeout_s)
            return
        try:
            event = _wait_for_event(self._event_set, timeout_s)
        except pynvml.NVMLError_Timeout:
            return
        except NVML_ERRORS:  # a lost GPU; its readings report that
            time.sleep(timeout_s)
            return
        if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            self.add(self._uuids.get(_address(event.device)), int(event.eventData))
        time.sleep(_EVENT_PAUSE_S)

    def add(self, uuid: str | None, number: int) -> None:
        with self._lock:
            kinds = self._counts.keys() | self._reported_s.keys()
            if (uuid, number) not in kinds and sum(of == uuid for of, _ in kinds) >= MAX_KINDS:
                number = 0
            self._counts[uuid, number] = self._counts.get((uuid, number), 0) + 1

    def notices(self, now_s: float, *, at_end: bool = False) -> list[NoticeLine]:
        """Return the notices that are due; if `at_end` is True, also those that are not due yet."""
        if not self._counts and not self._reported_s:
            return []
        with self._lock:
            due = [
                kind
                for kind in self._counts
                if at_end or now_s - self._last_reported_s(kind) >= REPEAT_NOTICE_S
            ]
            counts = {kind: self._counts.pop(kind) for kind in due}
        # Outside the lock, which the event thread needs for every event.
        notices = [self._make_notice(kind, count, now_s) for kind, count in counts.items()]
        with self._lock:
            self._reported_s |= dict.fromkeys(due, now_s)
            for kind in [kind for kind in self._reported_s if kind not in self._counts]:
                if now_s - self._reported_s[kind] >= REPEAT_NOTICE_S:
                    del self._reported_s[kind]
        return notices

    def _last_reported_s(self, kind: XidKind) -> float:
        return self._reported_s.get(kind, -REPEAT_NOTICE_S)

    def _make_notice(self, kind: XidKind, count: int, now_s: float) -> NoticeLine:
        uuid, number = kind
        device = None if uuid is None else self._gpus[uuid].device
        gpu = phrase("A GPU") if device is None else f"GPU {device.index} ({device.name})"
        message, advice = describe_xid(number, gpu)
        seconds = min(now_s - self._last_reported_s(kind), REPEAT_NOTICE_S)
        if number == 0:
            message = phrase(_OTHERS_TEXT, gpu=gpu, count=count, seconds=seconds)
        elif kind in self._reported_s:
            message = phrase(_MORE_TEXT, what=message, count=count, seconds=seconds)
        return NoticeLine(
            code="xid",
            uuid=uuid,
            xid=number,
            count=count,
            message=message,
            advice=advice,
            severity="warning" if number in PROGRAM_ERRORS else "error",
        )


def _wait_for_event(events: Any, timeout_s: float) -> Any:
    """Wait for the next event.

    Raises:
        NVMLError: the wait timed out or failed.
    """
    # Drivers before 450 have only the first version, which fills just the first fields of the struct.
    wait_function = getattr(pynvml.nvmlLib, "nvmlEventSetWait_v2", None) or pynvml.nvmlLib.nvmlEventSetWait
    event = pynvml.c_nvmlEventData_t()
    code = wait_function(events, ctypes.byref(event), ctypes.c_uint(round(timeout_s * 1000)))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return event


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


# Texts for the most common XID error numbers.
#
# Source: NVIDIA, "XID Errors", https://docs.nvidia.com/deploy/xid-errors/.

_PROGRAM_ADVICE = tr_noop("Usually caused by a bug in the program: run it under compute-sanitizer.")
_HARDWARE_ADVICE = tr_noop(
    "Drain the GPU, then reset it or restart the machine. If the error recurs, have the card checked."
)
_UNKNOWN_ADVICE = tr_noop(
    "Look it up in NVIDIA's list of XID errors; the kernel log (dmesg) has the details."
)
_RESET_ADVICE = tr_noop("Reset the GPU when it is idle.")

_XID_TEXTS = {
    13: (tr_noop("{gpu}: XID {xid}, a kernel raised an exception."), _PROGRAM_ADVICE),
    31: (tr_noop("{gpu}: XID {xid}, a kernel accessed memory outside its allocations."), _PROGRAM_ADVICE),
    43: (tr_noop("{gpu}: XID {xid}, the GPU stopped a program's work."), _PROGRAM_ADVICE),
    45: (
        tr_noop(
            "{gpu}: XID {xid}, work was cleaned up after an earlier error or after a program was killed."
        ),
        _UNKNOWN_ADVICE,
    ),
    48: (tr_noop("{gpu}: XID {xid}, an uncorrectable memory error occurred."), _HARDWARE_ADVICE),
    61: (tr_noop("{gpu}: XID {xid}, the card's firmware stopped."), _HARDWARE_ADVICE),
    62: (tr_noop("{gpu}: XID {xid}, the card's firmware halted."), _HARDWARE_ADVICE),
    63: (tr_noop("{gpu}: XID {xid}, a memory row was remapped to a spare row."), _RESET_ADVICE),
    64: (tr_noop("{gpu}: XID {xid}, a memory row could not be remapped."), _HARDWARE_ADVICE),
    74: (tr_noop("{gpu}: XID {xid}, an NVLink error occurred."), _HARDWARE_ADVICE),
    79: (
        tr_noop("{gpu}: XID {xid}, the GPU has fallen off the bus."),
        tr_noop("Check power and temperature, then restart the machine."),
    ),
    92: (tr_noop("{gpu}: XID {xid}, the rate of single-bit memory errors is high."), _HARDWARE_ADVICE),
    94: (
        tr_noop("{gpu}: XID {xid}, a memory error was contained: only the affected program ends."),
        _RESET_ADVICE,
    ),
    95: (
        tr_noop(
            "{gpu}: XID {xid}, a memory error was not contained: all programs on the GPU may be affected."
        ),
        _HARDWARE_ADVICE,
    ),
    119: (tr_noop("{gpu}: XID {xid}, the GPU system processor (GSP) does not respond."), _HARDWARE_ADVICE),
    120: (tr_noop("{gpu}: XID {xid}, the GPU system processor (GSP) failed."), _HARDWARE_ADVICE),
}

PROGRAM_ERRORS = frozenset({13, 31, 43, 45})
"""XID numbers of errors that leave the GPU itself healthy."""


def describe_xid(xid: int, gpu: str) -> tuple[str, str]:
    """Return a description of XID error `xid` on the GPU named `gpu`, and advice on what to do."""
    what, advice = _XID_TEXTS.get(
        xid, (tr_noop("{gpu}: XID {xid}, the driver reported an error."), _UNKNOWN_ADVICE)
    )
    return phrase(what, gpu=gpu, xid=xid), phrase(advice)
