"""All stacks of this process on demand: faulthandler writes them when a signal comes that nobody uses.

faulthandler needs no lock of the interpreter, so that a rank that hangs in C answers too. The highest
real-time signal that has no handler is taken; a script that takes it later has it. Soon after the stacks, and
where an error ends the script, the collectives that it has come to are written beside them, as torch's flight
recorder keeps them.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys

from .writer import open_high_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_FLIGHT_RECORDER_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of gloo, and of NCCL in builds that have it."""
_MAX_ENTRIES = 64


def install(torch: Any, session: RankSession) -> None:
    """Ready once this process is a rank."""
    path, answered = "", 0

    def register(optimizer: Any) -> None:
        nonlocal path, answered
        free = [
            number
            for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
            if signal.getsignal(number) == signal.SIG_DFL
        ]
        if not free:
            session.disable_part("stacks", "no signal is free")
            return
        folder = os.path.join(session.run, "logs")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "rank-%d.%d" % (session.rank or 0, session.attempt))
        opened = open_high_fd(path + ".stacks")  # as long as the process lives
        answered = os.fstat(opened).st_size
        faulthandler.register(free[0], file=opened, all_threads=True, chain=False)
        session.stack_signal = free[0]

    def tell_calls() -> None:
        nonlocal answered
        if not path:
            return
        size = os.stat(path + ".stacks").st_size
        # The interpreter keeps the error that ends it.
        if size != answered or (session.is_ending and hasattr(sys, "last_value")):
            answered = size
            _write_flight_record(path + ".calls")

    def forget() -> None:
        nonlocal path
        path, session.stack_signal = "", None

    session.on_rank_start.append(session.wrap_part("stacks", register))
    session.on_tick.append(session.wrap_part("stacks", tell_calls))
    session.on_fork.append(forget)


def _write_flight_record(path: str) -> None:
    distributed = sys.modules.get("torch._C._distributed_c10d")
    entries: list[Any] = []
    for name in _FLIGHT_RECORDER_DUMPS:
        dump = getattr(distributed, name, None)
        if dump is not None:
            told = dump(True, False)
            text = told if isinstance(told, str) else told.decode(errors="replace")
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
