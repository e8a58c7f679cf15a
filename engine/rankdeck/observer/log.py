"""`rankdeck.log(loss=0.5)`: lets a script log its own values with one line.

The installed package exports this function. An observed script without the package gets it from imports.py.
The function passes the values to the observer of its process, which it finds by a fixed module name, or to
the rank of a configured run (`rank_handler`). If neither exists, it does nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_OBSERVER = "_rankdeck_observer"
rank_handler: Callable[[Any, Mapping[str, object], Any], object] | None = None
"""Receiver of the values that the user's model or loss logs; set only while a rank of a configured run
trains."""


def log(values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
    """Log values, as in `log(loss=0.5, accuracy=0.9)` or `log({"train/loss": 0.5})`.

    They become curves of the run under these names. Numbers and tensors with one element are recorded; other
    values are ignored. `step` is the script's own step count. Outside a run, or in a run that is not
    observed, this does nothing. It never raises.
    """
    taker = rank_handler
    if taker is None and _OBSERVER not in sys.modules:
        return
    try:
        if taker is not None:
            taker(values, named, step)
            return
        __import__(_OBSERVER + ".loggers")
        sys.modules[_OBSERVER + ".loggers"].log_values(values, named, step)
    except Exception:
        pass  # Logging must not break a script, and there is no run to report to.
