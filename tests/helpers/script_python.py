"""The Python that scripts of the tests run in: RANKDECK_SCRIPT_PYTHON, or else the one that tests.

It needs torch and none of our packages; `make test-scripts` runs the tests that this is about.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from rankdeck.config import environments

PYTHON = os.environ.get("RANKDECK_SCRIPT_PYTHON") or sys.executable


def torch_of_scripts() -> tuple[int, ...]:
    """Its torch, as (2, 13)."""
    version = environments.describe_interpreter(Path(PYTHON), os.environ).torch_version
    assert version is not None, f"{PYTHON} has no torch"
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def unavailable_parts() -> dict[str, str]:
    """The parts of the observer that cannot work with that torch, and what they say of it."""
    if torch_of_scripts() >= (2, 5):
        return {}
    return {"precision": "needs torch 2.5 or newer"}


def can_import(module: str) -> bool:
    """Whether a script can import that module, a top-level one."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], check=False).returncode == 0
