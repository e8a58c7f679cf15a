"""A script's text as a tree, read and never executed: its names, its imports, what an import of it would run.

Files beside the script that it imports are read in the same way. Read tracing.py next.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from rankdeck.base import files

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Module
Definition = Function | ast.ClassDef

_TRAINING_CALLS = {"backward", "step", "fit", "train", "launch"}
_HARMLESS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Pass,
    ast.Assert,
)


class Assignment(NamedTuple):
    """What a name is given: a value, or its `index`. `end` is where the statement ends (line, column)."""

    end: tuple[int, int]
    value: ast.expr
    entry: int | None


@dataclass
class ScriptSource:
    """One file. `folder` is where its imports are looked for."""

    path: Path
    text: str
    tree: ast.Module
    folder: Path
    importer: ScriptSource | None = None
    """The file that imports this one, whose calls pass arguments to its functions."""
    _local_modules: dict[str, ScriptSource | None] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, folder: Path, importer: ScriptSource | None = None) -> ScriptSource | None:
        """The file; None where it cannot be read or is no Python."""
        try:
            text = files.read_text(path)
            return cls(path, text, ast.parse(text), folder, importer)
        except (OSError, ValueError, SyntaxError, RecursionError):
            return None

    def __hash__(self) -> int:
        return hash(self.path)

    def location(self, node: ast.AST) -> str:
        """'train.py, line 12'."""
        return f"{self.path.name}, line {getattr(node, 'lineno', 1)}"

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Functions and classes at the top level."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return {node.name: node for node in self.tree.body if isinstance(node, kinds)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted name, of every import in the file."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    found[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and (module := self._imported_from(node)):
                if node.names[0].name == "*":
                    other = self.local_module(module)
                    for name in other.definitions if other is not None else ():
                        found.setdefault(name, f"{module}.{name}")
                    continue
                found.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names})
        return found

    def _imported_from(self, node: ast.ImportFrom) -> str:
        """The module of `from module import name`, from the folder on where it is relative; else ""."""
        if not node.level:
            return node.module or ""
        inside = self.path.is_relative_to(self.folder)
        package = self.path.parent.relative_to(self.folder).parts if inside else ()
        return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])

    @property
    def is_in_package(self) -> bool:
        """Whether it can be imported as a part of its package only."""
        return any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(self.tree))

    @cached_property
    def _scopes(self) -> dict[int, Scope]:
        """The innermost function of each node, by identity."""
        found: dict[int, Scope] = {}
        waiting: list[tuple[ast.AST, Scope]] = [(self.tree, self.tree)]
        while waiting:
            node, scope = waiting.pop()
            for child in ast.iter_child_nodes(node):
                found[id(child)] = scope
                inner = child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else scope
                waiting.append((child, inner))
        return found

    def scope_of(self, node: ast.AST) -> Scope:
        return self._scopes.get(id(node), self.tree)

    @cached_property
    def _classes(self) -> dict[int, ast.ClassDef]:
        """The class of each method, by identity."""
        classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]
        return {id(method): owner for owner in classes for method in owner.body}

    def class_of(self, function: Scope) -> ast.ClassDef | None:
        """The class that a method is of."""
        return self._classes.get(id(function))

    def calls(self, *ends: str) -> Iterator[ast.Call]:
        """Calls of functions whose dotted name ends with one of the words, in the order of the text."""
        for end, call in self._calls:
            if not ends or end in ends:
                yield call

    @cached_property
    def _calls(self) -> list[tuple[str, ast.Call]]:
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        found.sort(key=lambda call: (call.lineno, call.col_offset))
        return [((self.dotted_name(call.func) or "").rpartition(".")[2], call) for call in found]

    @cached_property
    def assignments(self) -> dict[tuple[int, str], list[Assignment]]:
        """By function (its identity) and name, in the order of the text; by class and "self.name" too."""
        found: dict[tuple[int, str], list[Assignment]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets, value = [node.target], node.value
            else:
                continue
            scope = self.scope_of(node)
            for target in targets:
                parts = (
                    list(enumerate(target.elts))
                    if isinstance(target, ast.Tuple | ast.List)
                    else [(None, target)]
                )
                for entry, part in parts:
                    one = Assignment(end_position(node), value, entry)
                    if isinstance(part, ast.Name):
                        found.setdefault((id(scope), part.id), []).append(one)
                    elif (name := self_attribute(part)) and (owner := self.class_of(scope)) is not None:
                        found.setdefault((id(owner), name), []).append(one)
        for several in found.values():
            several.sort(key=lambda one: one.end)
        return found

    def dotted_name(self, node: ast.AST) -> str | None:
        """'torch.nn.CrossEntropyLoss' for nn.CrossEntropyLoss; the words as they stand for what is no
        import. None for what is no name."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return f"().{'.'.join(reversed(parts))}" if parts else None
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def local_module(self, module: str) -> ScriptSource | None:
        """The file of a module in the script's own folder; None for one that is installed."""
        if module not in self._local_modules:
            stem = self.folder.joinpath(*module.split("."))
            candidates = (stem.with_suffix(".py"), stem / "__init__.py")
            file = next((path for path in candidates if files.is_regular(path)), None)
            self._local_modules[module] = (
                ScriptSource.read(file, self.folder, self) if file is not None else None
            )
        return self._local_modules[module]

    def find_definition(self, dotted: str) -> tuple[ScriptSource, Definition] | None:
        """Where a dotted name is defined, in this file or in one beside it."""
        module, _, name = dotted.rpartition(".")
        source = self.local_module(module) if module else self
        if source is None or name not in source.definitions:
            return None
        return source, source.definitions[name]

    @cached_property
    def training_statement(self) -> ast.stmt | None:
        """The first statement that an import would run and that may train; None where an import is safe."""
        return next(filter(self._can_train, self.tree.body), None)

    def _can_train(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If):
            if _is_main_guard(statement):
                return False
            return any(map(self._can_train, [*statement.body, *statement.orelse]))
        if isinstance(statement, ast.Try):
            handlers = [line for handler in statement.handlers for line in handler.body]
            return any(map(self._can_train, [*statement.body, *handlers, *statement.orelse]))
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        if isinstance(statement, ast.Expr):
            return not isinstance(statement.value, ast.Constant) and self._has_training_call(statement)
        return not isinstance(statement, _HARMLESS) or self._has_training_call(statement)

    def _has_training_call(self, statement: ast.stmt) -> bool:
        """Whether it calls a function of this file that trains, or does so itself."""
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            name = self.dotted_name(call.func) or ""
            if (
                name.rpartition(".")[2] in _TRAINING_CALLS | {"init_process_group", "parse_args"}
                and "." in name
            ):
                return True
            if isinstance(self.definitions.get(name), ast.FunctionDef) and self._is_training_function(
                name, set()
            ):
                return True
        return False

    def _is_training_function(self, name: str, seen: set[str]) -> bool:
        """Whether a function of this file steps, or calls one that does."""
        seen.add(name)
        for call in (node for node in ast.walk(self.definitions[name]) if isinstance(node, ast.Call)):
            called = self.dotted_name(call.func) or ""
            if called.rpartition(".")[2] in _TRAINING_CALLS and "." in called:
                return True
            known = isinstance(self.definitions.get(called), ast.FunctionDef)
            if known and called not in seen and self._is_training_function(called, seen):
                return True
        return False


def end_position(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


def self_attribute(node: ast.AST) -> str | None:
    """ "self.name" where a node is that; None for anything else."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return ast.unparse(node) if is_own else None


def _is_main_guard(statement: ast.If) -> bool:
    """`if __name__ == "__main__":`."""
    test = statement.test
    return (
        isinstance(test, ast.Compare)
        and any(
            isinstance(side, ast.Name) and side.id == "__name__" for side in [test.left, *test.comparators]
        )
        and any(
            isinstance(side, ast.Constant) and side.value == "__main__"
            for side in [test.left, *test.comparators]
        )
    )
