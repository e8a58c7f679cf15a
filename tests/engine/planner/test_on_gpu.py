"""The planner against a real GPU, where there is one: a few of the configurations of `make gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.checkout import CHECKOUT


@pytest.mark.gpu
@pytest.mark.parametrize("part", ["peaks", "ranks"])
def test_gpu_peaks_are_as_planned(part: str, tmp_path: Path) -> None:
    """In processes of their own: the allocator starts empty, and this process may have a context."""
    command = [sys.executable, "-m", "tests.gpu", "--part", part, "--rows", "3", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads((tmp_path / f"{part}.json").read_text())["misses"] == []
