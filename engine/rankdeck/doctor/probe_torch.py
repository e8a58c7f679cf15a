"""A probe that a project's interpreter runs: it reports the installed torch and what that torch can use.

The probe imports nothing from Rankdeck and prints one JSON object on its last line. python.py starts it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any


def _import_module(name: str, facts: dict[str, object]) -> Any:
    """Import a module and store its facts; on failure, store the error and return None."""
    began_s = time.monotonic()
    try:
        # A module may exit while it is imported, and SystemExit is no Exception.
        module = importlib.import_module(name)
    except BaseException as error:
        facts[name] = {"error": f"{type(error).__name__}: {error}"}
        return None
    seconds = round(time.monotonic() - began_s, 2)
    facts[name] = {"version": str(module.__version__), "file": str(module.__file__), "seconds": seconds}
    return module


def _device_facts(torch: Any) -> dict[str, object]:
    """Return what this torch was built for and which devices it finds, without creating anything on a GPU."""
    # torch reports a driver that is too old for it only as a warning, and then finds no GPUs.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    distributed = importlib.import_module("torch.distributed")
    there = distributed.is_available()
    return {
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "num_gpus": num_gpus,
        "warnings": [str(warning.message).splitlines()[0] for warning in caught],
        "gloo": bool(there and distributed.is_gloo_available()),
        "nccl": bool(there and distributed.is_nccl_available()),
    }


def _numpy_error(torch: Any) -> str | None:
    """Return why tensors cannot be converted to NumPy arrays; None if they can."""
    try:
        # A torch that was built for another major version of numpy can be imported beside it, and fails only
        # here.
        torch.zeros(1).numpy()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    facts: dict[str, object] = {"python": sys.version.split()[0]}
    numpy = _import_module("numpy", facts)
    torch = _import_module("torch", facts)
    if torch is not None:
        facts.update(_device_facts(torch))
        facts["numpy_fault"] = _numpy_error(torch) if numpy is not None else None
    # The imported modules may have left an unfinished line.
    print("\n" + json.dumps(facts), flush=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent  # added by Python for the script; not one of the project's folders
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    main()
