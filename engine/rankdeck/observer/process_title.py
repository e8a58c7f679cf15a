"""Sets the names that `ps`, `top` and `nvidia-smi` show: "rank 2/4 gpt-ddp", "guard gpt-ddp".

Linux keeps two names for each process: `comm` (15 bytes), which the process can change by writing to a file,
and the arguments. In a user's script, only `comm` is changed. Rankdeck's own ranks are forked, so all of them
would show the supervisor's arguments; these are overwritten in memory, long after Python has copied them. If
the system refuses, the names stay unchanged and no error is raised. This module is in the
observer's package because the observer and the guard import nothing from outside that package.
"""

import os

_ARG_START, _ARG_END = 45, 46
"""Indices of fields 48 and 49 of /proc/self/stat (see proc(5)), counted from the field after the name."""


def short_run_name(run: str) -> str:
    """Return the name of a run directory without its timestamp: 'gpt-ddp-4-d899'."""
    name = os.path.basename(run)
    stamp, _, rest = name.partition("-")
    return rest.partition("-")[2] or name if stamp.isdigit() else name


def set_process_name(what: str, run: str) -> None:
    """Set this process's name, as in `ps -o comm`: `what` and the run's name, cut to 15 bytes."""
    try:
        # Not setproctitle: it is a compiled package, which neither the guard nor a user's environment has.
        with open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(("%s %s" % (what, short_run_name(run))).strip().encode()[:15])
    except OSError:
        pass


def set_process_title(what: str, run: str) -> None:
    """Set the text that `ps -o args` shows: 'rankdeck rank 2/4 gpt-ddp-4-d899'."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        room = end - start
        # One byte is left for the terminating null.
        title = ("rankdeck %s %s" % (what, short_run_name(run))).encode()[: room - 1]
        handle = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
    except (OSError, ValueError, IndexError):
        return
    try:
        os.pwrite(handle, title + bytes(room - len(title)), start)
    except OSError:
        pass
    finally:
        os.close(handle)
