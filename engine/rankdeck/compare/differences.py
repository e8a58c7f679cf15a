"""In what runs differ: keys of their configurations, and what is not configuration.

Only what is not the same in all of them has a row. A key that a run does not have is None.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rankdeck.base.phrases import AND_TEMPLATE, join_phrases, phrase
from rankdeck.compare.formatting import format_devices
from rankdeck.compare.run_metrics import NOT_OBSERVED, ComparedRun
from rankdeck.config.catalog import (
    DATA,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    STRATEGIES,
    CatalogSpec,
    option_fields,
)

_IGNORED_KEYS = ("name",)
"""It is what a run is called, which stands above everything."""


_SPEC_PATHS: tuple[tuple[tuple[str, ...], Mapping[str, CatalogSpec], tuple[str, ...]], ...] = (
    (("model",), MODELS, ("args",)),
    (("data",), DATA, ("args",)),
    (("train", "optimizer"), OPTIMIZERS, ()),
    (("train", "schedule"), SCHEDULES, ()),
    (("strategy",), STRATEGIES, ()),
)
"""Where a configuration names a card, and where the card's options stand from there."""


class Difference(NamedTuple):
    """A dotted key, or a phrase for what is none, with what each run has there."""

    key: str
    values: tuple[str | None, ...]


def config_differences(runs: Sequence[ComparedRun]) -> list[Difference]:
    """In the order of the first configuration that has the key. What only some cards have as an option (the
    buckets of DDP) counts where it is not what the card says by itself."""
    told = [run.setup.tables for run in runs]
    keys = [dict(flatten_config(tables)) for tables in told]
    defaults = [_default_options(tables) for tables in told]
    rows = []
    for key in dict.fromkeys(key for one in keys for key in one):
        values = tuple(one.get(key) for one in keys)
        known = {value for value in values if value is not None}
        is_other = None in values and all(key.partition(".")[0] in tables for tables in told)
        is_own = any(
            one.get(key) not in (None, usual.get(key)) for one, usual in zip(keys, defaults, strict=True)
        )
        if len(known) > 1 or (is_other and is_own):
            rows.append(Difference(key, values))
    return rows


def other_differences(runs: Sequence[ComparedRun]) -> list[Difference]:
    """Where and with what they ran, and how they were asked for; what is not known differs from nothing."""
    told = [dict(other_facts(run)) for run in runs]
    rows = [Difference(key, tuple(one.get(key) for one in told)) for key in _unique_keys(told)]
    return [row for row in rows if len(set(row.values) - {None}) > 1]


def _unique_keys(told: Sequence[Mapping[str, str]]) -> Iterator[str]:
    return iter(dict.fromkeys(key for one in told for key in one))


def _default_options(tables: Mapping[str, Any]) -> dict[str, str]:
    """What the options of the cards that a configuration names are where nobody says otherwise."""
    found: dict[str, str] = {}
    for place, cards, beside in _SPEC_PATHS:
        table: Any = tables
        for key in place:
            table = table.get(key) if isinstance(table, Mapping) else None
        use = table.get("use") if isinstance(table, Mapping) else None
        card = cards.get(use) if isinstance(use, str) else None
        for option in option_fields(card.options) if card is not None else ():
            found[".".join([*place, *beside, option.name])] = _format_option(option.default)
    return found


def flatten_config(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        dotted = f"{place}.{key}" if place else str(key)
        if dotted in _IGNORED_KEYS:
            continue
        if isinstance(value, Mapping) and (value or dotted.endswith(".args")):
            yield from flatten_config(value, dotted)
        elif dotted == "script.args" and isinstance(value, list):
            yield dotted, shlex.join(map(str, value))
        else:
            yield dotted, _format_option(value)


def _format_option(value: object) -> str:
    """As in a configuration, without the quotes of a string."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def other_facts(run: ComparedRun) -> Iterator[tuple[str, str]]:
    background, observed = run.setup, run.observed or NOT_OBSERVED
    yield phrase("devices"), format_devices(run) or phrase("not known yet")
    versions = background.versions | observed.versions
    yield from (
        (phrase("version of {package}", package=name), str(version)) for name, version in versions.items()
    )
    for what, words in (
        ("Python", background.python),
        (phrase("host"), background.host),
        (phrase("commit"), background.commit),
        (phrase("command line"), background.command_line),
        (phrase("model that was seen"), observed.model),
        (phrase("data that was seen"), observed.dataset),
        (phrase("optimizer that was seen"), observed.optimizer),
        (phrase("precision that was seen"), observed.precision),
    ):
        if words:
            yield what, str(words)


# Which runs may be ranked against each other: losses of one task, times of one kind, bytes of one source.
#
# Each question is answered in words: "" where the runs may be ranked, else why none of them is the best.

LOSS, LAST_LOSS, TIME, STEP_TIME, TOTAL_TIME, MEMORY, BYTES, NOT_RANKED = (
    "loss", "last loss", "time", "step time", "total time", "memory", "bytes", "nothing",
)  # fmt: skip
_TASK_SIZES = ("context", "vocabulary", "classes")
"""Arguments of a model that make another task of it."""


def not_ranked_reason(kind: str, runs: Sequence[ComparedRun]) -> str:
    """Why these runs, which all know a figure of this kind, are not ranked by it."""
    if kind == NOT_RANKED or len(runs) < 2:
        return ""
    if kind in (LOSS, LAST_LOSS):
        return _task_mismatch(runs) or (_step_mismatch(runs) if kind == LAST_LOSS else "")
    if kind == MEMORY:
        return _model_mismatch(runs, kind) or _memory_source_mismatch(runs)
    if kind == BYTES:
        return _model_mismatch(runs, kind)
    reason = _model_mismatch(runs, kind) or _timing_mismatch(runs)
    if not reason and kind == STEP_TIME:
        return _batch_mismatch(runs)
    if not reason and kind == TOTAL_TIME:
        return _step_mismatch(runs)
    return reason


def _task_mismatch(runs: Sequence[ComparedRun]) -> str:
    """Losses say the same only of the same task; its model may have other sizes."""
    if reason := kind_mismatch(runs):
        return reason
    if runs[0].observed is not None:
        tasks = [_observed_facts(run, "model", "dataset", "num_samples") for run in runs]
        if None in tasks:
            return phrase("nobody has seen which data the scripts train on")
        is_other = _are_different(tasks)
        return phrase("the models or the data differ, so losses cannot be compared") if is_other else ""
    if _are_different([_config_table(run, "data") for run in runs]):
        return phrase("the data differ, so losses cannot be compared")
    if _are_different([_config_table(run, "loss") for run in runs]):
        return phrase("the loss functions differ, so losses cannot be compared")
    if _are_different([_model_identity(run) for run in runs]):
        return phrase("the models differ, so losses cannot be compared")
    return ""


def _model_mismatch(runs: Sequence[ComparedRun], kind: str) -> str:
    """Times and bytes say something of a strategy only where the model is the same."""
    if reason := kind_mismatch(runs):
        return reason
    if runs[0].observed is not None:
        models = [_observed_facts(run, "model", "num_parameters") for run in runs]
        if None in models:
            return phrase("nobody has seen which models the scripts train")
    else:
        models = [_config_table(run, "model") for run in runs]
    if not _are_different(models):
        return ""
    if kind in (MEMORY, BYTES):
        return phrase("the models differ, so memory cannot be compared")
    return phrase("the models differ, so times cannot be compared")


def kind_mismatch(runs: Sequence[ComparedRun]) -> str:
    """Why nothing at all can be said of what they were asked to do; empty where something can."""
    if len({run.observed is None for run in runs}) > 1:
        return phrase("some are scripts, of which nobody knows whether they train the same")
    if runs[0].observed is None and not all(run.setup.tables for run in runs):
        return phrase("a configuration cannot be read")
    return ""


def _timing_mismatch(runs: Sequence[ComparedRun]) -> str:
    kinds = {run.device_kind for run in runs}
    if len(kinds) > 1:
        return phrase("some are times of GPUs, some of a rehearsal on CPUs")
    if len({run.time_source for run in runs}) > 1:
        return phrase("some are simulated times")
    return ""


def _batch_mismatch(runs: Sequence[ComparedRun]) -> str:
    batches = sorted({run.global_batch for run in runs if run.global_batch is not None})
    if len(batches) < 2:
        return ""
    sizes = ", ".join(map(str, batches))
    return phrase("their steps have other sizes (global batch {sizes})", sizes=sizes)


def _step_mismatch(runs: Sequence[ComparedRun]) -> str:
    is_other = _are_different([run.value("step") for run in runs])
    return phrase("they have done different numbers of steps") if is_other else ""


def _memory_source_mismatch(runs: Sequence[ComparedRun]) -> str:
    """How many steps were followed is no other source."""
    told = sorted({phrase(run.memory_source) if run.memory_source else phrase("unknown") for run in runs})
    if len(told) < 2:
        return ""
    return phrase("their bytes are {sources}", sources=join_phrases(told, AND_TEMPLATE))


def _observed_facts(run: ComparedRun, *keys: str) -> tuple[Any, ...] | None:
    """What was seen of a script; None where one of them was not."""
    found = tuple(getattr(run.observed, key) for key in keys)
    return None if None in found else found


def _config_table(run: ComparedRun, key: str) -> Any:
    return run.setup.tables.get(key)


def _model_identity(run: ComparedRun) -> object:
    table = _config_table(run, "model")
    args = table.get("args") if isinstance(table, Mapping) else None
    sizes = [args.get(size) if isinstance(args, Mapping) else None for size in _TASK_SIZES]
    return [table.get("use") if isinstance(table, Mapping) else None, sizes]


def _are_different(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values)
