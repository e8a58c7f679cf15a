"""torch's flight recorder: the last collectives that this process has come to, as torch keeps them anyway.

Importing this imports no torch. Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rankdeck.base.parsing import json_of
from rankdeck.torch_compat.places import Private

_NUM_KEPT = 64
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of gloo, and of NCCL in builds that have it."""
PLACES = (
    Private(f"torch._C._distributed_c10d:{_DUMPS[0]}", "a hang does not tell which collectives ranks are in"),
)


def recorded() -> str:
    """The newest of them as JSON. Nothing here waits for another rank, nor for the thread that does."""
    distributed = sys.modules.get("torch._C._distributed_c10d")
    entries: list[Any] = []
    for name in _DUMPS:
        dump = getattr(distributed, name, None)
        if dump is not None:
            entries += json_of(dump(True, False)).get("entries") or []
    return json.dumps({"entries": entries[-_NUM_KEPT:]})
