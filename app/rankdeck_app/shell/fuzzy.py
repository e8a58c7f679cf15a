"""How well typed letters match a title. Pure functions.

Every word of the query must occur in the text, its letters in order; a letter either follows the one before
or begins a word, so that "spr" finds "Split Right" but not every title that happens to hold these letters
somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FuzzyMatch:
    """A higher score is a better match; `positions` are the matched places, for highlighting."""

    score: int
    positions: tuple[int, ...]


def fuzzy_match(query: str, text: str) -> FuzzyMatch | None:
    """The match of all words of `query`, or None when one of them does not occur."""
    score, places = 0, set[int]()
    for word in query.lower().split():
        match = _match_word(word, text)
        if match is None:
            return None
        score += match.score
        places.update(match.positions)
    return FuzzyMatch(score * 100 - len(text), tuple(sorted(places)))


def _match_word(word: str, text: str) -> FuzzyMatch | None:
    """A whole occurrence wins, best at the start of a word; else the first chain of word starts and runs."""
    low = text.lower()
    whole = [at for at in range(len(low)) if low.startswith(word, at)]
    if whole:
        at = next((at for at in whole if _is_word_start(text, at)), whole[0])
        bonus = 12 if at == 0 else 8 if _is_word_start(text, at) else 4
        return FuzzyMatch(len(word) * 4 + bonus, tuple(range(at, at + len(word))))
    places = _match_chain(word, text, low, 0, -1)
    return FuzzyMatch(len(word) * 2, places) if places else None


def _match_chain(word: str, text: str, low: str, start: int, before: int) -> tuple[int, ...] | None:
    """Places of the letters of `word` from `start` on, `before` being the place of the letter ahead of it."""
    if not word:
        return ()
    for at in range(start, len(low)):
        if low[at] == word[0] and (at == before + 1 > 0 or _is_word_start(text, at)):
            rest = _match_chain(word[1:], text, low, at + 1, at)
            if rest is not None:
                return (at, *rest)
    return None


def _is_word_start(text: str, at: int) -> bool:
    before = text[at - 1] if at else " "
    return not before.isalnum() or (text[at].isupper() and before.islower())
