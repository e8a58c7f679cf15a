"""When the steps of one attempt ended, how many samples were seen by then, and their learning rates.

These change slowly: of many steps that arrive together a few hundred stand for all, so that it costs nothing
beside the curves of curves.py, which hold them. What draws a loss over time or samples looks steps up here.
"""

from __future__ import annotations

import numpy as np

from rankdeck.run.series import Floats, Series

_MOST_AT_ONCE = 256
_HELD = (32_768, 4_096)


class StepProgress:
    """`moments` are over Unix time: (step, samples seen). `lrs` is over steps. An attempt that went on behind
    step `after` counts the samples of the steps before as those of its own first one.
    """

    def __init__(self, after: int) -> None:
        self.moments = Series(*_HELD, num_curves=2, keyed=True)
        self.lrs = Series(*_HELD)
        self._after = after

    def append(self, step: Floats, lr: Floats, samples: Floats, ended: Floats) -> None:
        seen = self.moments.last_of(1)
        known = np.nan_to_num(samples)
        before = seen if seen is not None else self._after * float(known[0]) if len(known) else 0.0
        total = before + np.cumsum(known)
        every = max(1, len(step) // _MOST_AT_ONCE)
        places = np.unique(np.append(np.arange(0, len(step), every), len(step) - 1))
        places = places[np.isfinite(ended[places])]
        self.moments.append_many(ended[places], np.stack([step[places], total[places]]), step[places])
        has_lr = places[np.isfinite(lr[places])]
        self.lrs.append_many(step[has_lr], lr[has_lr])

    def cut(self, last: int) -> None:
        """Forget the steps beyond `last`."""
        self.moments.cut(last)
        self.lrs.cut(last)
