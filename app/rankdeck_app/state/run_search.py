"""What a person types to find runs: words, and fields as in `tag:paper -state:failed "two words"`.

A run matches when every part does; "-" before one means that it must not. A word is looked for in everything
that is said of a run. A field that there is none of is a word like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rankdeck.run.row import RunInfo

_PART = re.compile(r'(-?)(?:([A-Za-z]+):)?(?:"([^"]*)"?|(\S+))')

FIELDS: dict[str, Callable[[RunInfo], Iterable[str]]] = {
    "name": lambda info: (info.title, info.name),
    "tag": lambda info: info.labels.tags,
    "note": lambda info: (info.labels.note,),
    "strategy": lambda info: (
        info.strategy,
        *(one.strategy for one in (info.race.entries if info.race else ())),
    ),
    "state": lambda info: (info.outcome,),
    "is": lambda info: ("archived",) if info.labels.is_archived else (),
}


@dataclass(frozen=True)
class _Part:
    text: str
    field: str
    is_wanted: bool


class RunSearch:
    """What was typed, ready to be asked of runs. `text` is that as it was typed."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._parts = [part for found in _PART.finditer(text) if (part := _part_of(found)) is not None]

    def matches(self, info: RunInfo) -> bool:
        return all(_holds(part, info) is part.is_wanted for part in self._parts)

    @property
    def asks_for_archived(self) -> bool:
        """Whether runs that were put away are among those that are looked for."""
        return any(part.field == "is" and part.is_wanted for part in self._parts)


def _part_of(found: re.Match[str]) -> _Part | None:
    minus, field, quoted, plain = found.groups()
    text = quoted if quoted is not None else plain
    if not field and quoted is None and text.endswith(":"):  # "tag:" alone: those that have one
        field, text = text[:-1], ""
    if field and field.lower() not in FIELDS:
        text, field = f"{field}:{text}", ""
    return _Part(text.casefold(), (field or "").lower(), not minus) if text or field else None


def _holds(part: _Part, info: RunInfo) -> bool:
    fields = [FIELDS[part.field]] if part.field else FIELDS.values()
    texts = (text.casefold() for values in fields for text in values(info) if text)
    if part.field in ("state", "strategy", "is"):  # "dp" is not "ddp"
        return any(text.startswith(part.text) for text in texts)
    return any(part.text in text for text in texts)
