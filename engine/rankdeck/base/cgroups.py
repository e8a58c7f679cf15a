"""What the kernel lets this process's control group have, in the first and in the second version of cgroups.

A limit may be set at any group above, so the tightest one counts. Nothing is told of a controller without a
limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankdeck.base.files import text_or_empty

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_FILES = {
    "memory": (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
}
"""By controller: names of limit and use in the second version, then in the first."""
_RECLAIMABLE = ("inactive_file", "active_file")
_NO_LIMIT = 1 << 60
"""What the first version says where there is none is larger."""


class CgroupLimit(NamedTuple):
    """`file` says the limit; `used` leaves out cached files, which the kernel gives up."""

    limit: int
    used: int
    file: Path

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used)


def tightest_limit(controller: str) -> CgroupLimit | None:
    """The limit that leaves least of "memory" (bytes) or "pids" (processes and threads)."""
    found = []
    for folder, version in _folders(controller):
        names = _FILES[controller][version]
        limit, used = (_read_number(folder / name) for name in names)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            cached = _reclaimable_bytes(folder) if controller == "memory" else 0
            found.append(CgroupLimit(limit, used - cached, folder / names[0]))
    return min(found, key=lambda limit: limit.remaining, default=None)


def num_cores() -> int:
    """The cores that this process and its children may use together, by affinity and by quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota() -> float | None:
    """How many cores' worth of time the group may take; None without a limit."""
    quotas = []
    for folder, version in _folders("cpu"):
        if version == 0:
            given, _, per = text_or_empty(folder / "cpu.max").partition(" ")
        else:
            given, per = (text_or_empty(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if given.isdecimal() and per.isdecimal() and int(per):
            quotas.append(int(given) / int(per))
    return min(quotas, default=None)


def _folders(controller: str) -> Iterator[tuple[Path, int]]:
    """(folder, 0 for the second version or 1 for the first) of the process's group and all above it."""
    for line in text_or_empty(MEMBERSHIP).splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            top, version = ROOT, 0
        elif controller in names.split(","):
            top, version = ROOT / names, 1
        else:
            continue
        place = top / path.strip("/")
        # Inside a container the path may be the host's own, of which only the top is there.
        yield from ((folder, version) for folder in (place, *place.parents) if folder.is_relative_to(top))


def _reclaimable_bytes(folder: Path) -> int:
    lines = text_or_empty(folder / "memory.stat").splitlines()
    counts = dict(line.split(" ", 1) for line in lines if " " in line)
    return sum(int(counts[name]) for name in _RECLAIMABLE if counts.get(name, "").isdecimal())


def _read_number(file: Path) -> int | None:
    text = text_or_empty(file)
    return int(text) if text.isdecimal() else None
