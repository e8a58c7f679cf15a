"""Names of runs that do not fit: what they have in common with others is left out, not what tells them apart.

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
    """Names that stand together."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names

    @cached_property
    def _prefix_counts(self) -> Counter[str]:
        """How many have a start; made once a name does not fit."""
        return Counter(start for name in set(self._names) for start in _list_prefixes(name))

    def shorten(self, name: str, metrics: QFontMetricsF, width: float) -> str:
        """The name without as few of its first parts, of those that another name has too, as lets it fit;
        where that is not enough, cut in its middle.
        """
        shown = name
        for start in _list_prefixes(name):
            if metrics.horizontalAdvance(shown) <= width or self._prefix_counts[start] < 2:
                break
            shown = _ELLIPSIS + name[len(start) :]
        return metrics.elidedText(shown, Qt.TextElideMode.ElideMiddle, width)


def _list_prefixes(name: str) -> list[str]:
    """'MLP · ', 'MLP · Single · ' of 'MLP · Single · seed 5'."""
    parts = name.split(_SEPARATOR)
    return [_SEPARATOR.join(parts[:count]) + _SEPARATOR for count in range(1, len(parts))]
