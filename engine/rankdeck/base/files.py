"""Files that are written whole or not at all, and small TOML files read back."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(
    path: Path,
    contents: str | bytes | Callable[[Path], object],
    *,
    sync: bool = False,
    make_folder: bool = True,
) -> None:
    """Write beside the file, then rename over it: who reads at any moment sees the old contents or the new.

    `contents` may be a function that fills the path that it is given. A link is followed; a device or a pipe
    (/dev/stdout) is written into, because a rename would put a file in its place. With `sync` the bytes are
    on the disk before the rename; the folder's own entry is the caller's to sync.

    Raises:
        OSError: the folder cannot be made or the file cannot be written. No half file stays.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        _fill(path, contents)
        return
    path = path.resolve()
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        _fill(fresh, contents)
        if sync:
            sync_to_disk(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _fill(path: Path, contents: str | bytes | Callable[[Path], object]) -> None:
    if isinstance(contents, str):
        path.write_text(contents, "utf-8")
    elif isinstance(contents, bytes):
        path.write_bytes(contents)
    else:
        contents(path)


def sync_to_disk(path: Path) -> None:
    """Return once a file's bytes, or a folder's entries, are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a byte order mark, which some editors write, is skipped.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8 text, or not TOML.
    """
    return tomllib.loads(path.read_text("utf-8-sig"))
