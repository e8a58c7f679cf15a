"""Convert a comparison to the JSON values of `rankdeck compare --json`. Keys may be added, never changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankdeck.compare.curves import LossCurve
from rankdeck.compare.differences import Difference
from rankdeck.compare.formatting import format_time_source
from rankdeck.compare.run_metrics import ComparedRun, MetricValue
from rankdeck.compare.table import Comparison, ComparisonRow
from rankdeck.run.series import Floats


def comparison_to_json(comparison: Comparison, by: str, lines: Sequence[LossCurve]) -> dict[str, object]:
    """Convert a comparison to JSON values, with None for unknown ones. `lines` are the runs' losses over
    the axis `by`."""
    letters = [comparison.letter(index) for index in range(len(comparison.runs))]
    return {
        "baseline": letters[comparison.baseline],
        "runs": [_run_to_json(run, letter) for run, letter in zip(comparison.runs, letters, strict=True)],
        # The JSON keys keep their first names, as they are a contract.
        "figures": [_row_to_json(row, letters) for row in comparison.rows],
        "configuration": [_difference_to_json(row, letters) for row in comparison.config_differences],
        "other_differences": [_difference_to_json(row, letters) for row in comparison.other_differences],
        "loss": {
            "by": by,
            "curves": {letter: _curve_to_json(line) for letter, line in zip(letters, lines, strict=True)},
        },
    }


def _run_to_json(run: ComparedRun, letter: str) -> dict[str, object]:
    return {
        "letter": letter,
        "run": run.ref.path.name,
        "attempt": run.ref.attempt,
        "title": run.title,
        "path": str(run.ref.path),
        "outcome": run.outcome,
        "strategy": run.strategy or None,
        "script": run.observed is not None,
        "steps_planned": run.steps_planned,
        "times": format_time_source(run) or None,
        "memory": run.memory_source_text or None,
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


def _row_to_json(row: ComparisonRow, letters: Sequence[str]) -> dict[str, object]:
    return {
        "key": row.key,
        "label": row.label,
        "group": row.group,
        "unit": row.unit,
        "better": row.better or None,
        "values": dict(zip(letters, map(_value_to_json, row.metric_values), strict=True)),
        "best": [letters[index] for index in row.best],
        "difference": {letter: text or None for letter, text in zip(letters, row.differences, strict=True)},
        "not_ranked": row.not_ranked or None,
        "made_by": {letter: source or None for letter, source in zip(letters, row.sources, strict=True)},
    }


def _value_to_json(metric_value: MetricValue | None) -> dict[str, object] | None:
    if metric_value is None:
        return None
    return {
        "value": metric_value.value,
        "step": metric_value.step,
        "low": metric_value.low,
        "high": metric_value.high,
    }


def _difference_to_json(row: Difference, letters: Sequence[str]) -> dict[str, object]:
    return {"key": row.key, "values": dict(zip(letters, row.values, strict=True))}


def _curve_to_json(line: LossCurve) -> dict[str, object]:
    """Convert a curve without its raw losses, which `rankdeck export` provides."""
    return {
        "at": _finite_values(line.average_x),
        "smoothed": _finite_values(line.average),
        "held_out_at": _finite_values(line.held_out_x),
        "held_out": _finite_values(line.held_out),
    }


def _finite_values(values: Floats) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
