"""Learning-rate schedules: each is a function from a step to a factor of the optimizer's own rate.

A factor function is data that the loop calls and a plot can draw; step counts from 0. `warmup` steps rise
linearly from 1/warmup.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Factor = Callable[[int], float]
Schedule = Callable[..., Factor]


def _warm(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _progress(step: int, steps: int, warmup: int) -> float:
    """0 at the end of the warm-up, 1 at the last step."""
    return min(1.0, max(0.0, (step - warmup) / max(1, steps - 1 - warmup)))


def constant(steps: int, *, warmup: int = 0) -> Factor:
    return lambda step: _warm(step, warmup)


def cosine(steps: int, *, warmup: int = 0, final: float = 0.0) -> Factor:
    def factor(step: int) -> float:
        wave = 0.5 * (1 + math.cos(math.pi * _progress(step, steps, warmup)))
        return _warm(step, warmup) * (final + (1 - final) * wave)

    return factor


def linear(steps: int, *, warmup: int = 0, final: float = 0.0) -> Factor:
    return lambda step: _warm(step, warmup) * (1 - (1 - final) * _progress(step, steps, warmup))


def one_cycle(steps: int, *, rise: float = 0.3) -> Factor:
    """Up from 1/25 along half a cosine, then down to 1e-4 of it.

    Source: Smith and Topin, Super-Convergence, 2018.
    """
    top = max(1, round(rise * steps))

    def factor(step: int) -> float:
        if step < top:
            return _between(1 / 25, 1.0, step / top)
        return _between(1.0, 1 / 25e4, _progress(step, steps, top))

    return factor


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))
