"""Define by name which files of a run are copied between hosts; no other file is sent or accepted.

Files that grow are sent in pieces; files that are replaced are sent whole. Checkpoints and weights are
not copied. A host is not trusted: no accepted name can lead out of the run's directory.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from rankdeck.base import files
from rankdeck.run_dir import CLOCKS_FILE

MAX_FILES = 20_000
"""Maximum number of files of a run; one attempt with 4,096 ranks has about this many."""
MAX_LOG_BYTES = 64 << 20
"""Maximum number of bytes copied from a log; the bytes after these stay on the run's host."""
_CHECKSUM_BYTES = 4096
_NUMBER = "[0-9]{1,9}"
_HOST = "[A-Za-z0-9_-]{1,255}"
_WRITER = f"(?:rank-{_NUMBER}|(?:supervisor|guard|sampler)(?:-{_HOST})?)"
_APPEND_ONLY = re.compile(
    f"{re.escape(CLOCKS_FILE)}|events/{_WRITER}[.]{_NUMBER}[.]jsonl|"
    f"logs/{_WRITER}[.]{_NUMBER}[.](?:out|err|stacks|calls)",
    re.ASCII,
)
_REPLACED = re.compile(
    f"config(?:[.]{_NUMBER})?[.]toml|(?:environment|plan)(?:[.]{_NUMBER})?[.]json|labels[.]json", re.ASCII
)
END_FILE = "end.json"


def is_append_only(name: str) -> bool:
    """Check whether the file only grows, like events/rank-0.0.jsonl."""
    return _APPEND_ONLY.fullmatch(name) is not None


def is_replaced_file(name: str) -> bool:
    """Check whether the file is always replaced as a whole, like config.toml."""
    return name == END_FILE or _REPLACED.fullmatch(name) is not None


def is_run_name(name: str) -> bool:
    """Check whether the name is valid for a run's folder: one printable path component, not hidden."""
    return 0 < len(name) <= 200 and name.isprintable() and "/" not in name and not name.startswith(".")


def append_only_files(run: Path) -> list[str]:
    """Return the existing append-only files in order: clock offsets, events, logs.

    Among events and among logs, the supervisor's file comes first.
    """
    candidates = [CLOCKS_FILE] if (run / CLOCKS_FILE).exists() else []
    candidates += [
        f"{folder}/{path.name}"
        for folder in ("events", "logs")
        for path in sorted(files.entries(run / folder))
    ]
    names = filter(is_append_only, candidates)
    return sorted(names, key=_sort_key)[:MAX_FILES]


def _sort_key(name: str) -> tuple[bool, bool]:
    return name.startswith("logs/"), name != CLOCKS_FILE and "supervisor" not in name


def replaced_files(run: Path) -> list[str]:
    """Return the names of the existing files that are replaced as a whole, except end.json."""
    names = sorted(path.name for path in files.entries(run))
    return [name for name in names if name != END_FILE and is_replaced_file(name)][:MAX_FILES]


def tail_checksum(path: Path, size: int) -> int:
    """Return a checksum of the bytes just before offset `size`; equal checksums indicate the same file.

    Raises:
        OSError: the file cannot be read.
    """
    start = max(0, size - _CHECKSUM_BYTES)
    return zlib.crc32(files.read_at(path, start, size - start))
