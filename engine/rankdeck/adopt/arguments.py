"""Evaluates expressions of a script without executing it.

Literals, names assigned to literals, arithmetic, dictionary entries, fields of configuration objects, and
argparse options are supported. An entry or a field is unknown if the script may reassign it anywhere. To
parse the run's command line, a parser is built from the literal arguments of the script's `add_argument`
calls.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import operator
from collections.abc import Sequence
from typing import Any

from rankdeck.adopt.source import ScriptSource, self_attribute
from rankdeck.adopt.tracing import returned_origin, trace_origin

UNKNOWN = object()
"""Result for an expression whose value cannot be determined from the source; None is a valid value."""
_MAX_DEPTH = 20
# No power: 9 ** 9 ** 9 would never end.
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_TYPES: dict[str, type[int | float | str]] = {"int": int, "float": float, "str": str}
_LITERAL_KEYWORDS = {"default", "action", "nargs", "const", "choices", "dest", "required"}


class ScriptValues:
    """Evaluator of a script's expressions. `args` are the script's arguments in the observed run."""

    def __init__(self, source: ScriptSource, args: Sequence[str]) -> None:
        self._options = _parse_options(source, args)

    def evaluate(self, source: ScriptSource, node: ast.expr, depth: int = 0) -> Any:
        """Return the value of an expression, or UNKNOWN."""
        if depth > _MAX_DEPTH:
            return UNKNOWN
        origin = trace_origin(source, node)
        source, node = origin.source, origin.node
        if origin.index is not None:
            return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            pass
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = (
                self.evaluate(source, node.left, depth + 1),
                self.evaluate(source, node.right, depth + 1),
            )
            # Numbers only, because a string or a list times a number can fill the memory.
            if not (isinstance(left, int | float) and isinstance(right, int | float)):
                return UNKNOWN
            try:
                return _OPERATORS[type(node.op)](left, right)
            except (ArithmeticError, ValueError):
                return UNKNOWN
        if isinstance(node, ast.List | ast.Tuple):
            entries = [self.evaluate(source, entry, depth + 1) for entry in node.elts]
            return UNKNOWN if any(entry is UNKNOWN for entry in entries) else entries
        if isinstance(node, ast.Subscript | ast.Attribute):
            return self._evaluate_member(source, node, depth + 1)
        if isinstance(node, ast.Call):
            return self._evaluate_call(source, node, depth + 1)
        return UNKNOWN

    def _evaluate_member(self, source: ScriptSource, node: ast.Subscript | ast.Attribute, depth: int) -> Any:
        """Evaluate `config["width"]`, `config.width`, or `args.width`, where `args` has the parsed values."""
        is_entry = isinstance(node, ast.Subscript)
        key = node.slice if isinstance(node, ast.Subscript) else ast.Constant(node.attr)
        name = key.value if isinstance(key, ast.Constant) else None
        if not isinstance(name, str) or _is_reassigned(source, node.value, name):
            return UNKNOWN
        origin = trace_origin(source, node.value)
        # A function may return a call of itself.
        for _ in range(_MAX_DEPTH):
            if (inner := returned_origin(origin)) is None:
                break
            origin = inner
        call = origin.node
        if isinstance(call, ast.Dict) and is_entry:
            values = {
                key.value: value
                for key, value in zip(call.keys, call.values, strict=True)
                if isinstance(key, ast.Constant)
            }
            return self.evaluate(origin.source, values[name], depth) if name in values else UNKNOWN
        if not isinstance(call, ast.Call):
            return UNKNOWN
        called = origin.source.dotted_name(call.func) or ""
        if called.rpartition(".")[2] in ("parse_args", "parse_known_args") and not is_entry:
            return self._options.get(name, UNKNOWN)
        field = _find_field(origin.source, call, called, name)
        return UNKNOWN if field is None else self.evaluate(*field, depth)

    def _evaluate_call(self, source: ScriptSource, call: ast.Call, depth: int) -> Any:
        """Evaluate a conversion such as int("8"), or a call to one of the script's own functions."""
        kind = _TYPES.get(ast.unparse(call.func))
        if kind is not None and len(call.args) == 1 and not call.keywords:
            value = self.evaluate(source, call.args[0], depth)
            try:
                return kind(value) if isinstance(value, int | float | str) else UNKNOWN
            except (ValueError, OverflowError):
                return UNKNOWN
        inner = returned_origin(trace_origin(source, call))
        return UNKNOWN if inner is None else self.evaluate(inner.source, inner.node, depth)


def _find_field(
    source: ScriptSource, call: ast.Call, called: str, name: str
) -> tuple[ScriptSource, ast.expr] | None:
    """Return the expression for field `name` of the object that `call` creates, and the file with that
    expression.

    The expression is an argument of the call or, if none is passed for the field, the value that the class
    assigns to it. `called` is the dotted name of the class.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return source, keyword.value
    definition = source.find_definition(called)
    if definition is None or not isinstance(definition[1], ast.ClassDef):
        return None
    class_source, owner = definition
    members = class_source.assignments.get((id(owner), f"self.{name}"), [])
    if members:
        return class_source, members[-1].value
    at_top = {
        ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]): node.value
        for node in owner.body
        if isinstance(node, ast.AnnAssign | ast.Assign)
    }
    declared = [ast.unparse(node.target) for node in owner.body if isinstance(node, ast.AnnAssign)]
    # A dataclass takes positional arguments in the order of its fields.
    if name in declared[: len(call.args)]:
        return source, call.args[declared.index(name)]
    default = at_top.get(name)
    return None if default is None else (class_source, default)


def _is_reassigned(source: ScriptSource, owner: ast.expr, name: str) -> bool:
    """Return whether the script assigns to any entry or field called `name`, or calls `owner.update`."""
    for node in ast.walk(source.tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr == name and self_attribute(target) is None:
                return True
            if isinstance(target, ast.Subscript) and ast.unparse(target.slice) == repr(name):
                return True
    owner_text = ast.unparse(owner)
    return any(
        isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == owner_text
        for call in source.calls("update")
    )


def _parse_options(source: ScriptSource, args: Sequence[str]) -> dict[str, object]:
    """Parse the script's arguments as its own parser would."""
    # Neither --help nor a wrong option of the script may end this process.
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for call in source.calls("add_argument"):
        names = [str(name.value) for name in call.args if isinstance(name, ast.Constant)]
        settings: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg == "type":
                settings["type"] = _TYPES.get(ast.unparse(keyword.value))
            elif keyword.arg in _LITERAL_KEYWORDS:
                try:
                    settings[keyword.arg] = ast.literal_eval(keyword.value)
                except (ValueError, TypeError):
                    # Otherwise the option's value would be None, argparse's own default.
                    settings["default"] = UNKNOWN
        if settings.get("type", str) is None:
            del settings["type"]
        try:
            # All parsers of a file become a single parser, so a name may occur twice; argparse then refuses
            # the later option.
            parser.add_argument(*names, **settings)
        except (TypeError, ValueError, argparse.ArgumentError):
            continue
    try:
        # In some Python versions exit_on_error does not cover a missing required argument: argparse prints
        # its usage and exits.
        with contextlib.redirect_stderr(io.StringIO()):
            namespace, _ = parser.parse_known_args(list(args))
    except (argparse.ArgumentError, SystemExit, ValueError, TypeError):
        return {}
    return vars(namespace)
