"""Names of runs that do not fit: what they have in common with others is left out, not what tells them apart.

MLP · Single · seed 5 · lr 0.003   ->   … seed 5 · lr 0.003
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetricsF

_BETWEEN = " · "
_CUT = "… "


class SharedNames:
    """Names that stand together."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names

    @cached_property
    def _counts(self) -> Counter[str]:
        """How many have a start; made once a name does not fit."""
        return Counter(start for name in set(self._names) for start in _starts(name))

    def fitted(self, name: str, metrics: QFontMetricsF, width: float) -> str:
        """The name without as few of its first parts, of those that another name has too, as lets it fit;
        where that is not enough, cut in its middle.
        """
        shown = name
        for start in _starts(name):
            if metrics.horizontalAdvance(shown) <= width or self._counts[start] < 2:
                break
            shown = _CUT + name[len(start) :]
        return metrics.elidedText(shown, Qt.TextElideMode.ElideMiddle, width)


def _starts(name: str) -> list[str]:
    """'MLP · ', 'MLP · Single · ' of 'MLP · Single · seed 5'."""
    parts = name.split(_BETWEEN)
    return [_BETWEEN.join(parts[:count]) + _BETWEEN for count in range(1, len(parts))]
