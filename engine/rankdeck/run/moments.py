"""When the steps of a run ended: what is between a moment and a step, for whoever looks back.

Steps that were trained again ended twice: each attempt is a stretch of its own, and time tells them apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankdeck.run.fold import Fold
from rankdeck.run.series import Floats

_MOST_POINTS = 1 << 16
_HELD_S = 1.0


class Stretch(NamedTuple):
    """The steps of one attempt; `began` and `ended` are Unix times of the ends of `first` and `last`.

    `kept` is the last of them that no later attempt trained again.
    """

    attempt: int
    began: float
    ended: float
    first: int
    last: int
    kept: int


def stretches(fold: Fold) -> list[Stretch]:
    """In the order of the run, without attempts that trained nothing."""
    found = []
    for one in fold.attempts.values():
        began, ended = one.trained.first_x, one.trained.last_x
        if began is None or ended is None:
            continue
        last = int(one.trained.last_y or 0)
        first = int(one.trained.window(began, began, 64).low[0])
        found.append(Stretch(one.number, began, ended, first, last, min(last, one.last or last)))
    return found


def _ends(fold: Fold) -> Floats:
    """When everything that was trained ended (Unix times); where points are gone, the first of their bins."""
    windows = [
        one.trained.window(one.trained.first_x, one.trained.last_x or 0.0, _MOST_POINTS)
        for one in fold.attempts.values()
        if one.trained.first_x is not None
    ]
    return np.concatenate([np.empty(0), *(window.x for window in windows)])


def beside(fold: Fold, moment: float, by: int) -> float | None:
    """The moment of the step that is `by` steps behind the one of a moment, or before it; None past the last
    one and before the first."""
    ended = _ends(fold)
    place = int(np.searchsorted(ended, moment, side="right")) - 1 + by
    return _shown(ended, place) if 0 <= place < len(ended) else None


def _shown(ended: Floats, place: int) -> float:
    """Until the next step ends, and at most a second: what is told of a step comes a little after it."""
    at = float(ended[place])
    return at + _HELD_S if place + 1 == len(ended) else min(float(ended[place + 1]) - 1e-6, at + _HELD_S)


def step_at(fold: Fold, moment: float) -> int | None:
    """The last step that had ended by a moment, as far as it is known; None before the first."""
    found = None
    for one in fold.attempts.values():
        window = one.trained.window(moment, moment, 64)
        ended = window.low[window.x <= moment]
        found = int(ended[-1]) if len(ended) else found
    return found
