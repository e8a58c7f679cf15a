"""Rows of the configuration form: the most used options first, the others below "More".

Rows are derived from the catalog: the options of an entry come from its schema, so a new model or strategy
gets its form without changes in this module. Options that the engine does not support yet are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import tr_noop
from rankdeck.config import DataConfig, LaunchConfig, RehearsalConfig, TrainConfig
from rankdeck.config.catalog import (
    DATA,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    STRATEGIES,
    CatalogSpec,
    OptionField,
)
from rankdeck_app.language import tr
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.toml_schema import translated_fields
from rankdeck_app.widgets.form import FormRow, KeyPath, option_label

MAX_FRONT_ARGS = 4
_UNSUPPORTED_CHOICES: Mapping[str, tuple[Any, ...]] = {"precision": ("fp16",)}
# Short labels for options whose names do not fit beside a field of the side bar.
_SHORT_LABELS = {
    "lr": tr_noop("Rate"),
    "global_batch": tr_noop("Batch"),
    "vocabulary": tr_noop("Vocab"),
    "weight_decay": tr_noop("Decay"),
    "accumulate": tr_noop("Accum."),
    "clip_norm": tr_noop("Clip"),
    "evaluate_every": tr_noop("Evaluate"),
    "timeout_s": tr_noop("Timeout (s)"),
    "last": tr_noop("Last"),
    "bucket_mb": tr_noop("Bucket"),
    "microbatches": tr_noop("Microb."),
    "powersgd_rank": tr_noop("Columns"),
    "activation_checkpointing": tr_noop("Recompute activations"),
}
_OPTION_LABELS = (
    tr_noop("Path"), tr_noop("Context"), tr_noop("Size"), tr_noop("Samples"), tr_noop("Classes"),
    tr_noop("Masked"), tr_noop("Hidden"), tr_noop("Dropout"), tr_noop("Layers"), tr_noop("Heads"),
    tr_noop("Width"), tr_noop("Tied"), tr_noop("Depth"), tr_noop("Stem"), tr_noop("Momentum"),
    tr_noop("Nesterov"), tr_noop("Betas"), tr_noop("Eps"), tr_noop("Warmup"), tr_noop("Final"),
    tr_noop("Rise"), tr_noop("Parallel loss"), tr_noop("Sync"), tr_noop("Compress"),
    tr_noop("Find unused parameters"), tr_noop("Static graph"), tr_noop("Gradient as bucket view"),
    tr_noop("Sync batchnorm"), tr_noop("Reshard"), tr_noop("Cuts"), tr_noop("Balance"), tr_noop("Schedule"),
    tr_noop("Mode"), tr_noop("Sequence parallel"), tr_noop("Loss parallel"), tr_noop("Data"),
    tr_noop("Shard"), tr_noop("Stage"), tr_noop("Tensor"), tr_noop("Workers"), tr_noop("Pin memory"),
    tr_noop("Order"), tr_noop("Longest"), tr_noop("Capacity"), tr_noop("Steps"), tr_noop("Epochs"),
    tr_noop("Seed"), tr_noop("Precision"), tr_noop("Allow tf32"), tr_noop("Verify"),
)  # fmt: skip
"""Labels that `option_label` derives from option names, for options without a short label; they are listed so
that they can be translated."""


def _make_row(key_path: KeyPath, field: OptionField) -> FormRow:
    left_out = _UNSUPPORTED_CHOICES.get(field.name, ())
    if left_out:
        choices = tuple(choice for choice in field.choices if choice not in left_out)
        field = replace(field, choices=choices)
    label = tr(_SHORT_LABELS.get(field.name, option_label(field.name)))
    return FormRow(key_path, label, field)


def _make_use_row(
    key_path: KeyPath, label: str, cards: Mapping[str, CatalogSpec], default: str, user_hint: str = ""
) -> FormRow:
    """Return the row in which the user chooses a catalog entry. If `user_hint` is not empty, the user can
    name their own code in place of an entry; `user_hint` shows how."""
    hints = [f"{card.name}: {tr(card.hint)}" for card in cards.values()]
    if user_hint:
        hints.append(tr("your own: {name}", name=user_hint))
    field = OptionField("use", "choice", default, " · ".join(hints), tuple(cards))
    return FormRow((*key_path, "use"), label, field, editable=bool(user_hint), wide=True)


def _make_option_rows(key_path: KeyPath, cards: Mapping[str, CatalogSpec], use: str) -> list[FormRow]:
    card = cards.get(use)
    return (
        []
        if card is None
        else [_make_row((*key_path, field.name), field) for field in translated_fields(card.options)]
    )


def _split_rows(rows: list[FormRow]) -> tuple[list[FormRow], list[FormRow]]:
    """Split the rows into the few most commonly set options and all others."""
    front = [
        row for row in rows if not row.field.optional and row.field.kind in ("int", "choice", "list", "text")
    ]
    front = front[:MAX_FRONT_ARGS]
    return front, [row for row in rows if row not in front]


def _make_named_rows(options: type[BaseModel], section: str, *names: str) -> list[FormRow]:
    fields = {field.name: field for field in translated_fields(options)}
    return [_make_row((section, name), fields[name]) for name in names]


def _get_use(draft: Draft, key_path: KeyPath, default: str) -> str:
    use = draft.value((*key_path, "use"))
    return use if isinstance(use, str) else default


def model_rows(draft: Draft) -> tuple[list[FormRow], list[FormRow]]:
    """Return the model section's rows for the draft's catalog entries, as (first rows, rows under "More")."""
    user_hint = '"module:factory"'
    model, model_more = _split_rows(
        _make_option_rows(("model", "args"), MODELS, _get_use(draft, ("model",), "mlp"))
    )
    data, data_more = _split_rows(
        _make_option_rows(("data", "args"), DATA, _get_use(draft, ("data",), "digits"))
    )
    optimizer = ("train", "optimizer")
    rates = _make_option_rows(optimizer, OPTIMIZERS, _get_use(draft, optimizer, "adamw"))
    front = [
        _make_use_row(("model",), tr("Model"), MODELS, "mlp", user_hint),
        *model,
        _make_use_row(("data",), tr("Data"), DATA, "digits", user_hint),
        *data,
        *_make_named_rows(TrainConfig, "train", "global_batch", "steps"),
        *[row for row in rates if row.key_path[-1] == "lr"],
        *_make_named_rows(TrainConfig, "train", "precision"),
    ]
    schedule = ("train", "schedule")
    more = [
        *model_more,
        *data_more,
        _make_use_row(("loss",), tr("Loss"), LOSSES, "cross_entropy", '"module:function"'),
        _make_use_row(optimizer, tr("Optimizer"), OPTIMIZERS, "adamw", '"module:class"'),
        *[row for row in rates if row.key_path[-1] != "lr"],
        _make_use_row(schedule, tr("Schedule"), SCHEDULES, "constant"),
        *_make_option_rows(schedule, SCHEDULES, _get_use(draft, schedule, "constant")),
        *_make_named_rows(
            TrainConfig, "train", "epochs", "accumulate", "seed", "clip_norm", "evaluate_every"
        ),
        *_make_named_rows(TrainConfig, "train", "activation_checkpointing", "allow_tf32", "verify"),
        *_make_named_rows(DataConfig, "data", "order", "last", "workers", "pin_memory", "longest"),
        *_make_named_rows(RehearsalConfig, "rehearsal", "capacity"),
        *_make_named_rows(LaunchConfig, "launch", "timeout_s"),
    ]
    return front, more


def strategy_rows(draft: Draft) -> list[FormRow]:
    """Return rows for the strategy's options, except for options that are tables or that allow only one
    value."""
    rows = _make_option_rows(("strategy",), STRATEGIES, _get_use(draft, ("strategy",), "single"))
    rows = [row for row in rows if row.field.kind != "table"]
    return [row for row in rows if not (row.field.kind == "choice" and len(row.field.choices) < 2)]


def name_row(draft: Draft) -> FormRow:
    what = tr("Name of the run. Default: its model, strategy and number of devices.")
    return FormRow(("name",), tr("Name"), OptionField("name", "text", draft.run_title, what))


def hosts_row() -> FormRow:
    what = tr(
        "Host names that ssh knows, or localhost, separated by commas. The first host is the coordinator."
    )
    return FormRow(("hosts", "use"), tr("Hosts"), OptionField("use", "list", tr("this host only"), what))


def problems_by_field(draft: Draft) -> dict[KeyPath, Problem]:
    """Return the first problem of each field. Problems without a field are left out, because they can only be
    fixed in the TOML text."""
    if not draft.problems:
        return {}
    key_paths = [row.key_path for rows in all_rows(draft).values() for row in rows]
    first_problems: dict[KeyPath, Problem] = {}
    for problem in draft.problems:
        key_path = find_field(problem, key_paths)
        if key_path is not None:
            first_problems.setdefault(key_path, problem)
    return first_problems


def find_field(problem: Problem, key_paths: Iterable[KeyPath]) -> KeyPath | None:
    """Return the field to which a problem belongs, or None.

    It is the field for the problem's key, or for the list or table that contains this key. If the key names a
    table, it is the field for the table's `use`.
    """
    path = tuple((problem.path or "").split("."))
    fitting = [
        key_path for key_path in key_paths if path[: len(key_path)] == key_path or key_path == (*path, "use")
    ]
    # The most specific field.
    return max(fitting, key=len, default=None)


def all_rows(draft: Draft) -> dict[str, list[FormRow]]:
    """Return all rows by section title, for the page that shows the whole configuration."""
    front, more = model_rows(draft)
    rows = [*front, *more]

    def of(*tables: str) -> list[FormRow]:
        return [row for row in rows if row.key_path[0] in tables]

    what = tr("auto, cpu:4 (a rehearsal), gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")
    devices = OptionField("use", "text", "auto", what)
    return {
        tr_noop("Run"): [
            name_row(draft),
            FormRow(("devices", "use"), tr("Devices"), devices),
            hosts_row(),
            *of("rehearsal", "launch"),
        ],
        tr_noop("Model"): of("model"),
        tr_noop("Data"): of("data", "loss"),
        tr_noop("Training"): of("train"),
        tr_noop("Strategy"): [
            _make_use_row(("strategy",), tr("Strategy"), STRATEGIES, "single"),
            *strategy_rows(draft),
        ],
    }
