"""Whose process a pid is that the driver reports: its name, or that it belongs to another namespace.

A driver may report pids of the host to a container, where the same number is another process, or none. A pid
that is nobody's here is foreign; so is one, outside the host's own namespace, of a process that can be looked
into and holds no GPU. Each pid is looked at once, for as long as it stays reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

_HOST_NAMESPACE = 0xEFFFFFFC  # the inode of the first pid namespace of any Linux
_DEVICE_FILES = "/dev/nvidia"


class Identity(NamedTuple):
    """`name` is None for a foreign process."""

    name: str | None
    foreign: bool


class ProcessNames:
    """Remembers who the pids are that were reported last."""

    def __init__(self) -> None:
        self._known: dict[int, Identity] = {}
        self._may_be_hosts = not _in_host_namespace() and Path(f"{_DEVICE_FILES}ctl").exists()

    def identify(self, pid: int) -> Identity:
        identity = self._known.get(pid)
        if identity is None:
            identity = self._known[pid] = self._look(pid)
        return identity

    def keep_only(self, pids: Iterable[int]) -> None:
        """Forget who has ended: a pid may come again as another process."""
        there = set(pids)
        if len(there) < len(self._known):
            self._known = {pid: who for pid, who in self._known.items() if pid in there}

    def _look(self, pid: int) -> Identity:
        try:
            name = psutil.Process(pid).name()
        except psutil.Error:
            return Identity(None, foreign=True)
        if self._may_be_hosts and _holds_gpu(pid) is False:
            return Identity(None, foreign=True)
        return Identity(name, foreign=False)


def _in_host_namespace() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_NAMESPACE
    except OSError:
        return True


def _holds_gpu(pid: int) -> bool | None:
    """Whether the process has a GPU's device file open; None where that may not be seen."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
        return any(str(link.readlink()).startswith(_DEVICE_FILES) for link in links)
    except OSError:
        return None
