"""Write the reference pages: docs/configuration.md and docs/commands.md (`make pages`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from rankdeck.cli.app import COMMAND, HELP_OPTIONS
from rankdeck.config.reference import CONTRACTS, ConfigKey, as_toml, config_keys, describe, example_of

_SPECIAL = re.compile(r"[<*]|__")
DOCS = Path(__file__).resolve().parents[1] / "docs"
CONFIGURATION = """\
# Configuration

```sh
rankdeck config
rankdeck config train.steps
```

A configuration is a TOML file. Every key is optional: the defaults train a small MLP on handwritten digits.
The first command lists all keys; the second explains one key, a table (`train`) or a choice (`ddp`).
`rankdeck validate FILE` reports every mistake of a file at once, and `--set KEY=VALUE` changes a key on the
command line. [Your own model and data](model-and-data.md) shows a complete example with all its files.

In the tables, `(ddp, fsdp)` after a key means that only these choices have it. `make pages` writes this page.
"""
COMMANDS = """\
# Commands

```sh
rankdeck --help
rankdeck plan --help
```

Exit codes: 0 success, 1 the run failed, 2 wrong input, 3 the machine lacks something, 130 interrupted.

`rankdeck -C FOLDER COMMAND` runs a command in another folder, and `rankdeck --host NAME COMMAND` on another
host. `rankdeck --log-level debug COMMAND` logs what Rankdeck's own processes do. `make pages` writes this
page from the help of the commands.
"""


def configuration() -> str:
    """Return the reference of every key and contract: a section for each table and each contract."""
    parts = [CONFIGURATION]
    for table, keys in groupby(config_keys(), lambda key: ".".join(key.path[:-1])):
        parts += [f"## {f'[{table}]' if table else 'Top level'}", ""]
        parts += _table(("key", "value", "meaning", "example"), map(_row, keys))
    for contract in CONTRACTS.values():
        parts += [
            f"## {contract.title}",
            "",
            _prose(contract.text),
            "",
            f"```python\n{contract.example}```",
            "",
        ]
    return "\n".join(parts)


def commands() -> str:
    """Return the reference of the commands: help, arguments and options of each."""
    parts = [COMMANDS]
    for name, command in _visible_commands():
        parts += [f"## rankdeck {name}", "", (command.help or "").partition("\n\n")[0].replace("\n", " "), ""]
        parts += _table(("argument or option", "meaning"), _parameters(command))
    return "\n".join(parts)


def _visible_commands() -> Iterator[tuple[str, Any]]:
    """Yield (name, command); the commands of a group follow the group, as "queue add"."""
    for name, command in COMMAND.commands.items():
        if not command.hidden:
            yield name, command
            inner = getattr(command, "commands", {})
            yield from ((f"{name} {key}", sub) for key, sub in inner.items() if not sub.hidden)


def _parameters(command: Any) -> Iterator[tuple[str, str]]:
    context = typer.Context(command, help_option_names=HELP_OPTIONS)
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            yield f"`{(parameter.metavar or parameter.name or '').upper()}`", _prose(parameter.help or "")
        elif (record := parameter.get_help_record(context)) is not None:
            yield f"`{record[0]}`", _prose(record[1])


def _row(key: ConfigKey) -> tuple[str, ...]:
    field = key.field
    value = str(describe(field))
    if field.kind == "choice":
        value = value.replace("one of these", ", ".join(f"`{as_toml(one)}`" for one in field.choices), 1)
    owners = f" ({', '.join(key.uses)})" if key.uses else ""
    return f"`{key.path[-1]}`{owners}", value, _prose(field.text), f"`{example_of(key)}`"


def _prose(text: str) -> str:
    """Escape what Markdown would take for HTML or emphasis; code in backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _SPECIAL.sub(_escaped, part) for part in parts)


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"\\{sign}" for sign in found[0])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [[cell.replace("|", "&#124;").replace("\n", " ") for cell in row] for row in (heads, *rows)]
    cells.insert(1, ["---"] * len(heads))
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


PAGES = {"configuration.md": configuration, "commands.md": commands}


def main() -> int:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page().rstrip("\n") + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
