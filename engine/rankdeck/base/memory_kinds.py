"""Kinds of device memory, in the order in which every table lists them.

This module uses only the standard library, because the memory ledger also runs in a user's process, which may
lack this package's dependencies. Other modules import the kinds from rankdeck/events.py, which has the
vocabulary of all events.
"""

from __future__ import annotations

MEMORY_KINDS = (
    "parameters",
    "gradients",
    "optimizer",
    "buffers",
    "activations",
    "gathered",
    "communication",
    "inputs",
    "temporary",
)
