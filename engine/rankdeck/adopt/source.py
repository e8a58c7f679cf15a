"""Parses a script without executing it; finds its names, imports, and statements that may train on import.

Local files that the script imports are parsed in the same way. Read tracing.py next.
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
    """A value assigned to a name.

    If only one entry of the value is assigned to the name, `entry` is the index of that entry. `end` is the
    position (line, column) at which the statement ends.
    """

    end: tuple[int, int]
    value: ast.expr
    entry: int | None


@dataclass
class ScriptSource:
    """A parsed file. Its imports are resolved in `folder`."""

    path: Path
    text: str
    tree: ast.Module
    folder: Path
    importer: ScriptSource | None = None
    """The file that imports this one; its calls pass arguments to this file's functions."""
    _local_modules: dict[str, ScriptSource | None] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, folder: Path, importer: ScriptSource | None = None) -> ScriptSource | None:
        """Parse a file; return None if it cannot be read or is not Python."""
        try:
            text = files.read_text(path)
            return cls(path, text, ast.parse(text), folder, importer)
        except (OSError, ValueError, SyntaxError, RecursionError):
            return None

    def __hash__(self) -> int:
        # A dataclass that compares by value has no hash of its own.
        return hash(self.path)

    def location(self, node: ast.AST) -> str:
        """Return a node's file name and line, such as 'train.py, line 12'."""
        return f"{self.path.name}, line {getattr(node, 'lineno', 1)}"

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Functions and classes at the top level, by name."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return {node.name: node for node in self.tree.body if isinstance(node, kinds)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted name, for every import in the file."""
        dotted_names = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    dotted_names[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and (module := self._imported_from(node)):
                if node.names[0].name == "*":
                    other = self.local_module(module)
                    for name in other.definitions if other is not None else ():
                        dotted_names.setdefault(name, f"{module}.{name}")
                    continue
                dotted_names.update(
                    {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
                )
        return dotted_names

    def _imported_from(self, node: ast.ImportFrom) -> str:
        """Return the module of `from module import name`; relative imports are resolved from `folder`."""
        if not node.level:
            return node.module or ""
        inside = self.path.is_relative_to(self.folder)
        package = self.path.parent.relative_to(self.folder).parts if inside else ()
        return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])

    @property
    def is_in_package(self) -> bool:
        """Whether the file has relative imports, so that it must be imported as part of its package."""
        return any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(self.tree))

    @cached_property
    def _scopes(self) -> dict[int, Scope]:
        """Innermost function that contains each node, by node id."""
        scopes: dict[int, Scope] = {}
        waiting: list[tuple[ast.AST, Scope]] = [(self.tree, self.tree)]
        while waiting:
            node, scope = waiting.pop()
            for child in ast.iter_child_nodes(node):
                scopes[id(child)] = scope
                inner = child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else scope
                waiting.append((child, inner))
        return scopes

    def scope_of(self, node: ast.AST) -> Scope:
        return self._scopes.get(id(node), self.tree)

    @cached_property
    def _classes(self) -> dict[int, ast.ClassDef]:
        """Classes by the node ids of their methods."""
        classes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]
        return {id(method): owner for owner in classes for method in owner.body}

    def class_of(self, function: Scope) -> ast.ClassDef | None:
        """Return the class that contains the function as a method; None if no class does."""
        return self._classes.get(id(function))

    def calls(self, *ends: str) -> Iterator[ast.Call]:
        """Yield the calls to functions whose name, without the module, is one of `ends`, in source order.

        Without `ends`, yield all calls.
        """
        for end, call in self._calls:
            if not ends or end in ends:
                yield call

    @cached_property
    def _calls(self) -> list[tuple[str, ast.Call]]:
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        # ast.walk is breadth-first.
        nodes.sort(key=lambda call: (call.lineno, call.col_offset))
        return [((self.dotted_name(call.func) or "").rpartition(".")[2], call) for call in nodes]

    @cached_property
    def assignments(self) -> dict[tuple[int, str], list[Assignment]]:
        """Assignments in source order, by (id of function, name), and by (id of class, "self.name")."""
        by_name: dict[tuple[int, str], list[Assignment]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets, value = [node.target], node.value
            else:
                continue
            scope = self.scope_of(node)
            for target in targets:
                elements = (
                    list(enumerate(target.elts))
                    if isinstance(target, ast.Tuple | ast.List)
                    else [(None, target)]
                )
                for entry, element in elements:
                    # The end and not the start: in `model = DDP(model)` the inner name is the earlier value.
                    assignment = Assignment(end_position(node), value, entry)
                    if isinstance(element, ast.Name):
                        by_name.setdefault((id(scope), element.id), []).append(assignment)
                    elif (name := self_attribute(element)) and (owner := self.class_of(scope)) is not None:
                        by_name.setdefault((id(owner), name), []).append(assignment)
        for several in by_name.values():
            several.sort(key=lambda assignment: assignment.end)
        return by_name

    def dotted_name(self, node: ast.AST) -> str | None:
        """Return 'torch.nn.CrossEntropyLoss' for nn.CrossEntropyLoss, and '().step' for a method of a result,
        as in make().step; None for any other expression.

        A name that is not imported is returned as written.
        """
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return f"().{'.'.join(reversed(parts))}" if parts else None
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def local_module(self, module: str) -> ScriptSource | None:
        """Return the file of a module in the script's own folder; None for an installed module."""
        if module not in self._local_modules:
            stem = self.folder.joinpath(*module.split("."))
            candidates = (stem.with_suffix(".py"), stem / "__init__.py")
            file = next((path for path in candidates if files.is_regular(path)), None)
            self._local_modules[module] = (
                ScriptSource.read(file, self.folder, self) if file is not None else None
            )
        return self._local_modules[module]

    def find_definition(self, dotted: str) -> tuple[ScriptSource, Definition] | None:
        """Return the definition of a name in this file, or of a dotted name in another local file; None if
        there is no such definition."""
        module, _, name = dotted.rpartition(".")
        source = self.local_module(module) if module else self
        if source is None or name not in source.definitions:
            return None
        return source, source.definitions[name]

    @cached_property
    def training_statement(self) -> ast.stmt | None:
        """First statement that runs on import and may train; None if importing the file is safe."""
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
        # Any other statement, such as a loop, counts as training: training in every rank at import is worse
        # than an unnecessary note.
        return not isinstance(statement, _HARMLESS) or self._has_training_call(statement)

    def _has_training_call(self, statement: ast.stmt) -> bool:
        """Return whether the statement trains, sets up a process group or parses arguments, or calls a
        function of this file that trains."""
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            name = self.dotted_name(call.func) or ""
            if (
                # Neither may run on import: a rank has its own process group and another command line.
                name.rpartition(".")[2] in _TRAINING_CALLS | {"init_process_group", "parse_args"}
                and "." in name
            ):
                return True
            if isinstance(self.definitions.get(name), ast.FunctionDef) and self._is_training_function(
                name, set()
            ):
                return True
        return False

    def _is_training_function(self, name: str, visited: set[str]) -> bool:
        """Return whether function `name` of this file trains, or calls one that does and is not in
        `visited`."""
        # Functions may call each other in a cycle.
        visited.add(name)
        for call in (node for node in ast.walk(self.definitions[name]) if isinstance(node, ast.Call)):
            called = self.dotted_name(call.func) or ""
            # A bare train() is a function of the script, which is judged by its own calls.
            if called.rpartition(".")[2] in _TRAINING_CALLS and "." in called:
                return True
            is_local = isinstance(self.definitions.get(called), ast.FunctionDef)
            if is_local and called not in visited and self._is_training_function(called, visited):
                return True
        return False


def end_position(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


def self_attribute(node: ast.AST) -> str | None:
    """Return "self.name" if the node is an attribute of `self`, else None."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return ast.unparse(node) if is_own else None


def _is_main_guard(statement: ast.If) -> bool:
    """Return whether the statement is `if __name__ == "__main__":`."""
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
