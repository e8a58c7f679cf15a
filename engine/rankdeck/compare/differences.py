"""In what runs differ: keys of their configurations, and what is not configuration.

Only what is not the same in all of them has a row. A key that a run does not have is None.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rankdeck.base.phrases import phrase
from rankdeck.compare.figures import ComparedRun
from rankdeck.compare.words import devices_in_words
from rankdeck.config.catalog import (
    DATA,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    STRATEGIES,
    CatalogCard,
    option_fields,
)

_LEFT_OUT = ("name",)
"""It is what a run is called, which stands above everything."""


_CARDS: tuple[tuple[tuple[str, ...], Mapping[str, CatalogCard], tuple[str, ...]], ...] = (
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


def of_configurations(runs: Sequence[ComparedRun]) -> list[Difference]:
    """In the order of the first configuration that has the key. What only some cards have as an option (the
    buckets of DDP) counts where it is not what the card says by itself."""
    told = [run.background.tables or {} for run in runs]
    keys = [dict(leaves(tables)) for tables in told]
    defaults = [_defaults(tables) for tables in told]
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


def of_the_rest(runs: Sequence[ComparedRun]) -> list[Difference]:
    """Where and with what they ran, and how they were asked for; what is not known differs from nothing."""
    told = [dict(rest_of(run)) for run in runs]
    rows = [Difference(key, tuple(one.get(key) for one in told)) for key in _keys(told)]
    return [row for row in rows if len(set(row.values) - {None}) > 1]


def _keys(told: Sequence[Mapping[str, str]]) -> Iterator[str]:
    return iter(dict.fromkeys(key for one in told for key in one))


def _defaults(tables: Mapping[str, Any]) -> dict[str, str]:
    """What the options of the cards that a configuration names are where nobody says otherwise."""
    found: dict[str, str] = {}
    for place, cards, beside in _CARDS:
        table: Any = tables
        for key in place:
            table = table.get(key) if isinstance(table, Mapping) else None
        use = table.get("use") if isinstance(table, Mapping) else None
        card = cards.get(use) if isinstance(use, str) else None
        for option in option_fields(card.options) if card is not None else ():
            found[".".join([*place, *beside, option.name])] = _written(option.default)
    return found


def leaves(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        dotted = f"{place}.{key}" if place else str(key)
        if dotted in _LEFT_OUT:
            continue
        if isinstance(value, Mapping) and (value or dotted.endswith(".args")):
            yield from leaves(value, dotted)
        elif dotted == "script.args" and isinstance(value, list):
            yield dotted, shlex.join(map(str, value))
        else:
            yield dotted, _written(value)


def _written(value: object) -> str:
    """As in a configuration, without the quotes of a string."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def rest_of(run: ComparedRun) -> Iterator[tuple[str, str]]:
    background = run.background
    yield phrase("devices"), devices_in_words(run) or phrase("not known yet")
    versions = {**background.versions, **(run.observed.get("versions") or {})}
    yield from (
        (phrase("version of {package}", package=name), str(version)) for name, version in versions.items()
    )
    for what, words in (
        ("Python", background.python),
        (phrase("host"), background.host),
        (phrase("commit"), background.commit),
        (phrase("command line"), background.command_line),
        (phrase("model that was seen"), run.observed.get("model")),
        (phrase("data that was seen"), run.observed.get("dataset")),
        (phrase("optimizer that was seen"), run.observed.get("optimizer")),
        (phrase("precision that was seen"), run.observed.get("precision")),
    ):
        if words:
            yield what, str(words)
