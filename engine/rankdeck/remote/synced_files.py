"""Which files of a run travel, by their names alone. Whatever is not in this list is neither sent nor taken.

Only what grows is sent in pieces; what is replaced at once comes whole. Checkpoints and weights stay where
they are. What a host sends may be anybody's: a name that is in the list is no path, and leads nowhere else.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from rankdeck.base import files
from rankdeck.run_dir import CLOCKS_FILE

MAX_FILES = 20_000
"""Of a run: 4,096 ranks have so many in one attempt."""
MAX_LOG_BYTES = 64 << 20
"""Of what a rank printed so much travels; the rest stays on its host."""
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
    """events/rank-0.0.jsonl and the like."""
    return _APPEND_ONLY.fullmatch(name) is not None


def is_replaced_file(name: str) -> bool:
    """config.toml and the like."""
    return name == END_FILE or _REPLACED.fullmatch(name) is not None


def is_run_name(name: str) -> bool:
    """Whether a run's folder may be called so: one part of a path, in signs that can be shown."""
    return 0 < len(name) <= 200 and name.isprintable() and "/" not in name and not name.startswith(".")


def append_only_files(run: Path) -> list[str]:
    """Those that are there: what puts times right, events before logs, the supervisor's first."""
    found = [CLOCKS_FILE] if (run / CLOCKS_FILE).exists() else []
    found += [
        f"{folder}/{path.name}"
        for folder in ("events", "logs")
        for path in sorted(files.entries(run / folder))
    ]
    names = filter(is_append_only, found)
    return sorted(names, key=_sort_key)[:MAX_FILES]


def _sort_key(name: str) -> tuple[bool, bool]:
    return name.startswith("logs/"), name != CLOCKS_FILE and "supervisor" not in name


def replaced_files(run: Path) -> list[str]:
    """Those that are there, without the last word."""
    names = sorted(path.name for path in files.entries(run))
    return [name for name in names if name != END_FILE and is_replaced_file(name)][:MAX_FILES]


def tail_checksum(path: Path, size: int) -> int:
    """Of the last bytes of the first `size`; whoever has the same has the same file. Raises: OSError."""
    begin = max(0, size - _CHECKSUM_BYTES)
    return zlib.crc32(files.read_at(path, begin, size - begin))
