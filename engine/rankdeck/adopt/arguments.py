"""Values that a script's text tells: literals, names of literals, sums of them, and options of argparse.

An option's value is what the script's own arguments of this run say, else its default: the parser is built
from the script's `add_argument` calls, as far as these are plain.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import operator
from collections.abc import Sequence
from typing import Any

from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.tracing import origin_of

UNKNOWN = object()
"""Of a value that the text does not tell; None is a value."""
_DEEPEST = 20
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_TYPES = {"int": int, "float": float, "str": str}
_PLAIN = {"default", "action", "nargs", "const", "choices", "dest", "required"}


class ScriptValues:
    """What expressions of a script are worth. `args` are the script's own, as this run had them."""

    def __init__(self, source: ScriptSource, args: Sequence[str]) -> None:
        self._options = _options(source, args)

    def of(self, source: ScriptSource, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression, or UNKNOWN."""
        if depth > _DEEPEST:
            return UNKNOWN
        origin = origin_of(source, node)
        source, node = origin.source, origin.node
        if origin.index is not None:
            return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            pass
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self.of(source, node.left, depth + 1), self.of(source, node.right, depth + 1)
            if not (isinstance(left, int | float) and isinstance(right, int | float)):
                return UNKNOWN
            try:
                return _OPERATORS[type(node.op)](left, right)
            except (ArithmeticError, ValueError):
                return UNKNOWN
        if isinstance(node, ast.List | ast.Tuple):
            entries = [self.of(source, entry, depth + 1) for entry in node.elts]
            return UNKNOWN if any(entry is UNKNOWN for entry in entries) else entries
        if isinstance(node, ast.Attribute):
            return self._option(source, node)
        return UNKNOWN

    def _option(self, source: ScriptSource, node: ast.Attribute) -> Any:
        """`args.width`, where args is what a parser gave."""
        parsed = origin_of(source, node.value).node
        called = source.dotted(parsed.func) if isinstance(parsed, ast.Call) else None
        if called is None or called.rpartition(".")[2] not in ("parse_args", "parse_known_args"):
            return UNKNOWN
        return self._options.get(node.attr, UNKNOWN)


def _options(source: ScriptSource, args: Sequence[str]) -> dict[str, Any]:
    """The script's options as its own parser would have them."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for call in source.calls("add_argument"):
        names = [str(name.value) for name in call.args if isinstance(name, ast.Constant)]
        settings: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg == "type":
                settings["type"] = _TYPES.get(ast.unparse(keyword.value))
            elif keyword.arg in _PLAIN:
                try:
                    settings[keyword.arg] = ast.literal_eval(keyword.value)
                except (ValueError, TypeError):
                    settings["default"] = UNKNOWN
        if settings.get("type", str) is None:
            del settings["type"]
        try:
            parser.add_argument(*names, **settings)
        except (TypeError, ValueError, argparse.ArgumentError):
            continue
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            known, _ = parser.parse_known_args(list(args))
    except (argparse.ArgumentError, SystemExit, ValueError, TypeError):
        return {}
    return vars(known)
