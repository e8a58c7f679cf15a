"""Decides whether and with which arguments a configuration can refer to a function or class that a script
calls.

A reference is "path/to/file.py:name" or "package.module:name", and arguments are passed by name. So the
function or class must be at the top level of a file that does not start training when it is imported, and its
arguments must be plain values. Otherwise, a `Finding` describes what the user should write.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankdeck.adopt.arguments import UNKNOWN, ScriptValues
from rankdeck.adopt.source import Definition, ScriptSource
from rankdeck.adopt.tracing import Origin, parameters_of, trace_origin
from rankdeck.config.checks import PLACEHOLDER


@dataclass
class Finding:
    """A value for a configuration, or PLACEHOLDER; `notes` become the comment above the value."""

    value: Any = PLACEHOLDER
    args: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Namer:
    """Builder of references to the functions and classes that the script calls, for a configuration in
    `folder`."""

    values: ScriptValues
    folder: Path

    def name_call(self, origin: Origin, wrapper: str) -> Finding:
        """Return a reference to the function or class that the script calls at `origin`, with its arguments.

        If a configuration cannot refer to it, suggest that the user write a function called `wrapper`.
        """
        call = origin.node
        if not isinstance(call, ast.Call) or origin.index is not None:
            return self.suggest_factory(origin, wrapper)
        dotted = origin.source.dotted_name(call.func) or ""
        located = origin.source.find_definition(dotted)
        if located is None:
            return self._name_installed(origin, call, dotted) or self.suggest_factory(origin, wrapper)
        source, definition = located
        # A rank imports the file that a configuration names.
        if source.training_statement is not None:
            return self._explain_training_import(origin, source, wrapper)
        args, unknown = self._bind_arguments(origin, call, definition)
        if args is None:
            return self.suggest_factory(origin, wrapper)
        location = source.location(definition)
        return Finding(f"{self.file_reference(source)}:{definition.name}", args, [f"{location}.", *unknown])

    def file_reference(self, source: ScriptSource) -> str:
        """Return a file's path relative to `folder`, or its module name if it is part of a package."""
        relative = Path(os.path.relpath(source.path, self.folder))
        # Modules are imported from the configuration's folder, so a file above it has no module name there.
        if source.is_in_package and relative.parts[0] != "..":
            return ".".join(relative.with_suffix("").parts)
        return str(source.path if relative.parts[:2] == ("..", "..") else relative)

    def suggest_factory(self, origin: Origin, wrapper: str) -> Finding:
        """Suggest that the user write a function called `wrapper` that returns the value of the script's
        expression at `origin`."""
        return Finding(
            notes=[
                f"Created in {origin.location}: {origin.text}",
                "Put this into a function at the top level of a file that does not train when imported, and "
                f'name it here as "file.py:{wrapper}":',
                f"    def {wrapper}():",
                f"        return {origin.code}",
            ]
        )

    def _explain_training_import(self, origin: Origin, source: ScriptSource, wrapper: str) -> Finding:
        trains = source.training_statement
        assert trains is not None and isinstance(origin.node, ast.Call)
        name = (origin.source.dotted_name(origin.node.func) or wrapper).rpartition(".")[2]
        guard = 'if __name__ == "__main__":'
        return Finding(
            notes=[
                f"Created in {origin.location}: {origin.text}",
                f"Importing {source.path.name} may start training ({source.location(trains)}), so a "
                "configuration cannot refer to anything in it.",
                f"Put the training below `{guard}`, or move {name} to another file and write "
                f'"that_file.py:{name}".',
            ]
        )

    def _name_installed(self, origin: Origin, call: ast.Call, dotted: str) -> Finding | None:
        """Return a reference to a function or class of a package if all arguments are keyword arguments with
        plain values."""
        module, _, name = dotted.rpartition(".")
        is_import = dotted.partition(".")[0] in {
            name.partition(".")[0] for name in _imported_names(origin.source)
        }
        # A capitalized last part is a class, whose methods a configuration cannot name. Positional arguments
        # of a package's function have no known names.
        if not module or not is_import or module.rpartition(".")[2][:1].isupper() or call.args:
            return None
        args, unknown = self._evaluate_arguments(origin, {}, call)
        if args is None or unknown:
            return None
        return Finding(f"{module}:{name}", args, [f"{origin.location}."])

    def _bind_arguments(
        self, origin: Origin, call: ast.Call, definition: Definition
    ) -> tuple[dict[str, object] | None, list[str]]:
        """Return (arguments by name, notes on unknown values); (None, []) if the arguments cannot be bound to
        names."""
        defaults = _call_parameters(definition)
        if len(call.args) > len(defaults):
            return None, []
        positional = dict(zip(defaults, call.args, strict=False))
        return self._evaluate_arguments(origin, positional, call)

    def _evaluate_arguments(
        self, origin: Origin, positional: dict[str, ast.expr], call: ast.Call
    ) -> tuple[dict[str, object] | None, list[str]]:
        nodes = dict(positional)
        for keyword in call.keywords:
            if keyword.arg is None:
                return None, []
            nodes[keyword.arg] = keyword.value
        if any(isinstance(node, ast.Starred) for node in nodes.values()):
            return None, []
        args: dict[str, object] = {}
        unknown = []
        for name, node in nodes.items():
            value = self.values.evaluate(origin.source, node)
            # TOML has no null.
            if value is None:
                unknown.append(
                    f"{name} is None in the script. It is left out here, because TOML has no null."
                )
            elif is_toml_value(value):
                args[name] = value
            elif _is_user_object(origin.source, node):
                return None, []
            else:
                args[name] = PLACEHOLDER
                unknown.append(f"{name} is {ast.unparse(node)} in the script ({origin.location}).")
        return args, unknown


def is_toml_value(value: Any) -> bool:
    """Return whether TOML can represent the value."""
    if isinstance(value, list | tuple):
        return all(map(is_toml_value, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(is_toml_value, value.values()))
    # A literal "?" would be read as a value that the user still has to fill in.
    return value is not UNKNOWN and isinstance(value, bool | int | float | str) and value != PLACEHOLDER


def _is_user_object(source: ScriptSource, node: ast.expr) -> bool:
    """Return whether the value is an instance of a class that the script defines; no configuration can
    express such a value."""
    origin = trace_origin(source, node)
    definition = None
    if isinstance(origin.node, ast.Call):
        definition = origin.source.find_definition(origin.source.dotted_name(origin.node.func) or "")
    return definition is not None and isinstance(definition[1], ast.ClassDef)


def _imported_names(source: ScriptSource) -> list[str]:
    return list(source.imports.values())


def _call_parameters(definition: Definition) -> dict[str, ast.expr | None]:
    """Return the parameters that a caller can set, in signature order, with their defaults or None."""
    if not isinstance(definition, ast.ClassDef):
        return parameters_of(definition)
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return dict(list(parameters_of(node).items())[1:])
    return {}
