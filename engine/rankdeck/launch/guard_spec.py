"""Types of a guard's parameters, which guard_launcher.py writes as JSON to the guard's standard input.

Standard library only, like the whole guard.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class HostsSpec(TypedDict):
    """Parameters of a multi-host run on one host.

    The coordinator has `listener`, `address` and `others`; each node has `head`.
    """

    name: str
    secret: str
    own: dict[str, object]
    """Facts about this host for the other hosts."""
    order: list[str]
    """The hosts in the configuration's order; empty if it names none."""
    least: int
    """Fewest hosts with which the run may continue."""
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
    """The run's directory under guard; `hidden` is its present name."""
    command: list[str]
    """The supervisor's command line, with a placeholder for its report descriptor."""
    leases: list[str]
    attempt: int
    max_restarts: int
    signals: NotRequired[bool]
    """Whether signals are forwarded, as for a script."""
    stop_s: NotRequired[float]
    """From TERM to KILL of the supervisor.

    Optional, like `signals`: a process that imported an older version starts a newer version's guard without
    them.
    """
    ready_fd: int
    tether_fd: int | None
    passed: list[int]
    """Descriptors for the supervisor only."""
    held: list[int]
    """Descriptors of a race's locks, which are released only once the guard has ended too."""
    hosts: HostsSpec | None
