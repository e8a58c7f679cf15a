"""Whether a run's folder, which may come from anywhere, leads out of itself: what is written or removed in it
must reach nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn

from rankdeck.base.phrases import Phrase, phrase


def way_out(run: Path) -> tuple[Path, Phrase] | None:
    """A file or folder in it that a write would follow to another place, and what it is.

    The run's own folder may be a link. Weights may have other names: they are replaced, never written into.

    Raises:
        OSError: a folder cannot be read.
    """
    for folder, folders, names in os.walk(run, onerror=_refuse):
        for path in (Path(folder, name) for name in sorted(folders + names)):
            if (kind := _kind_of_way_out(path)) is not None:
                return path, kind
    return None


def _kind_of_way_out(path: Path) -> Phrase | None:
    told = path.lstat()
    if stat.S_ISLNK(told.st_mode):
        return phrase("a link to {target}", target=path.readlink())
    if stat.S_ISREG(told.st_mode):
        if told.st_nlink == 1 or path.suffix == ".safetensors":
            return None
        return phrase("one of several names of the same file")
    # A socket is left by a guard that was killed.
    return None if stat.S_ISDIR(told.st_mode) or stat.S_ISSOCK(told.st_mode) else phrase("a pipe or a device")


def _refuse(error: OSError) -> NoReturn:
    raise error
