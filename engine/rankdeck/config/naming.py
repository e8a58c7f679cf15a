"""What a run is called where no person named it: what it is, as in "GPT · DDP · 4".

The name of a preset is nobody's: whoever starts from gpt-dp and chooses another strategy does not run
"GPT DP". Of runs that are called the same, a later one is told apart by the first option in which it differs
from the earlier one, as in "GPT · DDP · 4 · lr 0.001", or by a number where there is none.
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
# They say how a run was asked for, not what it is.
_IGNORED_KEYS = {"name", "folder", "launch"}


def explicit_name(tables: Mapping[str, Any], stem: str) -> str:
    """What a person called it: the name in the file, else the file's own; empty where that is a preset's."""
    name = tables.get("name", stem[:MAX_NAME_LENGTH])
    name = name.strip() if isinstance(name, str) else ""
    return "" if name in _preset_names() else name


@cache
def _preset_names() -> frozenset[str]:
    cards = presets.list_presets()
    return frozenset([card.name for card in cards] + [card.title for card in cards])


def title_of(config: RunConfig, num_devices: int | None = None) -> str:
    """What a person calls it, else 'GPT · DDP · 4': model, strategy and the number of devices, if there are
    several; without `num_devices` as far as the configuration tells."""
    if config.name:
        return config.name
    strategy = config.strategy_spec.title
    num_devices = 1 if config.strategy_spec.one_device else num_devices or config.known_count
    count = [str(num_devices)] if num_devices is not None and num_devices > 1 else []
    return SEPARATOR.join([_model_title(config.model.use), strategy, *count])


def race_title(config: RunConfig, num_devices: int | None) -> str:
    """What a race is called: what a person calls the training, else 'Race · GPT · 4'."""
    what = [config.name] if config.name else [_model_title(config.model.use), str(num_devices or "")]
    return SEPARATOR.join(filter(None, ["Race", *what]))


def _model_title(use: str) -> str:
    """A card's title; of a person's own "path/to/file.py:make_net", make_net."""
    card = MODELS.get(use)
    return card.title if card is not None else use.rpartition(":")[2] or Path(use).stem


def unique_title(
    name: str, tables: Mapping[str, Any], others: Mapping[str, Callable[[], Mapping[str, Any]]]
) -> str:
    """`name`, or where another has it, the name with the first option in which this one differs from that.

    `tables` are the configuration's; `others` read those of the runs whose name begins so, by their names.
    """
    longer = name
    for _ in range(_MAX_DIFFERENCES):
        other = others.get(longer)
        if other is None:
            return longer
        theirs = other()
        found = (_difference(place, value, _value_at(theirs, place)) for place, value in _leaves(tables))
        words = next(filter(None, found), "")
        if not words:
            break
        longer = f"{longer}{SEPARATOR}{words}"
    number = 2
    while f"{longer} #{number}" in others:
        number += 1
    return f"{longer} #{number}"


def _leaves(tables: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tables.items():
        if not place and key in _IGNORED_KEYS:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, (*place, key))
        else:
            yield (*place, key), value


def _value_at(tables: Any, place: Sequence[str]) -> Any:
    for key in place:
        tables = tables.get(key) if isinstance(tables, Mapping) else None
    return tables


def _difference(place: Sequence[str], value: Any, other: Any) -> str:
    """'lr 0.001', 'optimizer sgd', of a script's arguments 'epochs 3'; empty where the other has the same."""
    if value == other:
        return ""
    if isinstance(value, list | tuple):
        known = set(map(str, other)) if isinstance(other, list | tuple) else set()
        at = next((at for at, item in enumerate(value) if str(item) not in known), None)
        if at is None:
            return ""
        before = str(value[at - 1]) if at else ""
        return _shorten(f"{before} {value[at]}" if before.startswith("-") else str(value[at]))
    key = place[-2] if place[-1] in ("use", "run") and len(place) > 1 else place[-1]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key} {_shorten(text)}"


def _shorten(text: str) -> str:
    """On one line, without the dashes of an option and the folders of a path."""
    words = text.lstrip("-").replace("=", " ").rpartition("/")[2].split()
    text = " ".join(words)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH].rstrip()}…"
