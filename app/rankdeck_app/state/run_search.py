"""Search queries for runs: words, and fields as in `tag:paper -state:failed "two words"`.

A run matches if it matches all terms; "-" before a term negates it. Words are searched for in all fields of a
run. A term with an unknown field is treated as a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rankdeck.run.row import RunInfo

# The closing quote is optional, because the query is evaluated while it is typed.
_TERM = re.compile(r'(-?)(?:([A-Za-z]+):)?(?:"([^"]*)"?|(\S+))')

SEARCH_FIELDS: dict[str, Callable[[RunInfo], Iterable[str]]] = {
    "name": lambda info: (info.title, info.name),
    "tag": lambda info: info.labels.tags,
    "note": lambda info: (info.labels.note,),
    "strategy": lambda info: (
        info.strategy,
        *(entry.strategy for entry in (info.race.entries if info.race else ())),
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
    """A parsed query; `text` is the query as typed."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._terms = [term for match in _TERM.finditer(text) if (term := _parse_term(match)) is not None]

    def matches(self, info: RunInfo) -> bool:
        return all(_matches_term(term, info) is term.is_included for term in self._terms)

    @property
    def includes_archived(self) -> bool:
        """Whether the query asks for archived runs."""
        return any(term.field == "is" and term.is_included for term in self._terms)


def _parse_term(match: re.Match[str]) -> _SearchTerm | None:
    minus, field, quoted, plain = match.groups()
    text = quoted if quoted is not None else plain
    if not field and quoted is None and text.endswith(":"):  # "tag:" alone: any tag
        field, text = text[:-1], ""
    # An unknown field is part of the text, such as the start of a URL.
    if field and field.lower() not in SEARCH_FIELDS:
        text, field = f"{field}:{text}", ""
    return _SearchTerm(text.casefold(), (field or "").lower(), not minus) if text or field else None


def _matches_term(term: _SearchTerm, info: RunInfo) -> bool:
    fields = [SEARCH_FIELDS[term.field]] if term.field else SEARCH_FIELDS.values()
    texts = (text.casefold() for values in fields for text in values(info) if text)
    if term.field in ("state", "strategy", "is"):  # "dp" is not "ddp"
        return any(text.startswith(term.text) for text in texts)
    return any(term.text in text for text in texts)
