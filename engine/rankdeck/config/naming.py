"""Builds a run's name from its model, strategy and device count if the user chose none: "GPT · DDP · 4".

A preset's name is not used: a run that starts from gpt-dp with another strategy is not "GPT DP". If an
earlier run has the same name, the first option in which the runs differ is appended, as in "GPT · DDP · 4 ·
lr 0.001", or a number if there is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankdeck.base.names import MAX_NAME_LENGTH
from rankdeck.config import presets
from rankdeck.config.catalog import MODELS

if TYPE_CHECKING:
    from rankdeck.config.schema import RunConfig

SEPARATOR = " · "
_MAX_VALUE_LENGTH = 24
_MAX_DIFFERENCES = 4
# These keys describe how a run is launched, not what it trains.
_IGNORED_KEYS = {"name", "folder", "launch"}


def explicit_name(tables: Mapping[str, Any], stem: str) -> str:
    """Return the name that the user chose: the name in the file or, if there is none, the file's stem. Return
    an empty string for a preset's name."""
    name = tables.get("name", stem[:MAX_NAME_LENGTH])
    name = name.strip() if isinstance(name, str) else ""
    return "" if name in _preset_names() else name


@cache
def _preset_names() -> frozenset[str]:
    cards = presets.list_presets()
    return frozenset([card.name for card in cards] + [card.title for card in cards])


def title_of(config: RunConfig, num_devices: int | None = None) -> str:
    """Return the name that the user chose, else 'GPT · DDP · 4': model, strategy and device count.

    The count is left out if it is 1 or unknown. `num_devices` defaults to the configured count.
    """
    if config.name:
        return config.name
    strategy = config.strategy_spec.title
    num_devices = 1 if config.strategy_spec.one_device else num_devices or config.known_count
    count = [str(num_devices)] if num_devices is not None and num_devices > 1 else []
    return SEPARATOR.join([_model_title(config.model.use), strategy, *count])


def race_title(config: RunConfig, num_devices: int | None) -> str:
    """Return a race's name: 'Race' and the configuration's name if the user chose one, else 'Race · GPT ·
    4'."""
    what = [config.name] if config.name else [_model_title(config.model.use), str(num_devices or "")]
    return SEPARATOR.join(filter(None, ["Race", *what]))


def _model_title(use: str) -> str:
    """Return the title of a catalog model; for user code "path/to/file.py:make_net" return make_net."""
    card = MODELS.get(use)
    return card.title if card is not None else use.rpartition(":")[2] or Path(use).stem


def unique_title(
    name: str, tables: Mapping[str, Any], others: Mapping[str, Callable[[], Mapping[str, Any]]]
) -> str:
    """Return `name`; if another run has that name, append the first option in which the runs differ.

    `tables` is this run's configuration; `others` maps names that start with `name` to functions that read
    those runs' tables.
    """
    longer = name
    for _ in range(_MAX_DIFFERENCES):
        other = others.get(longer)
        if other is None:
            return longer
        theirs = other()
        differences = (
            _difference(key_path, value, _value_at(theirs, key_path)) for key_path, value in _leaves(tables)
        )
        difference = next(filter(None, differences), "")
        if not difference:
            break
        longer = f"{longer}{SEPARATOR}{difference}"
    number = 2
    while f"{longer} #{number}" in others:
        number += 1
    return f"{longer} #{number}"


def _leaves(
    tables: Mapping[str, Any], key_path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tables.items():
        if not key_path and key in _IGNORED_KEYS:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, (*key_path, key))
        else:
            yield (*key_path, key), value


def _value_at(tables: Any, key_path: Sequence[str]) -> Any:
    for key in key_path:
        tables = tables.get(key) if isinstance(tables, Mapping) else None
    return tables


def _difference(key_path: Sequence[str], value: Any, other: Any) -> str:
    """Return a changed option as text such as 'lr 0.001' or 'optimizer sgd' ('epochs 3' for a script's
    argument); an empty string if `value` is equal to `other` or a list without new items."""
    if value == other:
        return ""
    if isinstance(value, list | tuple):
        other_items = set(map(str, other)) if isinstance(other, list | tuple) else set()
        at = next((at for at, item in enumerate(value) if str(item) not in other_items), None)
        if at is None:
            return ""
        # In a script's arguments the option is the item before its value: --epochs 3.
        before = str(value[at - 1]) if at else ""
        return _shorten(f"{before} {value[at]}" if before.startswith("-") else str(value[at]))
    # "optimizer sgd" says more in a list than "use sgd".
    key = key_path[-2] if key_path[-1] in ("use", "run") and len(key_path) > 1 else key_path[-1]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key} {_shorten(text)}"


def _shorten(text: str) -> str:
    """Shorten text to one line, dropping an option's leading dashes and a path's folders."""
    words = text.lstrip("-").replace("=", " ").rpartition("/")[2].split()
    text = " ".join(words)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH].rstrip()}…"
