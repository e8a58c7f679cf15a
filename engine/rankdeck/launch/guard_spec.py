"""Types of a guard's parameters, which guard_launcher.py writes as JSON to the guard's standard input.

Standard library only, like the whole guard.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class HostsSpec(TypedDict):
    """One host's parameters in a multi-host run.

    `listener`, `address` and `others` are set only on the coordinator, `head` only on nodes.
    """

    name: str
    secret: str
    own: dict[str, object]
    """Information about this host that is sent to the other hosts."""
    order: list[str]
    """The hosts in the configuration's order; empty if the configuration names no hosts."""
    least: int
    """Minimum number of hosts with which the run continues."""
    max_restarts: int
    listener: NotRequired[int]
    """Descriptor of the listening socket."""
    address: NotRequired[str]
    others: NotRequired[int]
    """Number of nodes."""
    head: NotRequired[tuple[str, int]]
    """The coordinator's address and port."""


class GuardSpec(TypedDict):
    hidden: str
    final: str
    """The run's directory once the guard has renamed it; `hidden` is its name before that."""
    command: list[str]
    """The supervisor's command line, with a placeholder for its report descriptor."""
    leases: list[str]
    attempt: int
    max_restarts: int
    signals: NotRequired[bool]
    """Whether the guard forwards signals to the ranks, which it does only for a script."""
    stop_s: NotRequired[float]
    """How long the supervisor has from TERM to KILL.

    Optional, like `signals`: a process that has imported an older version does not pass them when it starts a
    newer version's guard.
    """
    ready_fd: int
    tether_fd: int | None
    passed: list[int]
    """Descriptors that only the supervisor gets."""
    held: list[int]
    """Descriptors of a race's locks. The guard keeps them open, and so holds the locks, until it ends."""
    hosts: HostsSpec | None
