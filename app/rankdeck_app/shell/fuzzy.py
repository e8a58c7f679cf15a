"""Fuzzy matching of typed letters against titles, as pure functions.

The letters of every word of the query must occur in the text in the same order. Each letter must either
follow the previous one directly or start a word: "spr" finds "Split Right", but not every title that contains
these letters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FuzzyMatch:
    """A match with its score (higher is better) and the matched `positions`, for highlighting."""

    score: int
    positions: tuple[int, ...]


def fuzzy_match(query: str, text: str) -> FuzzyMatch | None:
    """Return the match of all words of `query`; None if one of the words does not match."""
    score, positions = 0, set[int]()
    for word in query.lower().split():
        match = _match_word(word, text)
        if match is None:
            return None
        score += match.score
        positions.update(match.positions)
    return FuzzyMatch(score * 100 - len(text), tuple(sorted(positions)))


def _match_word(word: str, text: str) -> FuzzyMatch | None:
    """Match the word as a whole, preferably at the start of a word in the text; failing that, match its
    letters one by one."""
    low = text.lower()
    occurrences = [at for at in range(len(low)) if low.startswith(word, at)]
    if occurrences:
        at = next((at for at in occurrences if _is_word_start(text, at)), occurrences[0])
        bonus = 12 if at == 0 else 8 if _is_word_start(text, at) else 4
        return FuzzyMatch(len(word) * 4 + bonus, tuple(range(at, at + len(word))))
    positions = _match_chain(word, text, low, 0, -1)
    return FuzzyMatch(len(word) * 2, positions) if positions else None


def _match_chain(word: str, text: str, low: str, start: int, before: int) -> tuple[int, ...] | None:
    """Return the positions in `text` of the letters of `word`, searching from `start`; `low` is the text in
    lower case, `before` the position of the previously matched letter."""
    if not word:
        return ()
    for at in range(start, len(low)):
        # `> 0`: the first letter, for which `before` is -1, must start a word.
        if low[at] == word[0] and (at == before + 1 > 0 or _is_word_start(text, at)):
            rest = _match_chain(word[1:], text, low, at + 1, at)
            if rest is not None:
                return (at, *rest)
    return None


def _is_word_start(text: str, at: int) -> bool:
    before = text[at - 1] if at else " "
    return not before.isalnum() or (text[at].isupper() and before.islower())
