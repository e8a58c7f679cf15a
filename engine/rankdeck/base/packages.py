"""Which packages are installed where Rankdeck runs, and which ones a lock file beside a configuration names.

Versions come from what installers write down: nothing is imported. They are without the build behind a +.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.parsing import parse_toml
from rankdeck.base.phrases import phrase

LOCK_FILES = ("uv.lock", "pylock.toml", "poetry.lock", "pdm.lock")
MAX_LOCK_BYTES = 4 << 20
_SEPARATORS, _NAME = re.compile(r"[-_.]+"), re.compile(r"[\w.-]*")


def package_version(name: str) -> str | None:
    """None where no installer knows it."""
    try:
        return _strip_build(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str]:
    """Of all that is installed, by normalised names; of two of one name the one that is imported."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        try:
            name, its_version = one.metadata["Name"], one.version
        except (OSError, ValueError, KeyError):
            continue
        if isinstance(name, str) and isinstance(its_version, str):
            found.setdefault(canonicalize_name(name), _strip_build(its_version))
    return found


def nccl_version() -> str | None:
    """Of the wheel that torch asks for; None where it asks for none: it brings its own, or needs none."""
    try:
        asked = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    names = [canonicalize_name(match[0]) for one in asked if (match := _NAME.match(one))]
    return next(
        filter(None, (package_version(name) for name in names if name.startswith("nvidia-nccl"))), None
    )


def find_lock_file(folder: Path) -> Path | None:
    """What pins the packages of the code there."""
    return next((folder / name for name in LOCK_FILES if files.is_regular(folder / name)), None)


def pinned_packages(lock: Path) -> set[str]:
    """Normalised names of what it pins.

    Raises:
        OSError, ValueError: it cannot be read, or names nothing.
    """
    tables = parse_toml(files.read_bytes(lock, MAX_LOCK_BYTES).decode("utf-8-sig"))
    listed = [tables.get(key) for key in ("package", "packages")]
    entries = [one for several in listed if isinstance(several, list) for one in several]
    names = {
        canonicalize_name(one["name"])
        for one in entries
        if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("version"), str)
    }
    if not names:
        raise ValueError(phrase("it names no packages"))
    return names


def canonicalize_name(name: str) -> str:
    """One spelling for all that name the same package. Source: PEP 503."""
    return _SEPARATORS.sub("-", name).lower()


def _strip_build(text: str) -> str:
    return text.partition("+")[0]
