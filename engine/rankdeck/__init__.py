"""Trains under every parallel strategy, plans a run's memory and tells what every device does during it.

Users import `rankdeck.config`, `rankdeck.events`, `rankdeck.run_dir` and `rankdeck.models`, and the names
below. Nothing is imported before it is asked for, so that none of them pays for another (torch above all).
__init__.pyi tells types what these names are.
"""

__version__ = "0.2.0"

_PUBLIC = {
    "log": "rankdeck.observer.log",
    "train": "rankdeck.api.runs",
    "open_run": "rankdeck.api.runs",
    "race": "rankdeck.api.races",
    "Run": "rankdeck.api.run_object",
    "Raced": "rankdeck.api.races",
}
"""Names for people's own code, and where they are made. `rankdeck.run` is the room of that name, which can be
called."""


def __getattr__(name: str) -> object:
    import importlib

    if name == "run":
        return importlib.import_module("rankdeck.run")
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, "run"})
