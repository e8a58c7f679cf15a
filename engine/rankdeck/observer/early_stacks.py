"""Lets every Python process of a run write its stacks on demand as soon as it starts: a rank before its first
step, a loader worker, any other child.

stacks.py takes over when the process becomes a rank. Until then, faulthandler writes to an anonymous file in
memory, so no file remains on disk, however many processes a script starts. Other processes find the file in
/proc/<pid>/fd by its first line, `rankdeck stacks <pid> <signal> <run>` (launch/process_stacks.py). A forked
child opens a file of its own. Every Python process of a run executes this module, so it imports almost
nothing.
"""

import _signal  # type: ignore[import-not-found]  # unlike signal, it does not import enum
import faulthandler
import os

_MIN_FD, _MAX_FD = 512, 1024
"""Range for the file's descriptor: above the descriptors of the script's own files, below the usual limit."""
# Python does not offer memfd_create if it was built with an old C library.
_TEMPORARY_FOLDER, _O_TMPFILE = "/dev/shm", getattr(os, "O_TMPFILE", 0o20200000)


class EarlyStacks:
    """The registration of faulthandler in a process that is not a rank yet."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._handle, self._number = -1, 0
        self._file_id: "tuple[int, int] | None" = None

    def register(self) -> None:
        """Register faulthandler with a new file in memory; do nothing if the system refuses."""
        self.close()
        number = free_signal()
        if number is None:
            return
        try:
            handle = _open_memory_file()
            os.write(handle, b"rankdeck stacks %d %d %s\n" % (os.getpid(), number, os.fsencode(self._run)))
            stat = os.fstat(handle)
            faulthandler.register(number, file=handle, all_threads=True, chain=False)
        except (OSError, RuntimeError, ValueError):
            return
        self._handle, self._number, self._file_id = handle, number, (stat.st_dev, stat.st_ino)

    def update(self) -> None:
        """Register faulthandler for another signal if the script has its own handler for the current one."""
        if self._handle >= 0 and _signal.getsignal(self._number) != _signal.SIG_DFL:
            self.register()

    def close(self) -> None:
        """Close the file, unless the script has closed it and its descriptor now refers to another file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            try:
                stat = os.fstat(handle)
                if (stat.st_dev, stat.st_ino) == self._file_id:
                    os.close(handle)
            except OSError:
                pass


def free_signal() -> "int | None":
    """Return the highest real-time signal for which the script has no handler; None if there is none."""
    # Python's table of handlers does not include faulthandler's, so the result is stable.
    for number in range(_signal.SIGRTMAX - 1, _signal.SIGRTMIN, -1):
        if _signal.getsignal(number) == _signal.SIG_DFL:
            return number
    return None


def _open_memory_file() -> int:
    """Open an empty file in memory, with a high descriptor that is closed on exec.

    Raises:
        OSError: the file cannot be created, or no descriptor in the range is free.
    """
    make = getattr(os, "memfd_create", None)
    if make is not None:
        low = make("rankdeck-stacks")
    else:
        low = os.open(_TEMPORARY_FOLDER, _O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        # Not fcntl's F_DUPFD: importing fcntl costs as much as everything else here.
        for number in range(_MIN_FD, _MAX_FD):
            try:
                os.fstat(number)
            except OSError:
                return os.dup2(low, number, inheritable=False)
        raise OSError("no free descriptor")
    finally:
        os.close(low)


current: "EarlyStacks | None" = None


def install(run: str) -> None:
    """Register faulthandler in this process and in all children that it will fork."""
    global current
    current = early = EarlyStacks(run)
    early.register()
    os.register_at_fork(after_in_child=early.register)
