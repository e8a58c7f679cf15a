"""The configuration reference: every key with its type, bounds, default and meaning.

`rankdeck config` prints it, docs/configuration.md is its printed form, and the app's editor explains and
completes keys with it. Everything comes from schema.py and catalog.py, except the contracts below, which
state what Rankdeck expects of user code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from rankdeck.base.errors import ConfigError, did_you_mean
from rankdeck.base.phrases import Phrase, join_phrases, phrase, tr_noop
from rankdeck.config.catalog import CatalogSpec, OptionField, option_fields
from rankdeck.config.checks import CATALOGS, OTHER_NAMES, USER_CODE_TABLES
from rankdeck.config.schema import Choice, RunConfig

KeyPath = tuple[str, ...]
"""Parts of a dotted key: ("train", "steps") for train.steps."""

_BARE_KEY = re.compile(r"[\w-]+")
_KINDS = {
    "bool": tr_noop("true or false"),
    "int": tr_noop("whole number"),
    "float": tr_noop("number"),
    "text": tr_noop("text"),
    "list": tr_noop("list"),
    "table": tr_noop("table"),
    "choice": tr_noop("one of these"),
}
_ROLES = {
    ("model",): tr_noop("Model"),
    ("data",): tr_noop("Data set"),
    ("loss",): tr_noop("Loss function"),
    ("train", "optimizer"): tr_noop("Optimizer"),
    ("train", "schedule"): tr_noop("Learning rate schedule"),
    ("strategy",): tr_noop("Parallel strategy"),
}


@dataclass(frozen=True)
class Contract:
    """Arguments and return value required of a user's function or class, with an example that runs."""

    title: str
    text: str
    example: str


CONTRACTS = {
    "model.use": Contract(
        "Your own model",
        'model.use = "my_model.py:build" calls build(**model.args). It returns a torch.nn.Module that maps a '
        "batch of inputs to outputs. Rankdeck seeds the generators before the call, moves the model to its "
        "device, and wraps it for the strategy.",
        "def build(width: int = 64) -> torch.nn.Module:\n"
        "    layers = torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)\n"
        "    return torch.nn.Sequential(*layers)\n",
    ),
    "data.use": Contract(
        "Your own data",
        'data.use = "my_data.py:build" calls build(**data.args). It returns a map-style data set for '
        "training, or a pair (training, held-out). A data set has __len__ and __getitem__(index). A sample "
        "is a pair (inputs, targets), or a dict of inputs with the targets under labels. If samples differ "
        "in shape, add a method read_batch(indices) that returns a whole batch, as a collate_fn does.",
        "class Sequences(torch.utils.data.Dataset):\n"
        "    def __len__(self) -> int:\n"
        "        return 256\n"
        "\n"
        "    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:\n"
        "        inputs = torch.randn(8, generator=torch.Generator().manual_seed(index))\n"
        "        return inputs, (inputs.sum() > 0).long()\n"
        "\n"
        "    def read_batch(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:\n"
        "        inputs, targets = zip(*(self[index] for index in indices), strict=True)\n"
        "        return torch.stack(inputs), torch.stack(targets)\n"
        "\n"
        "\n"
        "def build() -> tuple[Sequences, Sequences]:\n"
        "    return Sequences(), Sequences()\n",
    ),
    "loss.use": Contract(
        "Your own loss",
        'loss.use = "my_loss.py:loss" calls loss(outputs, targets). It returns the pair (sum, count): the '
        "loss summed over the targets, as a 0-dim tensor, and the number of targets. Rankdeck divides once, "
        "by the count of the whole global batch, so that every strategy minimizes the same mean. With "
        'loss.use = "model" the model computes the loss in its forward pass, as Hugging Face models do.',
        "def loss(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:\n"
        '    total = torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")\n'
        "    return total, targets.numel()\n",
    ),
    "train.optimizer.use": Contract(
        "Your own optimizer",
        'train.optimizer.use = "my_optimizer.py:Plain" names a subclass of torch.optim.Optimizer. Rankdeck '
        "calls Plain(parameters, **options), where the options are the other keys of the table.",
        "class Plain(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr: float = 0.1) -> None:\n"
        '        super().__init__(params, {"lr": lr})\n'
        "\n"
        "    @torch.no_grad()\n"
        "    def step(self, closure=None) -> None:\n"
        "        for group in self.param_groups:\n"
        '            for weight in group["params"]:\n'
        "                if weight.grad is not None:\n"
        '                    weight.add_(weight.grad, alpha=-group["lr"])\n',
    ),
    "rankdeck.log": Contract(
        "Your own metrics",
        "rankdeck.log(name=value, ..., step=None) records numbers as curves of the run. Call it in the "
        "model or the loss, or in a script that runs under `rankdeck run`. Outside a run it does nothing.",
        "def loss(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:\n"
        '    total = torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")\n'
        "    rankdeck.log(largest_logit=outputs.detach().max())\n"
        "    return total, targets.numel()\n",
    ),
}
"""Contracts by name: the key that refers to the user's code, or "rankdeck.log"."""


@dataclass(frozen=True)
class ConfigKey:
    """A key of a configuration.

    `uses` names the choices that have the key: ("ddp", "fsdp") for strategy.sync_batchnorm. It is empty for a
    key that every configuration has.
    """

    path: KeyPath
    field: OptionField
    uses: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)


def table_fields(table: KeyPath, uses: Mapping[KeyPath, str]) -> tuple[OptionField, ...]:
    """Return the keys of a table; none for an unknown table, or for arguments of user code.

    `uses` maps tables to the values of their `use` keys, where these are not the defaults.
    """
    if table and table[-1] == "args" and table[:-1] in CATALOGS:
        return _card_fields(table[:-1], uses)
    model: Any = RunConfig
    for name in table:
        field = model.model_fields.get(name) if _is_table(model) else None
        model = None if field is None else table_type(field.annotation)
    if not _is_table(model):
        return ()
    if table not in CATALOGS:
        return option_fields(model)
    use = OptionField(
        "use", "choice", default_use(table), _explained_choices(table), tuple(CATALOGS[table][1])
    )
    if model is Choice:
        return (use, *_card_fields(table, uses))
    return tuple(use if option.name == "use" else option for option in option_fields(model))


def describe(field: OptionField) -> Phrase:
    """Describe a field's type, bounds and default: 'whole number, 1 or more, 32 by default'."""
    phrases = [phrase(_KINDS[field.kind])]
    low, high = field.minimum, field.maximum
    high = None if high is not None and high >= 2**31 else high  # a technical limit is not worth showing
    above = tr_noop("above {low:.10g}") if field.excludes_minimum else tr_noop("{low:.10g} or more")
    if low is not None and high is not None and not field.excludes_minimum:
        phrases.append(phrase("{low:.10g} to {high:.10g}", low=low, high=high))
    elif low is not None:
        phrases.append(phrase(above, low=low))
    if high is not None and (low is None or field.excludes_minimum):
        phrases.append(phrase("at most {high:.10g}", high=high))
    if has_default(field):
        phrases.append(phrase("{value} by default", value=as_toml(field.default)))
    return phrase("{text}", text=join_phrases(phrases))


def has_default(field: OptionField) -> bool:
    """Return whether the default is worth showing: neither empty nor a table."""
    return field.default not in (None, "", [], {}) and not isinstance(field.default, BaseModel)


def as_toml(value: Any) -> str:
    """Format a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_as_key(key)} = {as_toml(item)}' for key, item in value.items())} }}"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _as_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else as_toml(name)


def example_of(key: ConfigKey) -> str:
    """Return a line of TOML that sets the key: 'train.steps = 500'."""
    field = key.field
    value = field.example
    if value is None:
        value = field.default if has_default(field) else next(iter(field.choices), field.minimum)
    return f"{key.name} = {as_toml(value)}"


def default_use(table: KeyPath) -> str:
    """Return the `use` that a table of choices has if the file does not set it."""
    model: Any = RunConfig()
    for name in table:
        model = getattr(model, name)
    return str(model.use)


def table_type(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in a field's annotation; None if the field is a plain value."""
    kinds = [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def has_args(table: KeyPath) -> bool:
    """Return whether the options of the table's choice are in a subtable, as in model.args."""
    kind = table_type(RunConfig.model_fields[table[0]].annotation)
    return len(table) == 1 and kind is not None and "args" in kind.model_fields


def config_keys() -> list[ConfigKey]:
    """Return every key in schema order; a table's own keys come before the options of its choices."""
    return list(_keys_below(()))


def find_keys(name: str) -> list[ConfigKey]:
    """Return a key, the keys of a table, or the options of a choice ("ddp") by name.

    For a choice without options, return the `use` key that selects it. For a contract whose name is not a key
    ("rankdeck.log"), return an empty list.

    Raises: ConfigError for an unknown name; the advice suggests a similar name.
    """
    keys = config_keys()
    # From exact to loose: `data` is the table, and not the axis strategy.data of a hybrid mesh.
    for matches in (
        lambda key: key.name == name,
        lambda key: key.name.startswith(f"{name}."),
        lambda key: name in key.uses,
        lambda key: key.path[-1] == name,
        lambda key: key.path[-1] == "use" and name in key.field.choices,
    ):
        if matching_keys := [key for key in keys if matches(key)]:
            return matching_keys
    if name in CONTRACTS:
        return []
    known_names = {word for key in keys for word in (key.name, key.path[-1], *key.uses)} | set(CONTRACTS)
    meant = OTHER_NAMES.get(name.lower())
    close = phrase('Did you mean "{word}"?', word=meant) if meant else did_you_mean(name, sorted(known_names))
    raise ConfigError(
        phrase("{option} is not an option.", option=name),
        code="unknown-option",
        advice=close or phrase("`rankdeck config` lists every option."),
    )


def _keys_below(table: KeyPath) -> Iterator[ConfigKey]:
    """Yield the keys of a table, then the options of its choices, then the keys of the tables inside it."""
    inner = []
    for field in table_fields(table, {}):
        path = (*table, field.name)
        if table in CATALOGS and field.name != "use" and not has_args(table):
            continue  # an option of the default choice; _card_keys has the options of all choices
        if field.name != "args" and table_fields(path, {}):
            inner.append(path)
        else:
            yield ConfigKey(path, field)
    if table in CATALOGS:
        yield from _card_keys(table)
    for path in inner:
        yield from _keys_below(path)


def _card_keys(table: KeyPath) -> Iterator[ConfigKey]:
    """Yield the options of all choices of a table; an option that is identical in several choices is yielded
    once."""
    cards: Mapping[str, CatalogSpec] = CATALOGS[table][1]
    prefix = (*table, "args") if has_args(table) else table
    owners: list[tuple[OptionField, list[str]]] = []
    for card in cards.values():
        for field in option_fields(card.options):
            names = next((names for other, names in owners if other == field), None)
            if names is None:
                owners.append((field, [card.name]))
            else:
                names.append(card.name)
    for field, names in owners:
        yield ConfigKey((*prefix, field.name), field, tuple(names))


def _card_fields(table: KeyPath, uses: Mapping[KeyPath, str]) -> tuple[OptionField, ...]:
    card = CATALOGS[table][1].get(uses.get(table) or default_use(table))
    options = getattr(card, "options", None)
    return () if options is None else option_fields(options)


def _explained_choices(table: KeyPath) -> Phrase:
    choices = join_phrases(
        phrase("{name} ({hint})", name=name, hint=phrase(card.hint))
        for name, card in CATALOGS[table][1].items()
    )
    template = (
        tr_noop("{role}: {choices}, or your own code.")
        if table in USER_CODE_TABLES
        else tr_noop("{role}: {choices}.")
    )
    return phrase(template, role=phrase(_ROLES[table]), choices=choices)


def _is_table(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)
