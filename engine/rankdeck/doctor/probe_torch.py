"""Run in the interpreter of a project: which torch it has, and what that torch can use.

It imports nothing of Rankdeck's, and prints one JSON object on its last line. Read python.py for who starts
it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any


def _import_module(name: str, told: dict[str, object]) -> Any:
    """The module, None where it cannot be imported; `told` then says why."""
    began_s = time.monotonic()
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        told[name] = {"error": f"{type(error).__name__}: {error}"}
        return None
    seconds = round(time.monotonic() - began_s, 2)
    told[name] = {"version": str(module.__version__), "file": str(module.__file__), "seconds": seconds}
    return module


def _device_facts(torch: Any) -> dict[str, object]:
    """What this torch was built for and what it finds, without making anything on a GPU."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    distributed = importlib.import_module("torch.distributed")
    there = distributed.is_available()
    return {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "num_gpus": num_gpus,
        "warnings": [str(one.message).splitlines()[0] for one in said],
        "gloo": bool(there and distributed.is_gloo_available()),
        "nccl": bool(there and distributed.is_nccl_available()),
    }


def _numpy_error(torch: Any) -> str | None:
    """Why tensors do not become arrays; None where they do."""
    try:
        torch.zeros(1).numpy()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    told: dict[str, object] = {"python": sys.version.split()[0]}
    numpy = _import_module("numpy", told)
    torch = _import_module("torch", told)
    if torch is not None:
        told.update(_device_facts(torch))
        told["numpy_fault"] = _numpy_error(torch) if numpy is not None else None
    print("\n" + json.dumps(told), flush=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent  # none of the project's folders
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    main()
