"""Work in a process of its own, forked from one that has torch imported and no CUDA context: an allocator
that starts empty, and a crash that costs one figure. Standard library only.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_fork = multiprocessing.get_context("fork")


class ChildError(Exception):
    """What became of the work, in one line; `name` is that of the exception's class, "" where it ended."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


def in_child(work: Callable[..., Any], *args: Any, timeout_s: float, log: Path, quiet: bool = True) -> Any:
    """What `work(*args)` returns. stderr goes to the end of `log`, and stdout too if `quiet`; whatever it
    leaves running is killed.

    Raises: ChildError.
    """
    ours, theirs = _fork.Pipe(duplex=False)
    sys.stdout.flush()
    child = _fork.Process(target=_work, args=(theirs, work, args, log, quiet))
    child.start()
    theirs.close()
    try:
        if not ours.poll(max(0.0, timeout_s)):
            raise ChildError(f"not done after {timeout_s:.0f} s")
        name, value = ours.recv()
    except EOFError:
        child.join()
        raise ChildError(f"ended without an answer (exit code {child.exitcode}); see {log.name}") from None
    finally:
        ours.close()
        _end(child)
    if name is not None:
        raise ChildError(value, name)
    return value


def _end(child: Any) -> None:
    """Its whole process group: a part has children of its own."""
    child.join(0.5)
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if child.is_alive():
            child.kill()
    child.join()
    child.close()


def _work(pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...], log: Path, quiet: bool) -> None:
    os.setpgid(0, 0)
    _die_with_parent()
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 2)
        if quiet:
            os.dup2(file.fileno(), 1)
    try:
        pipe.send((None, work(*args)))
    except BaseException as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        pipe.send((type(error).__name__, f"{type(error).__name__}: {first}"[:300]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with_parent() -> None:
    from rankdeck.base.heartbeat import die_with_parent

    die_with_parent()
