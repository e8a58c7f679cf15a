"""Whether a configuration can name what a script calls, and with which arguments.

A configuration names "path/to/file.py:name" or "package.module:name", and gives arguments by their names. So
the thing has to lie at the top of a file that trains nothing when it is imported, and its arguments have to
be plain values. Where it does not, a `Finding` says what a person writes instead.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankdeck.adopt.arguments import UNKNOWN, ScriptValues
from rankdeck.adopt.source import Definition, ScriptSource
from rankdeck.adopt.tracing import Origin, origin_of, parameters_of
from rankdeck.config.checks import FILL_IN


@dataclass
class Finding:
    """One value of a configuration, or FILL_IN; `notes` are the comment above it."""

    value: Any = FILL_IN
    args: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Namer:
    """Names what the script calls, for a configuration that lies in `folder`."""

    values: ScriptValues
    folder: Path

    def named(self, origin: Origin, wrapper: str) -> Finding:
        """A call's function or class with its arguments. `wrapper` is what a function of the person's own
        would be called where the call itself cannot be named."""
        call = origin.node
        if not isinstance(call, ast.Call) or origin.index is not None:
            return self.by_hand(origin, wrapper)
        dotted = origin.source.dotted(call.func) or ""
        found = origin.source.definition_of(dotted)
        if found is None:
            return self._installed(origin, call, dotted) or self.by_hand(origin, wrapper)
        source, definition = found
        if source.trains_at_import is not None:
            return self._unsafe(origin, source, wrapper)
        args, unknown = self._bound(origin, call, definition)
        if args is None:
            return self.by_hand(origin, wrapper)
        place = source.place(definition)
        return Finding(f"{self.file(source)}:{definition.name}", args, [f"{place}.", *unknown])

    def file(self, source: ScriptSource) -> str:
        """A file as a configuration in `folder` writes it; a module where only that can be imported."""
        relative = Path(os.path.relpath(source.path, self.folder))
        if source.is_in_package and relative.parts[0] != "..":
            return ".".join(relative.with_suffix("").parts)
        return str(source.path if relative.parts[:2] == ("..", "..") else relative)

    def by_hand(self, origin: Origin, wrapper: str) -> Finding:
        """A function that a person writes, with the script's own expression in it."""
        return Finding(
            notes=[
                f"{origin.place} makes it with: {origin.text}",
                "Put that into a function at the top of a file that trains nothing when it is imported,",
                f'and name it here as "file.py:{wrapper}":',
                f"    def {wrapper}():",
                f"        return {origin.code}",
            ]
        )

    def _unsafe(self, origin: Origin, source: ScriptSource, wrapper: str) -> Finding:
        trains = source.trains_at_import
        assert trains is not None and isinstance(origin.node, ast.Call)
        name = (origin.source.dotted(origin.node.func) or wrapper).rpartition(".")[2]
        guard = 'if __name__ == "__main__":'
        return Finding(
            notes=[
                f"{origin.place} makes it with: {origin.text}",
                f"{source.path.name} trains when it is imported ({source.place(trains)}), so that nothing in",
                f"it can be named. Put its training below `{guard}`,",
                f'or move {name} to a file of its own, and write "that_file.py:{name}".',
            ]
        )

    def _installed(self, origin: Origin, call: ast.Call, dotted: str) -> Finding | None:
        """A function or class of a package, where all arguments are given by name and plain."""
        module, _, name = dotted.rpartition(".")
        is_import = dotted.partition(".")[0] in {name.partition(".")[0] for name in _imported(origin.source)}
        if not module or not is_import or module.rpartition(".")[2][:1].isupper() or call.args:
            return None
        args, unknown = self._given(origin, {}, call)
        if args is None or unknown:
            return None
        return Finding(f"{module}:{name}", args, [f"{origin.place}."])

    def _bound(
        self, origin: Origin, call: ast.Call, definition: Definition
    ) -> tuple[dict[str, object] | None, list[str]]:
        """(arguments by name, notes on those that are unknown); None where a name cannot be given."""
        defaults = _parameters(definition)
        if len(call.args) > len(defaults):
            return None, []
        positional = dict(zip(defaults, call.args, strict=False))
        return self._given(origin, positional, call)

    def _given(
        self, origin: Origin, positional: dict[str, ast.expr], call: ast.Call
    ) -> tuple[dict[str, object] | None, list[str]]:
        given = dict(positional)
        for keyword in call.keywords:
            if keyword.arg is None:
                return None, []
            given[keyword.arg] = keyword.value
        if any(isinstance(node, ast.Starred) for node in given.values()):
            return None, []
        args: dict[str, object] = {}
        unknown = []
        for name, node in given.items():
            value = self.values.of(origin.source, node)
            if value is None:
                unknown.append(f"{name} is None there, which a configuration cannot say: it is left out.")
            elif is_plain(value):
                args[name] = value
            elif _is_object(origin.source, node):
                return None, []
            else:
                args[name] = FILL_IN
                unknown.append(f"{name} is {ast.unparse(node)} there ({origin.place}).")
        return args, unknown


def is_plain(value: Any) -> bool:
    """Whether TOML can say it."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(is_plain, value.values()))
    return value is not UNKNOWN and isinstance(value, bool | int | float | str) and value != FILL_IN


def _is_object(source: ScriptSource, node: ast.expr) -> bool:
    """Whether it is made by a class of the script's own, which no configuration can say."""
    made = origin_of(source, node)
    found = None
    if isinstance(made.node, ast.Call):
        found = made.source.definition_of(made.source.dotted(made.node.func) or "")
    return found is not None and isinstance(found[1], ast.ClassDef)


def _imported(source: ScriptSource) -> list[str]:
    return list(source.imports.values())


def _parameters(definition: Definition) -> dict[str, ast.expr | None]:
    """What a call of it takes, in order."""
    if not isinstance(definition, ast.ClassDef):
        return parameters_of(definition)
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return dict(list(parameters_of(node).items())[1:])
    return {}
