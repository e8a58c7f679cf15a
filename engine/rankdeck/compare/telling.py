"""A comparison as JSON values: what `rankdeck compare --json` prints. Keys may be added, never changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankdeck.compare.curves import LossLine
from rankdeck.compare.differences import Difference
from rankdeck.compare.figures import ComparedRun, Figure
from rankdeck.compare.table import Comparison, FigureRow
from rankdeck.compare.words import kind_in_words
from rankdeck.run.series import Floats


def as_json(comparison: Comparison, by: str, lines: Sequence[LossLine]) -> dict[str, object]:
    """`lines` are the losses of the runs over `by`. Unknown is None."""
    letters = [comparison.letter(place) for place in range(len(comparison.runs))]
    return {
        "baseline": letters[comparison.baseline],
        "runs": [_run(run, letter) for run, letter in zip(comparison.runs, letters, strict=True)],
        "figures": [_row(row, letters) for row in comparison.rows],
        "configuration": [_difference(row, letters) for row in comparison.configuration],
        "other_differences": [_difference(row, letters) for row in comparison.rest],
        "loss": {
            "by": by,
            "curves": {letter: _line(line) for letter, line in zip(letters, lines, strict=True)},
        },
    }


def _run(run: ComparedRun, letter: str) -> dict[str, object]:
    return {
        "letter": letter,
        "run": run.at.path.name,
        "attempt": run.at.attempt,
        "title": run.title,
        "path": str(run.at.path),
        "outcome": run.outcome,
        "strategy": run.strategy or None,
        "script": run.observed is not None,
        "steps_planned": run.steps_planned,
        "times": kind_in_words(run) or None,
        "memory": run.memory_words or None,
        "devices": [
            {
                "device": device.label,
                "peak_bytes": device.num_bytes if device.is_peak else None,
                "live_bytes": None if device.is_peak else device.num_bytes,
                "by_kind": dict(device.by_kind),
                "predicted_peak_bytes": device.predicted_bytes,
            }
            for device in run.devices
        ],
    }


def _row(row: FigureRow, letters: Sequence[str]) -> dict[str, object]:
    return {
        "key": row.key,
        "label": row.label,
        "group": row.group,
        "unit": row.unit,
        "better": row.better or None,
        "values": dict(zip(letters, map(_figure, row.figures), strict=True)),
        "best": [letters[place] for place in row.best],
        "difference": {letter: words or None for letter, words in zip(letters, row.differences, strict=True)},
        "not_ranked": row.unranked or None,
        "made_by": {letter: made or None for letter, made in zip(letters, row.made_by, strict=True)},
    }


def _figure(figure: Figure | None) -> dict[str, object] | None:
    if figure is None:
        return None
    return {"value": figure.value, "step": figure.step, "low": figure.low, "high": figure.high}


def _difference(row: Difference, letters: Sequence[str]) -> dict[str, object]:
    return {"key": row.key, "values": dict(zip(letters, row.values, strict=True))}


def _line(line: LossLine) -> dict[str, object]:
    """The average alone: raw losses are in `rankdeck export`."""
    return {
        "at": _numbers(line.average_x),
        "smoothed": _numbers(line.average),
        "held_out_at": _numbers(line.held_out_x),
        "held_out": _numbers(line.held_out),
    }


def _numbers(values: Floats) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
