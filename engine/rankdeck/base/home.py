"""Where settings, state and caches live: the platform's folders, or all of them under RANKDECK_HOME.

Nothing is created here; whoever writes first makes the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def expand_home(path: str | Path) -> Path:
    """`path` with ~ and ~somebody as home folders; as it is where nobody has that home, as in shells."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):  # nobody's, or with a null byte in it
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
    """The person's settings: settings.toml, keymap, themes, trusted folders."""
    return _folder("settings")


def state_dir() -> Path:
    """What the program remembers by itself: index of runs, code that was agreed to, device leases, drafts."""
    return _folder("state")


def copies_dir() -> Path:
    """Copies of runs of other hosts, in a folder for each host."""
    return state_dir() / "hosts"


def cache_dir() -> Path:
    """What can be made again: vocabularies, encoded text."""
    return _folder("cache")
