"""Completions and hover texts for configurations, from the engine's own schema.

A key path names a table ("train", "optimizer") or a key of a table. If a table has a `use` key, its other
valid keys depend on the value of `use`. Half-typed text is not valid TOML, so lines are parsed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from rankdeck.base.phrases import Phrase
from rankdeck.config.catalog import OptionField, option_fields
from rankdeck.config.checks import CATALOGS
from rankdeck.config.reference import as_toml, describe, has_args, has_default, table_fields, table_type
from rankdeck.config.schema import RunConfig
from rankdeck_app.language import tr, translate
from rankdeck_app.state.toml_writer import KeyPath

_HEADER = re.compile(r"^\s*\[{1,2}\s*([\w.-]+)\s*\]")
_ASSIGNED = re.compile(r"""([\w.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_INLINE = re.compile(r"^\s*([\w.-]+)\s*=\s*\{([^}]*)")
_KEY = re.compile(r"^\s*([\w.-]+)\s*=\s*(.*)$")
_TYPED_KEY = re.compile(r"[\w.-]*$")


@dataclass(frozen=True)
class CompletionItem:
    """A completion that can replace the word at the cursor."""

    text: str
    detail: str = ""
    documentation: str = ""


@dataclass(frozen=True)
class CompletionList:
    """Completions for a word; `start` is the column at which the word starts."""

    start: int
    word: str
    items: tuple[CompletionItem, ...] = ()


def translated_fields(options: type[BaseModel]) -> tuple[OptionField, ...]:
    """Return the fields of an options model, described in the window's language."""
    return tuple(map(_translate_field, option_fields(options)))


def list_table_fields(key_path: KeyPath, uses: Mapping[KeyPath, str]) -> tuple[OptionField, ...]:
    """Return a table's keys; empty for an unknown table, or for arguments of the user's own code.

    `uses` maps tables to the values of their `use` keys, on which their other keys depend.
    """
    return tuple(map(_translate_field, table_fields(key_path, uses)))


def _translate_field(field: OptionField) -> OptionField:
    return replace(field, text=translate(field.text) if isinstance(field.text, Phrase) else tr(field.text))


def hover_text(text: str, line: int, column: int) -> str:
    """Return a description of the key at a position of the text; empty if the schema has no key there."""
    lines = text.split("\n")
    table, uses = _find_table(lines, line), _find_uses(lines)
    row = lines[line] if line < len(lines) else ""
    if header := _HEADER.match(row):
        key_path = _parse_path(header[1])
        return (
            ""
            if not list_table_fields(key_path, uses)
            else f"[{'.'.join(key_path)}]\n{_table_text(key_path, uses)}"
        )
    for match in re.finditer(r"([\w.-]+)\s*=", row):
        if not match.start(1) <= column <= match.end(1):
            continue
        inside = _INLINE.match(row)
        is_inner = inside is not None and match.start(1) > inside.end(1)
        key_path = (*table, *_parse_path(inside[1] if is_inner and inside else ""), *_parse_path(match[1]))
        return _field_text(key_path, uses)
    return ""


def complete(text: str, line: int, column: int) -> CompletionList:
    """Return the completions at a position of the text."""
    lines = text.split("\n")
    row = (lines[line] if line < len(lines) else "")[:column]
    table, uses = _find_table(lines, line), _find_uses(lines)
    if row.lstrip().startswith("["):
        start = len(row) - len(row.lstrip().lstrip("["))
        return _match_items(
            start, row, _table_items(uses, {_parse_path(m[1]) for m in map(_HEADER.match, lines) if m})
        )
    if row.lstrip().startswith("#") or _is_in_comment(row):
        return CompletionList(column, "")
    inside = _INLINE.match(row)
    if inside is not None and "}" not in row[inside.end(1) :]:
        part_start = max(row.rfind("{"), row.rfind(",")) + 1
        table, segment = (*table, *_parse_path(inside[1])), row[part_start:]
        present = {match[1] for match in _ASSIGNED.finditer(lines[line])}
    else:
        part_start, segment = 0, row
        present = _find_keys([*lines[:line], "", *lines[line + 1 :]], table)
    if assigned := _KEY.match(segment):
        start = part_start + assigned.start(2)
        return _match_items(start, row, _value_items((*table, *_parse_path(assigned[1])), uses))
    typed = _TYPED_KEY.search(segment)
    assert typed is not None
    if segment[: typed.start()].strip():
        return CompletionList(column, "")
    prefix, _, _ = typed[0].rpartition(".")
    key_path = (*table, *_parse_path(prefix))
    start = part_start + typed.start() + (len(prefix) + 1 if prefix else 0)
    keys = [
        field
        for field in list_table_fields(key_path, uses)
        if field.name not in present or field.kind == "table"
    ]
    items = [
        CompletionItem(field.name, translate(describe(field)), field.text)
        for field in keys
        if not _is_header(field)
    ]
    return _match_items(start, row, items)


def _match_items(start: int, row: str, candidates: list[CompletionItem]) -> CompletionList:
    """Return the candidates that start with the word typed in `row` from column `start`, then those that
    contain the word."""
    word = row[start:]
    # A typed value may start with its quotation mark already.
    low = word.lower().lstrip("\"'")
    prefix_matches = [item for item in candidates if item.text.lower().lstrip('"').startswith(low)]
    inside = [item for item in candidates if item not in prefix_matches and low in item.text.lower()]
    return CompletionList(start, word, tuple(prefix_matches + inside))


def _value_items(key_path: KeyPath, uses: Mapping[KeyPath, str]) -> list[CompletionItem]:
    field = _field(key_path, uses)
    if field is None:
        return []
    if field.kind == "bool":
        choices: tuple[Any, ...] = (True, False)
    else:
        choices = field.choices or ((field.default,) if has_default(field) else ())
    cards = CATALOGS[key_path[:-1]][1] if key_path[-1] == "use" and key_path[:-1] in CATALOGS else {}
    hints = {name: tr(card.hint) for name, card in cards.items()}
    return [
        CompletionItem(
            as_toml(choice),
            hints.get(choice, tr("default") if choice == field.default else ""),
            "" if cards else field.text,
        )
        for choice in choices
        if not isinstance(choice, BaseModel | dict)
    ]


def _table_items(uses: Mapping[KeyPath, str], present: set[KeyPath]) -> list[CompletionItem]:
    key_paths = [(name,) for name, field in RunConfig.model_fields.items() if table_type(field.annotation)]
    inner = [key_path for key_path in CATALOGS if len(key_path) > 1]
    args = [(*key_path, "args") for key_path in CATALOGS if has_args(key_path)]
    names = sorted({*key_paths, *inner, *args} - present)
    return [CompletionItem(".".join(key_path), _table_text(key_path, uses)) for key_path in names]


def _table_text(key_path: KeyPath, uses: Mapping[KeyPath, str]) -> str:
    names = [field.name for field in list_table_fields(key_path, uses)]
    return ", ".join(names[:6]) + (" …" if len(names) > 6 else "")


def _field_text(key_path: KeyPath, uses: Mapping[KeyPath, str]) -> str:
    field = _field(key_path, uses)
    if field is None:
        return ""
    choices = f"\n{', '.join(map(as_toml, field.choices))}" if field.choices else ""
    return f"{'.'.join(key_path)}: {translate(describe(field))}{choices}\n{field.text}".rstrip()


def _field(key_path: KeyPath, uses: Mapping[KeyPath, str]) -> OptionField | None:
    return next(
        (field for field in list_table_fields(key_path[:-1], uses) if field.name == key_path[-1]), None
    )


def _is_header(field: OptionField) -> bool:
    """Check whether a field is written as a table header; the optimizer and the schedule are written on one
    line instead."""
    return field.kind == "table" and field.name not in ("optimizer", "schedule")


def _parse_path(dotted: str) -> KeyPath:
    return tuple(key for key in dotted.split(".") if key)


def _find_table(lines: list[str], line: int) -> KeyPath:
    """Return the table that contains a line."""
    headers = (_HEADER.match(row) for row in reversed(lines[:line]))
    return next((_parse_path(match[1]) for match in headers if match), ())


def _find_keys(lines: list[str], table: KeyPath) -> set[str]:
    keys = set[str]()
    here: KeyPath = ()
    for row in lines:
        if header := _HEADER.match(row):
            here = _parse_path(header[1])
        elif here == table and (key := _KEY.match(row)):
            keys.add(key[1])
    return keys


def _find_uses(lines: list[str]) -> dict[KeyPath, str]:
    """Return the value of each table's `use` key, by table."""
    uses: dict[KeyPath, str] = {}
    here: KeyPath = ()
    for row in lines:
        if header := _HEADER.match(row):
            here = _parse_path(header[1])
            continue
        inside = _INLINE.match(row)
        table = (*here, *_parse_path(inside[1])) if inside else here
        for match in _ASSIGNED.finditer(inside[2] if inside else row.partition("#")[0]):
            *path, last = _parse_path(match[1])
            if last == "use":
                uses[(*table, *path)] = match[2] or match[3] or ""
    return uses


def _is_in_comment(row: str) -> bool:
    return "#" in re.sub(r"\"[^\"]*\"|'[^']*'", "", row)
