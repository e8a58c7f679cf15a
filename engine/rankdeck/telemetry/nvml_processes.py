"""Who is on a GPU, as NVML lists it: in one call where pynvml makes two, and whatever the driver answers.

A driver takes 4.5 ms for a list and lets nobody else in meanwhile. Its oldest form of a list (before 460) has
shorter entries; a library that is newer than its driver may refuse the newest.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import pynvml

_UNKNOWN_BYTES = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_FIRST_ROOM, MOST_PROCESSES = 32, 1 << 14
_GROWS = 4
"""How often a list may have grown between two calls, before it is taken for one that never fits."""
_OTHER_VERSION = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


class _FirstEntry(ctypes.Structure):
    _fields_: ClassVar = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


_VERSIONS = {"_v3": pynvml.c_nvmlProcessInfo_v2_t, "_v2": pynvml.c_nvmlProcessInfo_v2_t, "": _FirstEntry}


class _Version:
    """A list as one version of the driver's interface makes it."""

    def __init__(self, ask: Any, entry: type[ctypes.Structure]) -> None:
        self._ask, self._entry = ask, entry
        self._entries = (entry * _FIRST_ROOM)()

    def __call__(self, handle: Any) -> list[tuple[int, int | None]]:
        """Raises: NVMLError."""
        code, count = pynvml.NVML_ERROR_INSUFFICIENT_SIZE, ctypes.c_uint()
        for _ in range(_GROWS):
            count.value = len(self._entries)
            code = self._ask(handle, ctypes.byref(count), self._entries)
            if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or count.value > MOST_PROCESSES:
                break
            self._entries = (self._entry * (2 * max(count.value, _FIRST_ROOM)))()
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        return [
            (entry.pid, None if entry.usedGpuMemory == _UNKNOWN_BYTES else entry.usedGpuMemory)
            for entry in self._entries[: count.value]
        ]


class ProcessList:
    """The processes of a kind on a device."""

    def __init__(self, kind: str) -> None:
        """`kind`: Compute | Graphics."""
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        found = {end: getattr(pynvml.nvmlLib, name + end, None) for end in _VERSIONS}
        self._versions = [_Version(ask, _VERSIONS[end]) for end, ask in found.items() if ask is not None]

    def __call__(self, handle: Any) -> list[tuple[int, int | None]]:
        """(process id, bytes; None where the driver does not tell). Raises: NVMLError."""
        refused = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        for place, ask in enumerate(self._versions):
            try:
                found = ask(handle)
            except pynvml.NVMLError as error:
                if error.value not in _OTHER_VERSION:
                    raise
                refused = error
            else:
                del self._versions[:place]
                return found
        raise refused
