"""What bytes on a device are for, in the order that every table of them has.

Standard library only: the memory ledger also runs in a person's own process, where none of this package's
dependencies is. Others take them from rankdeck/events.py, where every event's words are.
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
