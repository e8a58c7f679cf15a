"""Which runs may be ranked against each other: losses of one task, times of one kind, bytes of one source.

Each question is answered in words: "" where the runs may be ranked, else why none of them is the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankdeck.compare.figures import ComparedRun

LOSS, LAST_LOSS, TIME, STEP_TIME, TOTAL_TIME, MEMORY, BYTES, NOTHING = (
    "loss", "last loss", "time", "step time", "total time", "memory", "bytes", "nothing",
)  # fmt: skip
_SIZES = ("context", "vocabulary", "classes")
"""Arguments of a model that make another task of it."""


def why_not(kind: str, runs: Sequence[ComparedRun]) -> str:
    """Why these runs, which all know a figure of this kind, are not ranked by it."""
    if kind == NOTHING or len(runs) < 2:
        return ""
    if kind in (LOSS, LAST_LOSS):
        return _other_task(runs) or (_other_steps(runs) if kind == LAST_LOSS else "")
    if kind == MEMORY:
        # How many steps were followed is no other source.
        sources = ((run.memory_source or "unknown").partition(",")[0] for run in runs)
        return _other_model(runs, "bytes") or _differ(sources, "their bytes are")
    if kind == BYTES:
        return _other_model(runs, "bytes")
    reason = _other_model(runs, "times") or _other_times(runs)
    if not reason and kind == STEP_TIME:
        return _other_batches(runs)
    if not reason and kind == TOTAL_TIME:
        return _other_steps(runs)
    return reason


def _other_task(runs: Sequence[ComparedRun]) -> str:
    """Losses say the same only of the same task; its model may have other sizes."""
    if reason := _of_two_kinds(runs):
        return reason
    if runs[0].is_script:
        tasks = [_seen(run, "model", "dataset", "num_samples") for run in runs]
        if None in tasks:
            return "nobody has seen which data the scripts train on"
        return "the scripts train other models or on other data" if _are_different(tasks) else ""
    for key, what in (("data", "other data"), ("loss", "other losses")):
        if _are_different([_table(run, key) for run in runs]):
            return f"they have {what}"
    if _are_different([_model(run) for run in runs]):
        return "they are losses of other models"
    return ""


def _other_model(runs: Sequence[ComparedRun], what: str) -> str:
    """Times and bytes say something of a strategy only where the model is the same."""
    if reason := _of_two_kinds(runs):
        return reason
    if runs[0].is_script:
        models = [_seen(run, "model", "num_parameters") for run in runs]
        if None in models:
            return "nobody has seen which models the scripts train"
    else:
        models = [_table(run, "model") for run in runs]
    return f"they are {what} of other models" if _are_different(models) else ""


def _of_two_kinds(runs: Sequence[ComparedRun]) -> str:
    if len({run.is_script for run in runs}) > 1:
        return "some are scripts, of which nobody knows whether they train the same"
    if not runs[0].is_script and any(run.background.tables is None for run in runs):
        return "a configuration cannot be read"
    return ""


def _other_times(runs: Sequence[ComparedRun]) -> str:
    kinds = {run.device_kind for run in runs}
    if len(kinds) > 1:
        return "some are times of GPUs, some of a rehearsal on CPUs"
    if len({run.pace for run in runs}) > 1:
        return "some are simulated times"
    return ""


def _other_batches(runs: Sequence[ComparedRun]) -> str:
    batches = sorted({run.global_batch for run in runs if run.global_batch is not None})
    sizes = ", ".join(map(str, batches))
    return f"their steps have other sizes (global batch {sizes})" if len(batches) > 1 else ""


def _other_steps(runs: Sequence[ComparedRun]) -> str:
    is_other = _are_different([run.value("step") for run in runs])
    return "they have done different numbers of steps" if is_other else ""


def _differ(words: Iterable[str], what: str) -> str:
    told = sorted(set(words))
    return f"{what} {' and '.join(told)}" if len(told) > 1 else ""


def _seen(run: ComparedRun, *keys: str) -> tuple[Any, ...] | None:
    """What was seen of a script; None where one of them was not."""
    found = tuple(run.observed.get(key) for key in keys)
    return None if None in found else found


def _table(run: ComparedRun, key: str) -> Any:
    return (run.background.tables or {}).get(key)


def _model(run: ComparedRun) -> object:
    table = _table(run, "model")
    args = table.get("args") if isinstance(table, Mapping) else None
    sizes = [args.get(size) if isinstance(args, Mapping) else None for size in _SIZES]
    return [table.get("use") if isinstance(table, Mapping) else None, sizes]


def _are_different(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values)
