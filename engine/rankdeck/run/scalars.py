"""The curves of a run as scalars for other programs: what it logged itself under its own names, and what was
seen of it.

What is seen of a person's own script has names of its own ("rankdeck/loss"), so that it never stands among
what the script calls so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rankdeck.run.fold import Fold
from rankdeck.run.tensorboard import Scalars

_SEEN = "rankdeck/"
_LATEST = 1e12


def scalars_of(fold: Fold) -> Iterator[Scalars]:
    """Step by step what is known of each, then the evaluations, then name by name what the script logged."""
    prefix = _SEEN if fold.script.is_script else ""
    zero = fold.first_started.started if fold.first_started is not None else 0.0
    for row in fold.rows():
        values = {"loss": row.loss, "lr": row.lr, "grad_norm": row.grad_norm}
        if row.step_s > 0:
            values |= {"steps_per_s": 1 / row.step_s, "samples_per_s": row.samples / row.step_s}
            values["wait_share"] = row.wait_s / row.step_s
        known = {prefix + name: value for name, value in values.items() if math.isfinite(value)}
        if known:
            yield Scalars(_time(row.ended, zero), row.step, known)
    for one in fold.attempts.values():
        for evaluation in one.evaluations:
            told = {"held_out/loss": evaluation.loss, "held_out/accuracy": evaluation.accuracy}
            known = {name: value for name, value in told.items() if value is not None}
            yield Scalars(evaluation.t, evaluation.step, known)
    for name, metric in fold.metrics.items():
        for step, t, value in zip(*(column.tolist() for column in metric.points()), strict=True):
            yield Scalars(_time(t, zero), int(step), {name: value})


def _time(t: float, zero: float) -> float:
    """When something was logged, as far as that makes sense."""
    return t if abs(t) < _LATEST else zero
