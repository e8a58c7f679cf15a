"""Find how runs differ: in the keys of their configurations, and in other properties.

Only keys and properties that differ between the runs have a row. The value of a key that a run lacks is None.
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
"""Keys that are not compared: the run's name, which the header already shows."""


_SPEC_PATHS: tuple[tuple[tuple[str, ...], Mapping[str, CatalogSpec], tuple[str, ...]], ...] = (
    (("model",), MODELS, ("args",)),
    (("data",), DATA, ("args",)),
    (("train", "optimizer"), OPTIMIZERS, ()),
    (("train", "schedule"), SCHEDULES, ()),
    (("strategy",), STRATEGIES, ()),
)
"""For each table that names a catalogue entry with `use`: the table's path, the specs by entry name, and the
subpath of the entry's options."""


class Difference(NamedTuple):
    """Values of a property that differs between runs; `key` is a dotted configuration key or a phrase."""

    key: str
    values: tuple[str | None, ...]


def config_differences(runs: Sequence[ComparedRun]) -> list[Difference]:
    """Return the keys that differ, in the order of the first configuration that has them.

    An option that only some specs have (such as DDP's buckets) counts as a difference only if it is not at
    its default.
    """
    configs = [run.setup.tables for run in runs]
    keys = [dict(flatten_config(tables)) for tables in configs]
    defaults = [_default_options(tables) for tables in configs]
    rows = []
    for key in dict.fromkeys(key for options in keys for key in options):
        values = tuple(options.get(key) for options in keys)
        known_values = {value for value in values if value is not None}
        # A configuration without the whole table, such as a script's, does not lack the key.
        is_other = None in values and all(key.partition(".")[0] in tables for tables in configs)
        is_own = any(
            options.get(key) not in (None, default.get(key))
            for options, default in zip(keys, defaults, strict=True)
        )
        if len(known_values) > 1 or (is_other and is_own):
            rows.append(Difference(key, values))
    return rows


def other_differences(runs: Sequence[ComparedRun]) -> list[Difference]:
    """Return how the runs differ outside of their configurations (devices, versions, host, command line,
    observations); unknown values are ignored."""
    facts = [dict(other_facts(run)) for run in runs]
    rows = [Difference(key, tuple(run_facts.get(key) for run_facts in facts)) for key in _unique_keys(facts)]
    return [row for row in rows if len(set(row.values) - {None}) > 1]


def _unique_keys(mappings: Sequence[Mapping[str, str]]) -> Iterator[str]:
    return iter(dict.fromkeys(key for mapping in mappings for key in mapping))


def _default_options(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the default options of the catalogue entries that a configuration names."""
    defaults: dict[str, str] = {}
    for path, cards, subpath in _SPEC_PATHS:
        table: Any = tables
        for key in path:
            table = table.get(key) if isinstance(table, Mapping) else None
        use = table.get("use") if isinstance(table, Mapping) else None
        card = cards.get(use) if isinstance(use, str) else None
        for option in option_fields(card.options) if card is not None else ():
            defaults[".".join([*path, *subpath, option.name])] = _format_option(option.default)
    return defaults


def flatten_config(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        dotted = f"{prefix}.{key}" if prefix else str(key)
        if dotted in _IGNORED_KEYS:
            continue
        # Empty `args` are the same as none.
        if isinstance(value, Mapping) and (value or dotted.endswith(".args")):
            yield from flatten_config(value, dotted)
        elif dotted == "script.args" and isinstance(value, list):
            yield dotted, shlex.join(map(str, value))
        else:
            yield dotted, _format_option(value)


def _format_option(value: object) -> str:
    """Format a value as in a configuration, without the quotes of a string."""
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
    for what, text in (
        ("Python", background.python),
        (phrase("host"), background.host),
        (phrase("commit"), background.commit),
        (phrase("command line"), background.command_line),
        (phrase("observed model"), observed.model),
        (phrase("observed data"), observed.dataset),
        (phrase("observed optimizer"), observed.optimizer),
        (phrase("observed precision"), observed.precision),
    ):
        if text:
            yield what, str(text)


# Which runs may be ranked against each other: losses of one task, times of one kind, bytes of one source.
#
# Each function returns a text: "" if the runs may be ranked, else the reason why none of them is the best.

LOSS, LAST_LOSS, TIME, STEP_TIME, TOTAL_TIME, MEMORY, BYTES, NOT_RANKED = (
    "loss", "last loss", "time", "step time", "total time", "memory", "bytes", "nothing",
)  # fmt: skip
_TASK_SIZES = ("context", "vocabulary", "classes")
"""Model arguments that change the task."""


def not_ranked_reason(kind: str, runs: Sequence[ComparedRun]) -> str:
    """Return why `runs`, all of which have a metric of this `kind`, are not ranked by that metric; "" if they
    are."""
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
    """Return why losses cannot be compared; "" if the tasks are the same, even if model sizes differ."""
    if reason := kind_mismatch(runs):
        return reason
    if runs[0].observed is not None:
        tasks = [_observed_facts(run, "model", "dataset", "num_samples") for run in runs]
        if None in tasks:
            return phrase("the training data of some scripts was not observed")
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
    """Return why metrics of this `kind`, which depend on the model, cannot be compared; "" if the models
    are the same."""
    if reason := kind_mismatch(runs):
        return reason
    if runs[0].observed is not None:
        models = [_observed_facts(run, "model", "num_parameters") for run in runs]
        if None in models:
            return phrase("the models of some scripts were not observed")
    else:
        models = [_config_table(run, "model") for run in runs]
    if not _are_different(models):
        return ""
    if kind in (MEMORY, BYTES):
        return phrase("the models differ, so memory cannot be compared")
    return phrase("the models differ, so times cannot be compared")


def kind_mismatch(runs: Sequence[ComparedRun]) -> str:
    """Return why it is unknown whether the runs have the same task; "" if their tasks can be compared."""
    if len({run.observed is None for run in runs}) > 1:
        return phrase("some of the runs execute scripts, whose tasks may be different")
    if runs[0].observed is None and not all(run.setup.tables for run in runs):
        return phrase("the configuration of at least one run cannot be read")
    return ""


def _timing_mismatch(runs: Sequence[ComparedRun]) -> str:
    kinds = {run.device_kind for run in runs}
    if len(kinds) > 1:
        return phrase("some of the times are from GPUs, others from a rehearsal on CPUs")
    if len({run.time_source for run in runs}) > 1:
        return phrase("some of the times are simulated")
    return ""


def _batch_mismatch(runs: Sequence[ComparedRun]) -> str:
    batches = sorted({run.global_batch for run in runs if run.global_batch is not None})
    if len(batches) < 2:
        return ""
    sizes = ", ".join(map(str, batches))
    return phrase("the steps of the runs have different sizes (global batch {sizes})", sizes=sizes)


def _step_mismatch(runs: Sequence[ComparedRun]) -> str:
    is_other = _are_different([run.value("step") for run in runs])
    return phrase("the runs have completed different numbers of steps") if is_other else ""


def _memory_source_mismatch(runs: Sequence[ComparedRun]) -> str:
    """Return why memory cannot be compared; "" if all values have the same source. Sources that differ only
    in the number of tracked steps count as the same."""
    sources = sorted({phrase(run.memory_source) if run.memory_source else phrase("unknown") for run in runs})
    if len(sources) < 2:
        return ""
    return phrase(
        "the memory values have different sources ({sources})", sources=join_phrases(sources, AND_TEMPLATE)
    )


def _observed_facts(run: ComparedRun, *keys: str) -> tuple[Any, ...] | None:
    """Return a script's observed values for `keys`; None if one of them was not observed."""
    facts = tuple(getattr(run.observed, key) for key in keys)
    return None if None in facts else facts


def _config_table(run: ComparedRun, key: str) -> Any:
    return run.setup.tables.get(key)


def _model_identity(run: ComparedRun) -> object:
    table = _config_table(run, "model")
    args = table.get("args") if isinstance(table, Mapping) else None
    sizes = [args.get(size) if isinstance(args, Mapping) else None for size in _TASK_SIZES]
    return [table.get("use") if isinstance(table, Mapping) else None, sizes]


def _are_different(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values)
