"""Shortening of run names: leading parts that a name shares with other names are left out.

MLP · Single · seed 5 · lr 0.003   ->   … seed 5 · lr 0.003
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetricsF

_SEPARATOR = " · "
_ELLIPSIS = "… "


class NameShortener:
    """Shortener for names that are shown together."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names

    @cached_property
    def _prefix_counts(self) -> Counter[str]:
        """Number of names with each prefix, computed the first time that a name does not fit."""
        # Equal names count once.
        return Counter(start for name in set(self._names) for start in _list_prefixes(name))

    def shorten(self, name: str, metrics: QFontMetricsF, width: float) -> str:
        """Shorten a name to `width` pixels by leaving out leading parts that it shares with other names.

        If the name still does not fit, elide it in the middle.
        """
        short_name = name
        for start in _list_prefixes(name):
            if metrics.horizontalAdvance(short_name) <= width or self._prefix_counts[start] < 2:
                break
            short_name = _ELLIPSIS + name[len(start) :]
        return metrics.elidedText(short_name, Qt.TextElideMode.ElideMiddle, width)


def _list_prefixes(name: str) -> list[str]:
    """Return every prefix of a name that ends with a separator: for 'MLP · Single · seed 5', return
    ['MLP · ', 'MLP · Single · ']."""
    parts = name.split(_SEPARATOR)
    return [_SEPARATOR.join(parts[:count]) + _SEPARATOR for count in range(1, len(parts))]
