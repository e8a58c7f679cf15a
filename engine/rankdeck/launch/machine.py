"""Check what every run needs from the machine, before anything starts."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

from rankdeck.base import cgroups
from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase

LOOPBACK = "127.0.0.1"
_NUM_OTHER_PROCESSES = 4
"""Number of processes besides the ranks: guard, supervisor, sampler, and the process that starts them."""
_CONNECT_TIMEOUT_S = 2.0


def check_machine(num_ranks: int, *, needs_loopback: bool) -> None:
    """Check /proc, the current folder, the process limits and, if `needs_loopback` is True, loopback.

    `needs_loopback` must be True if the ranks connect to each other over loopback.

    Raises:
        MachineError: a check fails.
    """
    check_proc()
    try:
        Path.cwd()
    except FileNotFoundError:
        raise MachineError(
            phrase("The current folder no longer exists."),
            code="no-folder",
            advice=phrase("Change to a folder that exists: cd"),
        ) from None
    _check_process_limit(num_ranks + _NUM_OTHER_PROCESSES)
    if needs_loopback:
        _check_loopback()


def check_proc() -> None:
    """Check that /proc is mounted.

    Raises:
        MachineError: /proc is not mounted.
    """
    if not Path("/proc/self/stat").exists():
        raise MachineError(
            phrase("/proc is not mounted, but Rankdeck needs it to inspect processes."),
            code="no-proc",
            advice=phrase("Mount /proc: mount -t proc proc /proc"),
        )


def _check_process_limit(num_processes: int) -> None:
    group = cgroups.tightest_limit("pids")
    if group is not None and (left := group.remaining) < num_processes:
        raise MachineError(
            phrase(
                "The run needs {n} processes, but only {left} more can be started here.",
                left=left,
                n=num_processes,
            ),
            code="too-many-processes",
            advice=phrase("Raise the limit of the container or the cgroup (pids.max), or use fewer ranks."),
        )
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    # The kernel does not apply this limit to root.
    if os.getuid() and limit != resource.RLIM_INFINITY and limit < num_processes:
        raise MachineError(
            phrase(
                "A user can have at most {most} processes here, but the run needs {n}.",
                most=limit,
                n=num_processes,
            ),
            code="too-many-processes",
            advice=phrase("Raise the limit (ulimit -u), or use fewer ranks."),
        )


def _check_loopback() -> None:
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        why = error.strerror or error
        message = phrase(
            "A loopback connection to {host} failed: {why}.",
            host=LOOPBACK,
            why=why,
        )
        if _has_only_ipv6():
            message = phrase(
                "The loopback interface has only an IPv6 address (::1), but ranks connect over {host}.",
                host=LOOPBACK,
            )
        raise MachineError(
            message,
            code="no-loopback",
            advice=phrase(
                "Bring up the loopback interface: ip link set lo up; ip addr add 127.0.0.1/8 dev lo"
            ),
        ) from None


def _has_only_ipv6() -> bool:
    """Check whether ::1 accepts a connection; called when a connection over IPv4 has failed."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            socket.create_connection(server.getsockname()[:2], _CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
