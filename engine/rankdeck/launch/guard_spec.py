"""What a run's guard is started with: guard_launcher.py writes it as JSON to the guard's standard input.

Standard library only, as all of the guard.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class HostsSpec(TypedDict):
    """Of a run of several hosts, on one of them. The head has `listener`, `address` and `others`; each other
    host has `head`."""

    name: str
    secret: str
    own: dict[str, object]
    """What the others are told of this host."""
    order: list[str]
    """The hosts in the configuration's order; empty where it names none."""
    least: int
    """With how many hosts the run may go on."""
    max_restarts: int
    listener: NotRequired[int]
    """The descriptor of a socket."""
    address: NotRequired[str]
    others: NotRequired[int]
    """How many there are."""
    head: NotRequired[tuple[str, int]]
    """Address and port."""


class GuardSpec(TypedDict):
    hidden: str
    final: str
    """The run's directory as it is called now, and under guard."""
    command: list[str]
    """The supervisor's, with places for its descriptors."""
    leases: list[str]
    attempt: int
    max_restarts: int
    signals: NotRequired[bool]
    """Whether signals are passed on, as to a script."""
    stop_s: NotRequired[float]
    """From TERM to KILL of the supervisor. A process that imported an older version gives neither to a guard
    of a newer one."""
    ready_fd: int
    tether_fd: int | None
    passed: list[int]
    """Descriptors that are the supervisor's alone."""
    held: list[int]
    """Descriptors of a race's locks, which are free once the guard, too, has ended."""
    hosts: HostsSpec | None
