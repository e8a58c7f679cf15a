"""The collectives that this rank has come to, and the microbatch that it has begun last, written down beside
its stacks when somebody asks for those, and when it has lost the other ranks.

The signal that makes faulthandler write stacks also wakes a thread here: the main one may be blocked inside a
collective. Read diagnose/calls.py next.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.heartbeat import STACKS
from rankdeck.base.parsing import json_of
from rankdeck.profiling.spans import newest_microbatch
from rankdeck.torch_compat.flight import recorded


def begin() -> None:
    """From now on SIGUSR1 has them written anew, in a rank whose start has registered the signal."""
    if not os.environ.get(STACKS):
        return
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_serve, args=(read_end,), name="calls", daemon=True).start()


def write_down() -> None:
    """Now. Nothing is said where it cannot be done."""
    stacks = os.environ.get(STACKS)
    if not stacks:
        return
    with contextlib.suppress(OSError, ValueError):
        told = {**json_of(recorded()), "microbatch": newest_microbatch()}
        files.write_own(Path(stacks).with_suffix(".calls"), json.dumps(told))


def _serve(read_end: int) -> None:
    while numbers := os.read(read_end, 64):
        if signal.SIGUSR1 in numbers:
            write_down()
