"""Where the ranks of a layout meet: on loopback, or at the store of the run's head. Imports torch."""

from __future__ import annotations

import socket

from rankdeck.launch.layout import Layout
from rankdeck.torch_compat.elastic import Rendezvous, RendezvousOfHosts


def rendezvous_of(run: str, layout: Layout, store: int | None) -> Rendezvous:
    """`store` is the head's socket that listens."""
    if layout.is_alone:
        return Rendezvous(run)
    listener = None if store is None else socket.socket(fileno=store)
    return RendezvousOfHosts(run, layout.own.address, layout.index, len(layout.hosts), layout.store, listener)
