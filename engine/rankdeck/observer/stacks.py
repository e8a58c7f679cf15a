"""All stacks of this process on demand: faulthandler writes them when a signal comes that nobody uses.

faulthandler needs no lock of the interpreter, so that a rank that hangs in C answers too. The highest
real-time signal that has no handler is taken; a script that takes it later has it.
"""

from __future__ import annotations

import faulthandler
import os
import signal

from .writer import open_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession


def install(torch: Any, session: RankSession) -> None:
    """Ready once this process is a rank."""

    def register(optimizer: Any) -> None:
        free = [
            number
            for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
            if signal.getsignal(number) == signal.SIG_DFL
        ]
        if not free:
            session.switch_off("stacks", "no signal is free")
            return
        folder = os.path.join(session.run, "logs")
        os.makedirs(folder, exist_ok=True)
        name = "rank-%d.%d.stacks" % (session.rank or 0, session.attempt)
        opened = open_aside(os.path.join(folder, name))  # as long as the process lives
        faulthandler.register(free[0], file=opened, all_threads=True, chain=False)
        session.stack_signal = free[0]

    def forget() -> None:
        session.stack_signal = None

    session.on_begin.append(session.guarded("stacks", register))
    session.on_fork.append(forget)
