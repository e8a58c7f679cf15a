"""`rankdeck config`: print the reference of all configuration keys, as text or JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from rankdeck.cli import console
from rankdeck.cli.options import AsJson

if TYPE_CHECKING:
    from rankdeck.config.reference import ConfigKey


def config(
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="A key, a table or a choice, as in train.steps, train or ddp."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Explain the keys of a configuration."""
    from rankdeck.config.reference import CONTRACTS, config_keys, find_keys

    keys = config_keys() if key is None else find_keys(key)
    contracts = {name: contract for name, contract in CONTRACTS.items() if key in (None, name)}
    if as_json:
        contract_fields = {name: dataclasses.asdict(contract) for name, contract in contracts.items()}
        console.print_json(
            {"keys": [_key_to_json(config_key) for config_key in keys], "contracts": contract_fields}
        )
        return 0
    out = console.out()
    for config_key in keys:
        out.print(_key_line(config_key) if key is None else _key_text(config_key), soft_wrap=True)
    if key is None:
        names = ", ".join(contracts)
        out.print(f"\nExplain a key: rankdeck config train.steps\nFor your own code: {names}", style="dim")
        return 0
    for contract in contracts.values():
        out.print(f"{contract.text}\n\n{contract.example}", soft_wrap=True)
    return 0


def _key_line(key: ConfigKey) -> Text:
    from rankdeck.config.reference import describe

    owners = f"  ({', '.join(key.uses)})" if key.uses else ""
    line = Text(key.name, style="bold cyan").append(f"  {describe(key.field)}", style="default not bold")
    return line.append(owners, style="dim not bold")


def _key_text(key: ConfigKey) -> Text:
    from rankdeck.config.reference import as_toml, example_of

    lines = [_key_line(key), Text(f"  {key.field.text}")] if key.field.text else [_key_line(key)]
    if key.field.choices and key.field.kind == "choice":
        lines.append(Text(f"  Choices: {', '.join(map(as_toml, key.field.choices))}"))
    lines.append(Text(f"  Example: {example_of(key)}\n", style="dim"))
    return Text("\n").join(lines)


def _key_to_json(key: ConfigKey) -> dict[str, Any]:
    from rankdeck.config.reference import example_of, has_default

    field = key.field
    return {
        "key": key.name,
        "type": field.kind,
        "default": field.default if has_default(field) else None,
        "minimum": field.minimum,
        "excludes_minimum": field.excludes_minimum,
        "maximum": field.maximum,
        "choices": list(field.choices),
        "uses": list(key.uses),
        "text": str(field.text),
        "example": example_of(key),
    }
