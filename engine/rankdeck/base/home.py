"""Find the folders for settings, state and caches: the platform's standard folders, or subfolders of
RANKDECK_HOME.

No folder is created here; the first function that writes to a folder creates it.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def expand_home(path: str | Path) -> Path:
    """Expand ~ and ~user; return `path` unchanged if there is no such user, as shells do."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):  # unknown user, or a null byte
        return Path(path)


def _folder(kind: str) -> Path:
    home = os.environ.get("RANKDECK_HOME")
    if home:
        return expand_home(home).absolute() / kind
    finder = {
        "settings": platformdirs.user_config_path,
        "state": platformdirs.user_state_path,
        "cache": platformdirs.user_cache_path,
    }[kind]
    return finder("rankdeck", appauthor=False)


def config_dir() -> Path:
    """Return the folder of the user's settings: settings.toml, keymap, themes, trusted folders."""
    return _folder("settings")


def state_dir() -> Path:
    """Return the folder of the program's state: run index, consent to user code, device leases, drafts."""
    return _folder("state")


def copies_dir() -> Path:
    """Return the folder for runs copied from other hosts, with a subfolder for each host."""
    return state_dir() / "hosts"


def cache_dir() -> Path:
    """Return the folder of files that can be recreated: vocabularies, encoded text."""
    return _folder("cache")
