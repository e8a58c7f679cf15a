"""`rankdeck.log(loss=0.5)`: one line with which a script tells values of its own.

This function is what the installed package gives, and what an observed script finds where the package is not
installed (imports.py). It asks for the observer of its process, which has one name however it got there, or
for the rank of a configured run that trains here (`rank_handler`); where there is neither, nothing happens.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_OBSERVER = "_rankdeck_observer"
rank_handler: Callable[[Any, Mapping[str, object], Any], object] | None = None
"""Of a rank of a configured run while it trains: who takes what the person's model or loss logs."""


def log(values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
    """Tell values of this moment, as in `log(loss=0.5, accuracy=0.9)` or `log({"train/loss": 0.5})`.

    They become curves of the run under these names. Numbers and tensors of one element are kept, other
    values are not. `step` is the script's own count. Outside a run, or where a run is not observed, nothing
    happens; this never raises.
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
        pass  # It fails open: there is no run that could be told of it.
