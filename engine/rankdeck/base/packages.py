"""Lists the installed packages that Rankdeck uses, and the packages that a lock file pins.

Versions come from package metadata; nothing is imported. The local version label after a + is removed.
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
    """Return a package's version; None if it is not installed."""
    try:
        return _strip_build(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str]:
    """Return the versions of all installed packages by normalized name; for duplicates, the version that
    Python would import."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        try:
            name, its_version = distribution.metadata["Name"], distribution.version
        except (OSError, ValueError, KeyError):
            continue
        if isinstance(name, str) and isinstance(its_version, str):
            versions.setdefault(canonicalize_name(name), _strip_build(its_version))
    return versions


def nccl_version() -> str | None:
    """Return the version of the NCCL wheel that torch requires; None if torch bundles NCCL or does not use
    it."""
    try:
        requirements = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    names = [
        canonicalize_name(match[0]) for requirement in requirements if (match := _NAME.match(requirement))
    ]
    return next(
        filter(None, (package_version(name) for name in names if name.startswith("nvidia-nccl"))), None
    )


def find_lock_file(folder: Path) -> Path | None:
    """Return the lock file in a folder, or None."""
    return next((folder / name for name in LOCK_FILES if files.is_regular(folder / name)), None)


def pinned_packages(lock: Path) -> set[str]:
    """Return the normalized names of the packages that a lock file pins.

    Raises:
        OSError, ValueError: the file cannot be read, or pins nothing.
    """
    tables = parse_toml(files.read_bytes(lock, MAX_LOCK_BYTES).decode("utf-8-sig"))
    listed = [tables.get(key) for key in ("package", "packages")]
    entries = [entry for several in listed if isinstance(several, list) for entry in several]
    names = {
        canonicalize_name(entry["name"])
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("version"), str)
    }
    if not names:
        raise ValueError(phrase("it lists no packages"))
    return names


def canonicalize_name(name: str) -> str:
    """Return the normalized spelling of a package name. Source: PEP 503."""
    return _SEPARATORS.sub("-", name).lower()


def _strip_build(text: str) -> str:
    return text.partition("+")[0]
