"""Reads the limits of this process's control group, from cgroup v1 and v2.

Any ancestor group can set a limit, so the tightest limit applies. A controller without a limit yields None.
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
"""Names of the (limit, usage) files of each controller: first those of cgroup v2, then those of v1."""
_RECLAIMABLE = ("inactive_file", "active_file")
_NO_LIMIT = 1 << 60
"""Threshold for cgroup v1, which reports a larger number if there is no limit."""


class CgroupLimit(NamedTuple):
    """A limit and the current usage.

    `file` is the file with the limit; `used` excludes cached files, which the kernel can reclaim.
    """

    limit: int
    used: int
    file: Path

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used)


def tightest_limit(controller: str) -> CgroupLimit | None:
    """Return the limit on "memory" (bytes) or "pids" (processes and threads) with the least headroom."""
    limits = []
    for folder, version in _folders(controller):
        names = _FILES[controller][version]
        limit, used = (_read_number(folder / name) for name in names)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            cached = _reclaimable_bytes(folder) if controller == "memory" else 0
            limits.append(CgroupLimit(limit, used - cached, folder / names[0]))
    return min(limits, key=lambda limit: limit.remaining, default=None)


def num_cores() -> int:
    """Return the number of cores that this process and its children can use, limited by CPU affinity and
    quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    # Rounded up, because a quota of 1.5 cores still lets two threads run at once.
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota() -> float | None:
    """Return the group's CPU quota in cores; None without a limit."""
    quotas = []
    for folder, version in _folders("cpu"):
        if version == 0:
            quota, _, per = text_or_empty(folder / "cpu.max").partition(" ")
        else:
            quota, per = (text_or_empty(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdecimal() and per.isdecimal() and int(per):
            quotas.append(int(quota) / int(per))
    return min(quotas, default=None)


def _folders(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield (folder, index) for the process's group and all its ancestors; `index` selects the file names of
    cgroup v2 (0) or v1 (1) in `_FILES`."""
    for line in text_or_empty(MEMBERSHIP).splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            top, version = ROOT, 0
        elif controller in names.split(","):
            top, version = ROOT / names, 1
        else:
            continue
        group_folder = top / path.strip("/")
        # Inside a container the path may be the host's, of which only the top folder exists.
        yield from (
            (folder, version)
            for folder in (group_folder, *group_folder.parents)
            if folder.is_relative_to(top)
        )


def _reclaimable_bytes(folder: Path) -> int:
    lines = text_or_empty(folder / "memory.stat").splitlines()
    counts = dict(line.split(" ", 1) for line in lines if " " in line)
    return sum(int(counts[name]) for name in _RECLAIMABLE if counts.get(name, "").isdecimal())


def _read_number(file: Path) -> int | None:
    text = text_or_empty(file)
    return int(text) if text.isdecimal() else None
