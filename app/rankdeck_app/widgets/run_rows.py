"""Which option of a run stands where in a form: the most used ones first, the rest below "More".

The rows follow from the catalogue: a card's own options come from its schema, so that a new model or strategy
has its form without a line here. Options that the engine does not have yet are in no form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import marked
from rankdeck.config import DataConfig, LaunchConfig, RehearsalConfig, TrainConfig
from rankdeck.config.catalog import (
    DATA,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    STRATEGIES,
    CatalogCard,
    OptionField,
)
from rankdeck_app.language import tr
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.toml_schema import spoken_fields
from rankdeck_app.widgets.form import FormRow, Place, label_of

MAX_FRONT_ARGS = 4
_NOT_YET: Mapping[str, tuple[Any, ...]] = {"precision": ("fp16",)}
# Shorter than the option's own name, where that would not fit beside a box of the side bar.
_LABELS = {
    "lr": marked("Rate"),
    "global_batch": marked("Batch"),
    "vocabulary": marked("Vocab"),
    "weight_decay": marked("Decay"),
    "accumulate": marked("Accum."),
    "clip_norm": marked("Clip"),
    "evaluate_every": marked("Evaluate"),
    "timeout_s": marked("Timeout (s)"),
    "last": marked("Last"),
    "bucket_mb": marked("Bucket"),
    "microbatches": marked("Microb."),
    "powersgd_rank": marked("Columns"),
    "activation_checkpointing": marked("Recompute activations"),
}
_NAMED = (
    marked("Path"), marked("Context"), marked("Size"), marked("Samples"), marked("Classes"), marked("Masked"),
    marked("Hidden"), marked("Dropout"), marked("Layers"), marked("Heads"), marked("Width"), marked("Tied"),
    marked("Depth"), marked("Stem"), marked("Momentum"), marked("Nesterov"), marked("Betas"), marked("Eps"),
    marked("Warmup"), marked("Final"), marked("Rise"), marked("Parallel loss"), marked("Sync"),
    marked("Compress"), marked("Find unused parameters"), marked("Static graph"),
    marked("Gradient as bucket view"), marked("Sync batchnorm"), marked("Reshard"), marked("Cuts"),
    marked("Balance"), marked("Schedule"), marked("Mode"), marked("Sequence parallel"),
    marked("Loss parallel"), marked("Data"), marked("Shard"), marked("Stage"), marked("Tensor"),
    marked("Workers"), marked("Pin memory"), marked("Order"), marked("Longest"), marked("Capacity"),
    marked("Steps"), marked("Epochs"), marked("Seed"), marked("Precision"), marked("Allow tf32"),
    marked("Verify"),
)  # fmt: skip
"""What the other options are called, as `label_of` says it, for translators."""


def _row(place: Place, field: OptionField) -> FormRow:
    left_out = _NOT_YET.get(field.name, ())
    if left_out:
        choices = tuple(choice for choice in field.choices if choice not in left_out)
        field = replace(field, choices=choices)
    label = tr(_LABELS.get(field.name, label_of(field.name)))
    return FormRow(place, label, field)


def _use_row(
    place: Place, label: str, cards: Mapping[str, CatalogCard], default: str, own: str = ""
) -> FormRow:
    """A choice among cards; `own` says how a person's own is written, where that is allowed."""
    told = [f"{card.name}: {tr(card.hint)}" for card in cards.values()]
    if own:
        told.append(tr("your own: {name}", name=own))
    field = OptionField("use", "choice", default, " · ".join(told), tuple(cards))
    return FormRow((*place, "use"), label, field, editable=bool(own), wide=True)


def _args(place: Place, cards: Mapping[str, CatalogCard], use: str) -> list[FormRow]:
    card = cards.get(use)
    return (
        [] if card is None else [_row((*place, field.name), field) for field in spoken_fields(card.options)]
    )


def _split(rows: list[FormRow]) -> tuple[list[FormRow], list[FormRow]]:
    """The first few options that nearly everybody sets, and the others."""
    front = [
        row for row in rows if not row.field.optional and row.field.kind in ("int", "choice", "list", "text")
    ]
    front = front[:MAX_FRONT_ARGS]
    return front, [row for row in rows if row not in front]


def _named(options: type[BaseModel], section: str, *names: str) -> list[FormRow]:
    fields = {field.name: field for field in spoken_fields(options)}
    return [_row((section, name), fields[name]) for name in names]


def _use(draft: Draft, place: Place, default: str) -> str:
    use = draft.value((*place, "use"))
    return use if isinstance(use, str) else default


def model_rows(draft: Draft) -> tuple[list[FormRow], list[FormRow]]:
    """The rows of MODEL as (shown, under "More"), for the cards that the draft names now."""
    own = '"module:factory"'
    model, model_more = _split(_args(("model", "args"), MODELS, _use(draft, ("model",), "mlp")))
    data, data_more = _split(_args(("data", "args"), DATA, _use(draft, ("data",), "digits")))
    optimizer = ("train", "optimizer")
    rates = _args(optimizer, OPTIMIZERS, _use(draft, optimizer, "adamw"))
    front = [
        _use_row(("model",), tr("Model"), MODELS, "mlp", own),
        *model,
        _use_row(("data",), tr("Data"), DATA, "digits", own),
        *data,
        *_named(TrainConfig, "train", "global_batch", "steps"),
        *[row for row in rates if row.place[-1] == "lr"],
        *_named(TrainConfig, "train", "precision"),
    ]
    schedule = ("train", "schedule")
    more = [
        *model_more,
        *data_more,
        _use_row(("loss",), tr("Loss"), LOSSES, "cross_entropy", '"module:function"'),
        _use_row(optimizer, tr("Optimizer"), OPTIMIZERS, "adamw", '"module:class"'),
        *[row for row in rates if row.place[-1] != "lr"],
        _use_row(schedule, tr("Schedule"), SCHEDULES, "constant"),
        *_args(schedule, SCHEDULES, _use(draft, schedule, "constant")),
        *_named(TrainConfig, "train", "epochs", "accumulate", "seed", "clip_norm", "evaluate_every"),
        *_named(TrainConfig, "train", "activation_checkpointing", "allow_tf32", "verify"),
        *_named(DataConfig, "data", "order", "last", "workers", "pin_memory", "longest"),
        *_named(RehearsalConfig, "rehearsal", "capacity"),
        *_named(LaunchConfig, "launch", "timeout_s"),
    ]
    return front, more


def strategy_rows(draft: Draft) -> list[FormRow]:
    """The options of the chosen strategy; a choice of one is no choice, a table is written in the file."""
    rows = _args(("strategy",), STRATEGIES, _use(draft, ("strategy",), "single"))
    rows = [row for row in rows if row.field.kind != "table"]
    return [row for row in rows if not (row.field.kind == "choice" and len(row.field.choices) < 2)]


def name_row(draft: Draft) -> FormRow:
    what = tr("What the run is called; what it is where you give no name.")
    return FormRow(("name",), tr("Name"), OptionField("name", "text", draft.run_title, what))


def hosts_row() -> FormRow:
    what = tr("Names that ssh knows, or localhost, with commas: the first one has the run.")
    return FormRow(("hosts", "use"), tr("Hosts"), OptionField("use", "list", tr("this one alone"), what))


def problems_by_field(draft: Draft) -> dict[Place, Problem]:
    """The first problem of each field that there is for it; the others can only be fixed in the text."""
    if not draft.problems:
        return {}
    places = [row.place for rows in all_rows(draft).values() for row in rows]
    found: dict[Place, Problem] = {}
    for problem in draft.problems:
        place = field_of(problem, places)
        if place is not None:
            found.setdefault(place, problem)
    return found


def field_of(problem: Problem, places: Iterable[Place]) -> Place | None:
    """The field that a problem is about: of its key, of the list around an entry, or of a table's choice."""
    path = tuple((problem.path or "").split("."))
    fitting = [place for place in places if path[: len(place)] == place or place == (*path, "use")]
    return max(fitting, key=len, default=None)


def all_rows(draft: Draft) -> dict[str, list[FormRow]]:
    """Every row by the title of its section, for the page that shows the whole configuration."""
    front, more = model_rows(draft)
    rows = [*front, *more]

    def of(*tables: str) -> list[FormRow]:
        return [row for row in rows if row.place[0] in tables]

    what = tr("auto, cpu:4 (a rehearsal), gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")
    devices = OptionField("use", "text", "auto", what)
    return {
        marked("Run"): [
            name_row(draft),
            FormRow(("devices", "use"), tr("Devices"), devices),
            hosts_row(),
            *of("rehearsal", "launch"),
        ],
        marked("Model"): of("model"),
        marked("Data"): of("data", "loss"),
        marked("Training"): of("train"),
        marked("Strategy"): [
            _use_row(("strategy",), tr("Strategy"), STRATEGIES, "single"),
            *strategy_rows(draft),
        ],
    }
