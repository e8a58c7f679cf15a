"""Small libraries in C that stand for what a test machine has not, built where a test says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def build_library(source: Path, library: Path, *flags: str) -> Path:
    """`library`, built. Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        import pytest  # which a machine with a GPU may not have

        pytest.skip(f"no C compiler to build {source.name} with")
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, "-o", str(library), str(source), "-lpthread", "-ldl"], check=True)
    return library
