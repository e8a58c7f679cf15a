"""Writes the stacks of all threads of a rank on demand, with faulthandler and an unused signal.

faulthandler does not need the interpreter lock, so this works even in a rank that hangs in C code. The signal
is the highest real-time signal without a handler; if a script later installs its own handler for that signal,
the script's handler replaces ours. faulthandler also writes the stacks when a signal such as SIGABRT ends
the rank, unless the script has enabled it itself.

Soon after stacks are written, and when an error ends the script, the latest collectives from torch's flight
recorder are written to another file in the stacks' folder. Read early_stacks.py for a process that is not a
rank.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys

from . import early_stacks
from .early_stacks import free_signal
from .writer import open_high_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_FLIGHT_RECORDER_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions that dump torch's flight recorder: gloo's, and NCCL's in builds that include NCCL."""
_MAX_ENTRIES = 64


def install(torch: Any, session: RankSession) -> None:
    """Register faulthandler for an unused signal when this process becomes a rank."""
    path, answered = "", 0
    if early_stacks.current is not None:
        early_stacks.current.update()

    def register(optimizer: Any) -> None:
        nonlocal path, answered
        number = free_signal()
        if number is None:
            session.disable_part("stacks", "all real-time signals are in use")
            return
        folder = os.path.join(session.run, "logs")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "rank-%d.%d" % (session.rank or 0, session.attempt))
        opened = open_high_fd(path + ".stacks")  # open while the process lives
        answered = os.fstat(opened).st_size
        # The signal wakes signal.pause() in a script; sleeps and reads continue.
        faulthandler.register(number, file=opened, all_threads=True, chain=False)
        # gloo aborts a rank whose collective does not match: only this shows where the rank was. The handler
        # restores the earlier one and raises the signal again, so the exit status stays the same.
        if not faulthandler.is_enabled():
            faulthandler.enable(opened, all_threads=True)
        session.stack_signal = number
        if early_stacks.current is not None:
            early_stacks.current.close()

    def tell_calls() -> None:
        nonlocal answered
        if not path:
            return
        # The file's size shows that faulthandler has written, because the wakeup descriptor is the script's
        # to set. While C code holds the interpreter lock, only the stacks are written.
        size = os.stat(path + ".stacks").st_size
        # sys.last_value is set when an uncaught error ends the script.
        if size != answered or (session.is_ending and hasattr(sys, "last_value")):
            answered = size
            _write_flight_record(path + ".calls")

    def forget() -> None:
        nonlocal path
        path, session.stack_signal = "", None

    session.on_rank_start.add("stacks", register)
    session.on_tick.add("stacks", tell_calls)
    session.on_fork.add("stacks", forget)


def _write_flight_record(path: str) -> None:
    distributed = sys.modules.get("torch._C._distributed_c10d")
    entries: list[Any] = []
    for name in _FLIGHT_RECORDER_DUMPS:
        dump = getattr(distributed, name, None)
        if dump is not None:
            record = dump(True, False)
            text = record if isinstance(record, str) else record.decode(errors="replace")
            entries += json.loads(text).get("entries") or []
    if not entries:
        return
    fresh = "%s.%d.new" % (path, os.getpid())
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({"entries": entries[-_MAX_ENTRIES:]}, file)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise
