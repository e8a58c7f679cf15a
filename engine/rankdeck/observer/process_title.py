"""What `ps`, `top` and `nvidia-smi` call a process of a run: "rank 2/4 gpt-ddp", "guard gpt-ddp".

Linux keeps two names. `comm`, 15 bytes, is a file that a process may write; it is all that is changed of a
person's own script, whose arguments stay as they were. The arguments of our own ranks, which are forked and
would all read as the supervisor's, are written over in their own memory; Python has copied them long before.
A name is no reason to fail: where the system refuses, things stay as they are. It stands in this room because
the observer and the guard import nothing else.
"""

import os

_ARG_START, _ARG_END = 45, 46
"""Places in /proc/self/stat after the name: the fields 48 and 49 of proc(5)."""


def short_run_name(run: str) -> str:
    """A run's folder without the time: 'gpt-ddp-4-d899'."""
    name = os.path.basename(run)
    stamp, _, rest = name.partition("-")
    return rest.partition("-")[2] or name if stamp.isdigit() else name


def set_process_name(what: str, run: str) -> None:
    """`ps -o comm`: as much as there is room for."""
    try:
        with open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(("%s %s" % (what, short_run_name(run))).strip().encode()[:15])
    except OSError:
        pass


def set_process_title(what: str, run: str) -> None:
    """`ps -o args`: 'rankdeck rank 2/4 gpt-ddp-4-d899'."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        room = end - start
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
