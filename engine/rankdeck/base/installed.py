"""Which packages are installed where Rankdeck runs, and which ones a lock file beside a configuration names.

Versions come from what installers write down: nothing is imported. They are without the build behind a +.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.parsing import toml_of
from rankdeck.base.phrases import phrase

LOCK_FILES = ("uv.lock", "pylock.toml", "poetry.lock", "pdm.lock")
LARGEST_LOCK_BYTES = 4 << 20
_RUNS_OF_SIGNS, _NAME = re.compile(r"[-_.]+"), re.compile(r"[\w.-]*")


def version(name: str) -> str | None:
    """None where no installer knows it."""
    try:
        return _without_build(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Of all that is installed, by normalised names; of two of one name the one that is imported."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        try:
            name, its_version = one.metadata["Name"], one.version
        except (OSError, ValueError, KeyError):
            continue
        if isinstance(name, str) and isinstance(its_version, str):
            found.setdefault(normalised(name), _without_build(its_version))
    return found


def nccl() -> str | None:
    """Of the wheel that torch asks for; None where it asks for none: it brings its own, or needs none."""
    try:
        asked = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    names = [normalised(match[0]) for one in asked if (match := _NAME.match(one))]
    return next(filter(None, (version(name) for name in names if name.startswith("nvidia-nccl"))), None)


def lock_file(folder: Path) -> Path | None:
    """What pins the packages of the code there."""
    return next((folder / name for name in LOCK_FILES if files.is_regular(folder / name)), None)


def locked(lock: Path) -> set[str]:
    """Normalised names of what it pins.

    Raises:
        OSError, ValueError: it cannot be read, or names nothing.
    """
    tables = toml_of(files.read_bytes(lock, LARGEST_LOCK_BYTES).decode("utf-8-sig"))
    listed = [tables.get(key) for key in ("package", "packages")]
    entries = [one for several in listed if isinstance(several, list) for one in several]
    names = {
        normalised(one["name"])
        for one in entries
        if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("version"), str)
    }
    if not names:
        raise ValueError(phrase("it names no packages"))
    return names


def normalised(name: str) -> str:
    """One spelling for all that name the same package. Source: PEP 503."""
    return _RUNS_OF_SIGNS.sub("-", name).lower()


def _without_build(text: str) -> str:
    return text.partition("+")[0]
