"""What runs as a run's guard, from its first fork to its end: guard.py, or head_guard.py and
member_guard.py where the run has several hosts. Standard library only, as all of the guard.
"""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

from rankdeck.launch.guard import Alive, Guard, Refused
from rankdeck.launch.head_guard import HeadGuard
from rankdeck.launch.member_guard import MemberGuard


def daemonise() -> None:
    """Leave the caller's session and terminal for good."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    os.close(null)


def main(spec: dict[str, Any]) -> NoReturn:
    """`spec`: hidden, final, command, leases, attempt, max_restarts, and the descriptors ready_fd and
    tether_fd. A script has also: signals (whether they are passed on), stop_s (what it has from TERM to KILL)
    and the descriptors passed, which are the supervisor's alone. An entry of a race has the race's locks as
    descriptors held, which are free once its guard, too, has ended.
    """
    daemonise()
    ready: int = spec["ready_fd"]
    for handle in (ready, spec["tether_fd"], *spec.get("held", ())):
        if handle is not None:
            os.set_inheritable(handle, False)
    hosts = spec.get("hosts")
    kind = Guard if not hosts else MemberGuard if "head" in hosts else HeadGuard
    guard = kind(spec)
    answer: dict[str, Any] = {"ready": os.getpid()}
    try:
        guard.prepare()
        guard.begin()
    except Alive:
        answer = {"alive": True}
    except Refused as refusal:
        answer = {"refused": str(refusal)}
    except OSError as error:
        answer = {"failed": f"{error.filename or spec['final']}: {error.strerror}"}
    os.write(ready, json.dumps(answer).encode())
    if "ready" not in answer:
        os._exit(1)
    os.close(ready)
    guard.watch()
    while guard.restart():
        guard.watch()
    if guard.whereabouts.is_deleted:
        guard.end_removed()
    else:
        guard.end()
    os.close(guard.held[0])
    guard.whereabouts.leave()
    os._exit(0)
