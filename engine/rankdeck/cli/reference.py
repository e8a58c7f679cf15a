"""`rankdeck config`: the reference of every key of a configuration, as text or as JSON."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from rankdeck.cli import console
from rankdeck.cli.options import AsJson
from rankdeck.config.reference import (
    CONTRACTS,
    ConfigKey,
    as_toml,
    config_keys,
    describe,
    example_of,
    find_keys,
    has_default,
)


def config(
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="A key, a table or a choice, as in train.steps, train or ddp."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Explain the keys of a configuration."""
    contract = CONTRACTS.get(key or "")
    keys = config_keys() if key is None else [] if key == "rankdeck.log" else find_keys(key)
    if as_json:
        console.as_json({"keys": [_as_json(one) for one in keys]})
    else:
        out = console.out()
        for one in keys:
            out.print(_short(one) if key is None else _long(one), soft_wrap=True)
        if contract is not None:
            out.print(f"{contract.text}\n\n{contract.example}", soft_wrap=True)
        if key is None:
            out.print("\nExplain one: rankdeck config train.steps", style="dim")
    return 0


def _short(key: ConfigKey) -> Text:
    line = Text(key.name, style="bold cyan").append(f"  {describe(key.field)}", style="default not bold")
    return line.append(_owners(key), style="dim not bold")


def _long(key: ConfigKey) -> Text:
    lines = [_short(key), Text(f"  {key.field.text}")] if key.field.text else [_short(key)]
    if key.field.choices and key.field.kind == "choice":
        lines.append(Text(f"  Choices: {', '.join(map(as_toml, key.field.choices))}"))
    lines.append(Text(f"  Example: {example_of(key)}\n", style="dim"))
    return Text("\n").join(lines)


def _owners(key: ConfigKey) -> str:
    return f"  ({', '.join(key.uses)})" if key.uses else ""


def _as_json(key: ConfigKey) -> dict[str, Any]:
    field = key.field
    return {
        "key": key.name,
        "type": field.kind,
        "default": field.default if has_default(field) else None,
        "minimum": field.minimum,
        "maximum": field.maximum,
        "choices": list(field.choices),
        "uses": list(key.uses),
        "text": str(field.text),
        "example": example_of(key),
    }
