"""Trains under every parallel strategy, plans a run's memory and tells what every device does during it.

Users import `rankdeck.config`, `rankdeck.events`, `rankdeck.rundir` and `rankdeck.models`, and the names
below. Nothing is imported before it is asked for, so that none of them pays for another (torch above all).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rankdeck.observer.log import log as log

__version__ = "0.2.0"

_PUBLIC = {"log": "rankdeck.observer.log"}
"""Names that a script uses, and where they are made."""


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
    return value
