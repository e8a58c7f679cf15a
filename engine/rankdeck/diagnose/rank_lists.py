"""Format lists of ranks for a message: the first four, and the number of the others."""

from __future__ import annotations

from collections.abc import Sequence

from rankdeck.base.phrases import Phrase, phrase, tr_noop

_RANK_LISTS = (
    tr_noop("{a}"),
    tr_noop("{a}, {b}"),
    tr_noop("{a}, {b}, {c}"),
    tr_noop("{a}, {b}, {c}, {d}"),
    tr_noop("{a}, {b}, {c}, {d} and {more} more"),
)
"""Templates for lists of ranks, by the number of ranks."""
_MAX_LISTED_RANKS = 4


def join_ranks(texts: Sequence[Phrase]) -> Phrase:
    """Return the texts as a list that names at most four ranks."""
    arguments = dict(zip("abcd", texts, strict=False))
    more: dict[str, int] = {"more": len(texts) - _MAX_LISTED_RANKS} if len(texts) > _MAX_LISTED_RANKS else {}
    return phrase(_RANK_LISTS[len(arguments) + len(more) - 1], **arguments, **more)
