"""Which loss a script goes backward from, and whether the catalogue has it."""

from __future__ import annotations

import ast
from typing import Any

from rankdeck.adopt.findings import Script
from rankdeck.adopt.naming import Finding
from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.tracing import FURTHEST, Origin, origin_of

_FUNCTIONS = {"cross_entropy": "cross_entropy", "mse_loss": "mse"}
_CLASSES = {"CrossEntropyLoss": "cross_entropy", "MSELoss": "mse"}
_DEFAULTS: dict[str, Any] = {
    "reduction": "mean",
    "ignore_index": -100,
    "label_smoothing": 0.0,
    "weight": None,
}


def find_loss(script: Script) -> tuple[Finding, bool]:
    """(the loss, whether it is divided before backward, as one that accumulates should be)."""
    for source, node in _went_backward(script):
        origin = origin_of(source, node)
        is_divided = False
        for _ in range(FURTHEST):
            inner = _inside(origin.node)
            if inner is None:
                break
            is_divided |= isinstance(origin.node, ast.BinOp) and isinstance(origin.node.op, ast.Div)
            origin = origin_of(origin.source, inner)
        return _named(script, origin), is_divided
    return _only_one(script) or Finding(notes=_by_hand("loss_of")), True


def _went_backward(script: Script) -> list[tuple[ScriptSource, ast.expr]]:
    """What `backward` is called on: loss.backward(), accelerator.backward(loss), scaler.scale(loss)."""
    found = []
    for source, call in script.calls("backward"):
        if call.args and not isinstance(call.args[0], ast.Constant):
            found.append((source, call.args[0]))
        elif isinstance(call.func, ast.Attribute):
            found.append((source, call.func.value))
    return found


def _inside(node: ast.expr) -> ast.expr | None:
    """A loss without what divides, scales or averages it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
        return node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "scale" and node.args:
            return node.args[0]
        if node.func.attr == "mean" and not node.args:
            return node.func.value
    return None


def _named(script: Script, origin: Origin) -> Finding:
    """The catalogue's name of a loss; else how to write it as a configuration needs it."""
    node, source = origin.node, origin.source
    is_field = (isinstance(node, ast.Attribute) and node.attr == "loss") or (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "loss"
    )
    if is_field:
        return Finding("model", notes=[f"The model's own ({origin.place})."])
    if isinstance(node, ast.Call) and origin.index is not None:
        return Finding(
            notes=[
                f"{origin.place} takes an entry of what the model gives: {origin.text}",
                'Write "model" where the model returns an object or a dict with its `loss`.',
            ]
        )
    if isinstance(node, ast.Call):
        name = (source.dotted(node.func) or "").rpartition(".")[2]
        if name in _FUNCTIONS:
            return _with_options(script, origin, node, _FUNCTIONS[name])
        made = origin_of(source, node.func).node
        if isinstance(made, ast.Call):
            name = (source.dotted(made.func) or "").rpartition(".")[2]
            if name in _CLASSES:
                return _with_options(script, Origin(source, made), made, _CLASSES[name])
        return Finding(
            notes=[f"{origin.place} computes it with: {origin.text}", *_by_hand(name or "loss_of")]
        )
    return Finding(notes=[f"Backward begins at {origin.text} ({origin.place}).", *_by_hand("loss_of")])


def _with_options(script: Script, origin: Origin, call: ast.Call, use: str) -> Finding:
    changed = [
        f"{keyword.arg} = {ast.unparse(keyword.value)}"
        for keyword in call.keywords
        if keyword.arg in _DEFAULTS and script.value(origin.source, keyword.value) != _DEFAULTS[keyword.arg]
    ]
    if changed:
        words = f"{origin.place} computes {use} with {', '.join(changed)}, which the catalogue's has not."
        return Finding(notes=[words, *_by_hand("loss_of")])
    return Finding(use, notes=[f"{origin.place}."])


def _only_one(script: Script) -> Finding | None:
    """The only loss of torch's in the text, where nobody calls backward in it."""
    known = {**_FUNCTIONS, **_CLASSES}
    found = [(source, call) for source, call in script.calls(*known)]
    names = {known[(source.dotted(call.func) or "").rpartition(".")[2]] for source, call in found}
    if len(names) != 1:
        return None
    source, call = found[0]
    return _with_options(script, Origin(source, call), call, names.pop())


def _by_hand(name: str) -> list[str]:
    return [
        'Write "model" where the model returns its own loss, or a function "file.py:loss" that returns the',
        "sum over the targets of a batch, and how many there were:",
        "    def loss(outputs, targets):",
        f"        return {name}(outputs, targets) * len(targets), len(targets)",
    ]
