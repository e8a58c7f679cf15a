"""Train with any parallel strategy, plan a run's memory, and observe every device during the run.

Users import `rankdeck.config`, `rankdeck.events`, `rankdeck.run_dir`, `rankdeck.models`, `rankdeck.run`, and
the names in `_PUBLIC`. Modules are imported on first use, so importing Rankdeck alone does not load torch.
__init__.pyi declares the types of the public names.
"""

# hatchling reads the version from here. An editable install keeps the metadata of its first day, so
# importlib.metadata would report an old version after a pull.
__version__ = "0.2.0"

_PUBLIC = {
    "log": "rankdeck.observer.log",
    "train": "rankdeck.api.runs",
    "open_run": "rankdeck.api.runs",
    "race": "rankdeck.api.races",
    "Run": "rankdeck.api.run_object",
    "Raced": "rankdeck.api.races",
}
"""Public names and the modules that define them. `rankdeck.run` is not listed, because it is a package that
can itself be called like a function."""


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
