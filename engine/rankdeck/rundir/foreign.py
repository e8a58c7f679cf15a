"""Whether a run's folder, which may come from anywhere, leads out of itself: what is written or removed in it
must reach nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn

from rankdeck.base.errors import ConfigError
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


def put_request(folder: Path, *names: str) -> None:
    """An empty file in the folder of a living run or race, for which whoever works there looks.

    Raises:
        ConfigError: it, or a folder on the way to it, leads elsewhere or cannot be made.
    """
    places = [folder.joinpath(*names[: count + 1]) for count in range(len(names))]
    try:
        for path in places:
            if os.path.lexists(path) and (kind := _kind_of_way_out(path)) is not None:
                raise _leads_elsewhere(path, kind)
        for path in places[:-1]:
            path.mkdir(exist_ok=True)
        places[-1].touch()
    except OSError as error:
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=places[-1], why=error.strerror),
            code="run-folder",
            path=str(places[-1]),
            advice=phrase("Free space on the disk, or mend the folder's permissions."),
        ) from None


def _leads_elsewhere(path: Path, kind: Phrase) -> ConfigError:
    return ConfigError(
        phrase(
            "{path} is {kind}: asking for something there could change what lies elsewhere.",
            path=path,
            kind=kind,
        ),
        code="leads-elsewhere",
        path=str(path),
        advice=phrase("Put a file or folder of its own in its place."),
    )


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
