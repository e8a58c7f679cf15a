"""Where a command writes its file: to the name that was typed, or for "-" to stdout, once it is whole."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase

STDOUT = Path("-")


def check_stdout(file: Path, *, as_json: bool) -> bool:
    """Whether the file is stdout.

    Raises:
        ConfigError: --json goes there, too.
    """
    if file == STDOUT and as_json:
        raise ConfigError(
            phrase("The file and --json cannot both be written to stdout."),
            code="usage",
            advice=phrase("Name a file, or leave --json out."),
        )
    return file == STDOUT


@contextlib.contextmanager
def written(file: Path) -> Iterator[Path]:
    """Where to write meanwhile: the file itself, or one whose bytes then go to stdout."""
    if file != STDOUT:
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        yield whole
        with open(whole, "rb") as contents:
            shutil.copyfileobj(contents, sys.stdout.buffer)
        sys.stdout.flush()


def name_of(file: Path) -> str:
    return "stdout" if file == STDOUT else str(file)
