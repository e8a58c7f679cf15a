"""What a person types to find runs: words, and fields as in `tag:paper -state:failed "two words"`.

A run matches when every part does; "-" before one means that it must not. A word is looked for in everything
that is said of a run. A field that there is none of is a word like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rankdeck.run.row import RunInfo

_TERM = re.compile(r'(-?)(?:([A-Za-z]+):)?(?:"([^"]*)"?|(\S+))')

SEARCH_FIELDS: dict[str, Callable[[RunInfo], Iterable[str]]] = {
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
class _SearchTerm:
    text: str
    field: str
    is_included: bool


class RunSearch:
    """What was typed, ready to be asked of runs. `text` is that as it was typed."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._terms = [part for found in _TERM.finditer(text) if (part := _parse_term(found)) is not None]

    def matches(self, info: RunInfo) -> bool:
        return all(_matches_term(part, info) is part.is_included for part in self._terms)

    @property
    def includes_archived(self) -> bool:
        """Whether runs that were put away are among those that are looked for."""
        return any(part.field == "is" and part.is_included for part in self._terms)


def _parse_term(found: re.Match[str]) -> _SearchTerm | None:
    minus, field, quoted, plain = found.groups()
    text = quoted if quoted is not None else plain
    if not field and quoted is None and text.endswith(":"):  # "tag:" alone: those that have one
        field, text = text[:-1], ""
    if field and field.lower() not in SEARCH_FIELDS:
        text, field = f"{field}:{text}", ""
    return _SearchTerm(text.casefold(), (field or "").lower(), not minus) if text or field else None


def _matches_term(part: _SearchTerm, info: RunInfo) -> bool:
    fields = [SEARCH_FIELDS[part.field]] if part.field else SEARCH_FIELDS.values()
    texts = (text.casefold() for values in fields for text in values(info) if text)
    if part.field in ("state", "strategy", "is"):  # "dp" is not "ddp"
        return any(text.startswith(part.text) for text in texts)
    return any(part.text in text for text in texts)
