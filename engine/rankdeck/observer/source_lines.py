"""Finds the line of the script that adds to a container or to a tensor, in the source of the script."""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ADDING_METHODS = ("append", "appendleft", "extend", "insert", "setdefault", "update")
_MAX_BYTES = 1 << 20


def find_growing_line(line: str, name: str, kind: str) -> tuple[str, str]:
    """Return ("file:line", variable) of the only statement that adds to the variable `name`, or to any
    variable if `name` is ""; ("", "") if there is none or there are several.

    `line` is a "file:line" in the script; statements in the function that contains this line are preferred.
    `kind` is "chain" for a tensor that is computed from itself.
    """
    path, _, number = line.rpartition(":")
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(_MAX_BYTES))
    except (OSError, SyntaxError, ValueError):
        return "", ""
    variable = name.rpartition(".")[2].partition("[")[0]
    find = _find_recursive if kind == "chain" else _find_adding
    statements = [
        statement for statement in find(tree) if not variable or _last_name(statement[1]) == variable
    ]
    within = _function_at(tree, int(number))
    inside = [statement for statement in statements if within[0] <= statement[0] <= within[1]]
    statements = inside if inside else statements
    # Several statements: to name the wrong one would mislead.
    if len(statements) != 1:
        return "", ""
    return "%s:%d" % (path, statements[0][0]), statements[0][1]


def _find_adding(tree: Any) -> Any:
    """Yield (line, variable) of each statement that adds an element to a container."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _ADDING_METHODS:
                yield node.lineno, _text(node.func.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield node.lineno, _text(node.targets[0].value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, (ast.List, ast.Tuple)):
            yield node.lineno, _text(node.target)


def _find_recursive(tree: Any) -> Any:
    """Yield (line, variable) of each assignment to a variable whose new value is computed from the old."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            if not isinstance(node.value, ast.Constant):
                yield node.lineno, _text(node.target)
        elif isinstance(node, ast.Assign):
            # A call such as `out, hidden = rnn(x, hidden)` assigns a tuple.
            read = {
                _text(inner) for inner in ast.walk(node.value) if isinstance(inner, (ast.Name, ast.Attribute))
            }
            for target in node.targets:
                for written in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                    if _text(written) in read:
                        yield node.lineno, _text(written)


def _function_at(tree: Any, line: int) -> tuple[int, int]:
    """Return the first and the last line of the innermost function that contains a line, or of the file."""
    best = 1, 1 << 30
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            end = node.end_lineno or node.lineno
            if node.lineno <= line <= end and end - node.lineno < best[1] - best[0]:
                best = node.lineno, end
    return best


def _text(node: Any) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return "%s.%s" % (_text(node.value), node.attr)
    return _text(node.value) if isinstance(node, ast.Subscript) else ""


def _last_name(text: str) -> str:
    return text.rpartition(".")[2]
