"""Identify the processes whose pids the driver reports, or mark them as belonging to another namespace.

A driver may report host pids to a container, in which the same number belongs to another process or to no
process. A pid without a process in this namespace is foreign. Outside the host's own namespace, a pid is also
foreign if its process can be inspected and has no GPU's device file open. A pid is inspected when the driver
starts to report it; after that, only the process's host memory is read each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil

from rankdeck.base.masking import MASK, mask_arguments
from rankdeck.telemetry.readings import ProcessUse

T = TypeVar("T")
_HOST_NAMESPACE = 0xEFFFFFFC  # the inode of the first pid namespace of any Linux
_DEVICE_FILES = "/dev/nvidia"


class ProcessIdentity(NamedTuple):
    """Identity of a process. A field is None if this user has no permission to read it; for a
    process of another namespace, only `foreign` is set."""

    name: str | None
    foreign: bool
    user: str | None = None
    command: str | None = None
    process: psutil.Process | None = None


class ProcessIdentities:
    """Cache of the identities of the most recently reported pids."""

    def __init__(self) -> None:
        self._known: dict[int, ProcessIdentity] = {}
        self._may_be_host_pids = not _is_in_host_namespace() and Path(f"{_DEVICE_FILES}ctl").exists()

    def identify(self, pid: int) -> ProcessIdentity:
        identity = self._known.get(pid)
        if identity is None:
            identity = self._known[pid] = self._read_identity(pid)
        return identity

    def process_use(self, pid: int, used_bytes: int | None, kind: str) -> ProcessUse:
        """Return how process `pid` uses a device, together with its identity; `kind`: compute | graphics."""
        who = self.identify(pid)
        process = who.process
        host_bytes = None if process is None else _or_none(lambda: int(process.memory_info().rss))
        return ProcessUse(
            pid, who.name, used_bytes, kind, who.foreign,
            user=who.user, command=who.command, host_bytes=host_bytes,
        )  # fmt: skip

    def retain(self, pids: Iterable[int]) -> None:
        """Forget all pids except `pids`, because the system may reuse the pid of a process that has ended."""
        there = set(pids)
        if len(there) < len(self._known):
            self._known = {pid: who for pid, who in self._known.items() if pid in there}

    def _read_identity(self, pid: int) -> ProcessIdentity:
        try:
            process = psutil.Process(pid)
            name = _valid_utf8(process.name())
        except psutil.Error:
            return ProcessIdentity(None, foreign=True)
        # `is False`: None means that the process may not be inspected, which proves nothing.
        if self._may_be_host_pids and _holds_gpu(pid) is False:
            return ProcessIdentity(None, foreign=True)
        user = _or_none(lambda: _valid_utf8(process.username()))
        return ProcessIdentity(
            name, False, user, _or_none(lambda: format_command(process.cmdline()) or None), process
        )


def _valid_utf8(text: str) -> str:
    """Replace incomplete characters with question marks: the kernel truncates process names to 15 bytes."""
    return text.encode(errors="replace").decode()


def _or_none(function: Callable[[], T]) -> T | None:
    """Return the function's result, or None if the system refuses access or the process has ended."""
    try:
        return function()
    except psutil.Error:
        return None


def _is_in_host_namespace() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_NAMESPACE
    except OSError:
        return True


def _holds_gpu(pid: int) -> bool | None:
    """Check whether the process has a GPU's device file open; None if its files cannot be read."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
        return any(str(link.readlink()).startswith(_DEVICE_FILES) for link in links)
    except OSError:
        return None


# A process's command line for display: one line of limited length, with anything that looks like a secret
# masked (base/masking.py).

MAX_COMMAND_LENGTH = 200
_SHA1 = re.compile(r"\b[0-9a-f]{40}\b")
"""Format of some services' API keys. Strings of this format are masked only in command lines: in a
configuration, they would be commit hashes."""


def format_command(arguments: Sequence[str]) -> str:
    """Return a process's command line with secrets masked, on one line of limited length."""
    text = _SHA1.sub(MASK, " ".join(mask_arguments(list(map(_valid_utf8, arguments)), any_key=True)).strip())
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    return text if len(text) <= MAX_COMMAND_LENGTH else text[: MAX_COMMAND_LENGTH - 3] + "..."
