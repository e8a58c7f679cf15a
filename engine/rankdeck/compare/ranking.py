"""Which runs may be ranked against each other: losses of one task, times of one kind, bytes of one source.

Each question is answered in words: "" where the runs may be ranked, else why none of them is the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankdeck.base.phrases import ALL_OF, listed, phrase
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
        return _other_model(runs, kind) or _other_sources(runs)
    if kind == BYTES:
        return _other_model(runs, kind)
    reason = _other_model(runs, kind) or _other_times(runs)
    if not reason and kind == STEP_TIME:
        return _other_batches(runs)
    if not reason and kind == TOTAL_TIME:
        return _other_steps(runs)
    return reason


def _other_task(runs: Sequence[ComparedRun]) -> str:
    """Losses say the same only of the same task; its model may have other sizes."""
    if reason := of_two_kinds(runs):
        return reason
    if runs[0].is_script:
        tasks = [_seen(run, "model", "dataset", "num_samples") for run in runs]
        if None in tasks:
            return phrase("nobody has seen which data the scripts train on")
        is_other = _are_different(tasks)
        return phrase("the models or the data differ, so losses cannot be compared") if is_other else ""
    if _are_different([_table(run, "data") for run in runs]):
        return phrase("the data differ, so losses cannot be compared")
    if _are_different([_table(run, "loss") for run in runs]):
        return phrase("the loss functions differ, so losses cannot be compared")
    if _are_different([_model(run) for run in runs]):
        return phrase("the models differ, so losses cannot be compared")
    return ""


def _other_model(runs: Sequence[ComparedRun], kind: str) -> str:
    """Times and bytes say something of a strategy only where the model is the same."""
    if reason := of_two_kinds(runs):
        return reason
    if runs[0].is_script:
        models = [_seen(run, "model", "num_parameters") for run in runs]
        if None in models:
            return phrase("nobody has seen which models the scripts train")
    else:
        models = [_table(run, "model") for run in runs]
    if not _are_different(models):
        return ""
    if kind in (MEMORY, BYTES):
        return phrase("the models differ, so memory cannot be compared")
    return phrase("the models differ, so times cannot be compared")


def of_two_kinds(runs: Sequence[ComparedRun]) -> str:
    """Why nothing at all can be said of what they were asked to do; empty where something can."""
    if len({run.is_script for run in runs}) > 1:
        return phrase("some are scripts, of which nobody knows whether they train the same")
    if not runs[0].is_script and any(run.background.tables is None for run in runs):
        return phrase("a configuration cannot be read")
    return ""


def _other_times(runs: Sequence[ComparedRun]) -> str:
    kinds = {run.device_kind for run in runs}
    if len(kinds) > 1:
        return phrase("some are times of GPUs, some of a rehearsal on CPUs")
    if len({run.pace for run in runs}) > 1:
        return phrase("some are simulated times")
    return ""


def _other_batches(runs: Sequence[ComparedRun]) -> str:
    batches = sorted({run.global_batch for run in runs if run.global_batch is not None})
    if len(batches) < 2:
        return ""
    sizes = ", ".join(map(str, batches))
    return phrase("their steps have other sizes (global batch {sizes})", sizes=sizes)


def _other_steps(runs: Sequence[ComparedRun]) -> str:
    is_other = _are_different([run.value("step") for run in runs])
    return phrase("they have done different numbers of steps") if is_other else ""


def _other_sources(runs: Sequence[ComparedRun]) -> str:
    """How many steps were followed is no other source."""
    told = sorted({phrase(run.memory_source) if run.memory_source else phrase("unknown") for run in runs})
    if len(told) < 2:
        return ""
    return phrase("their bytes are {sources}", sources=listed(told, ALL_OF))


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
