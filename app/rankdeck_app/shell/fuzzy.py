"""How well typed letters match a title: in order, with gaps, best at the starts of words. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    """A higher score is a better match; `at` are the matched places, for highlighting."""

    score: int
    at: tuple[int, ...]


def fuzzy_match(query: str, text: str) -> Match | None:
    """Every word of `query` must occur in `text`, its letters in order; None when one does not."""
    score, places = 0, set[int]()
    for word in query.lower().split():
        best = _match_word(word, text)
        if best is None:
            return None
        score += best.score
        places.update(best.at)
    return Match(score * 100 - len(text), tuple(sorted(places)))


def _match_word(word: str, text: str) -> Match | None:
    low = text.lower()
    whole = [at for at in range(len(low)) if low.startswith(word, at)]
    if whole:
        at = next((at for at in whole if _starts_word(text, at)), whole[0])
        bonus = 12 if at == 0 else 8 if _starts_word(text, at) else 4
        return Match(len(word) * 4 + bonus, tuple(range(at, at + len(word))))
    places: list[int] = []
    score, at = 0, 0
    for letter in word:
        starts = (i for i in range(at, len(low)) if low[i] == letter and _starts_word(text, i))
        found = next(starts, low.find(letter, at))
        if found < 0 or not _rest_fits(word[len(places) + 1 :], low, found + 1):
            found = low.find(letter, at)
        if found < 0:
            return None
        score += 3 if _starts_word(text, found) else 2 if places and found == places[-1] + 1 else 0
        places.append(found)
        at = found + 1
    return Match(score, tuple(places))


def _rest_fits(rest: str, low: str, start: int) -> bool:
    for letter in rest:
        start = low.find(letter, start) + 1
        if start == 0:
            return False
    return True


def _starts_word(text: str, at: int) -> bool:
    before = text[at - 1] if at else " "
    return not before.isalnum() or (text[at].isupper() and before.islower())
