"""Finds the loss that a script calls backward on, and its name in the catalog."""

from __future__ import annotations

import ast

from rankdeck.adopt.findings import ScriptFiles, find_trainer_argument, has_unpacked_kwargs
from rankdeck.adopt.naming import Finding
from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.tracing import MAX_TRACE_STEPS, Origin, trace_origin

_FUNCTIONS = {"cross_entropy": "cross_entropy", "mse_loss": "mse"}
_CLASSES = {"CrossEntropyLoss": "cross_entropy", "MSELoss": "mse"}
# Options of torch's losses that the catalog's losses do not have.
_DEFAULTS: dict[str, object] = {
    "reduction": "mean",
    "ignore_index": -100,
    "label_smoothing": 0.0,
    "weight": None,
}
_SQUARED, _ABSOLUTE = "squares", "absolutes"
_POWERS = {"square": _SQUARED, "abs": _ABSOLUTE, "absolute": _ABSOLUTE}
_SUM_NOTES = [
    "The script's loss is a sum over the batch. Here, the loss and its gradients are divided by the "
    "number of targets."
]


def find_loss(script: ScriptFiles, accumulate: int) -> tuple[Finding, bool]:
    """Return (the loss, whether the script divides it before the backward pass, as gradient accumulation
    requires). `accumulate` is the number of backward passes per step."""
    for source, node in _backward_targets(script):
        origin = trace_origin(source, node)
        is_divided = _is_divided_by_accelerate(script)
        factors = []
        for _ in range(MAX_TRACE_STEPS):
            inner = _unscaled(origin.node)
            if inner is None:
                break
            if isinstance(origin.node, ast.BinOp):
                is_division = isinstance(origin.node.op, ast.Div)
                is_divided |= is_division
                # train.accumulate also divides by the number of backward calls.
                if not (is_division and accumulate > 1):
                    factors += [
                        f"The script scales the loss ({origin.location}), but this configuration does not:",
                        f"    {origin.text}",
                    ]
            origin = trace_origin(origin.source, inner)
        finding = _name_loss(script, origin)
        finding.notes += factors
        return finding, is_divided
    # A script without a backward call uses a trainer, which itself divides by the accumulation steps.
    return _trainer_loss(script) or _only_loss(script) or Finding(notes=_loss_stub()), True


def _trainer_loss(script: ScriptFiles) -> Finding | None:
    """Return the model's own loss, which transformers' Trainer uses unless compute_loss is overridden."""
    if find_trainer_argument(script, "train_dataset") is None or any(
        isinstance(node, ast.FunctionDef) and node.name == "compute_loss"
        for source in script.sources
        for node in ast.walk(source.tree)
    ):
        return None
    return Finding("model", notes=["Trainer uses the model's own loss."])


def _is_divided_by_accelerate(script: ScriptFiles) -> bool:
    """Return whether the script passes gradient_accumulation_steps to an Accelerator, whose `backward` then
    divides the loss by that number."""
    return any(
        keyword.arg == "gradient_accumulation_steps"
        for _, call in script.calls("Accelerator")
        for keyword in call.keywords
    )


def _backward_targets(script: ScriptFiles) -> list[tuple[ScriptSource, ast.expr]]:
    """Return the losses to backpropagate: `loss` in loss.backward() and accelerator.backward(loss)."""
    targets = []
    for source, call in script.calls("backward"):
        if call.args and not isinstance(call.args[0], ast.Constant):
            targets.append((source, call.args[0]))
        elif isinstance(call.func, ast.Attribute):
            targets.append((source, call.func.value))
    return targets


def _unscaled(node: ast.expr) -> ast.expr | None:
    """Return the loss inside a division, a multiplication, a call to a gradient scaler or a mean; None for
    any other node."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
        # As in 0.5 * loss and loss / steps.
        return node.right if isinstance(node.left, ast.Constant) else node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        # A gradient scaler: scaler.scale(loss).
        if node.func.attr == "scale" and node.args:
            return node.args[0]
        if node.func.attr == "mean" and not node.args and _elementwise_kind(node.func.value) is None:
            return node.func.value
    return None


def _elementwise_kind(node: ast.expr) -> str | None:
    """Return _SQUARED for squares of a difference, such as (a - b) ** 2, and _ABSOLUTE for absolute values of
    a difference, such as torch.abs(a - b); None for any other node."""
    exponent: ast.expr | None = None
    kind: str | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = node.left, node.right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_torch = ast.unparse(node.func.value) == "torch"
        # torch.pow(x, 2) has x as an argument, x.pow(2) has it before the dot.
        operands = [*([] if is_torch else [node.func.value]), *node.args]
        base, exponent = operands[0] if operands else node, operands[1] if len(operands) > 1 else None
        kind = _POWERS.get(node.func.attr)
        exponent = exponent if node.func.attr == "pow" else None
    else:
        return None
    if isinstance(exponent, ast.Constant) and exponent.value == 2:
        kind = _SQUARED
    return kind if isinstance(base, ast.BinOp) and isinstance(base.op, ast.Sub) else None


def _name_loss(script: ScriptFiles, origin: Origin) -> Finding:
    """Return the loss's catalog name, or a stub of the function that the user has to write."""
    node, source = origin.node, origin.source
    if _is_loss_field(node):
        return Finding("model", notes=[f"The model's own loss ({origin.location})."])
    if isinstance(node, ast.Call) and origin.index is not None:
        return Finding(
            notes=[
                f"{origin.location} takes the loss from the result of a call: {origin.text}",
                'If the model returns an object or a dict with a `loss`, write "model".',
            ]
        )
    if not isinstance(node, ast.Call):
        return Finding(
            notes=[
                f"The script calls backward on {origin.text} ({origin.location}).",
                *_loss_stub(origin.text),
            ]
        )
    reduced = _reduced_difference(origin, node)
    if reduced is not None:
        return reduced
    name = (source.dotted_name(node.func) or "").rpartition(".")[2]
    if name in _FUNCTIONS:
        return _catalog_loss(script, origin, node, _FUNCTIONS[name])
    loss_object = trace_origin(source, node.func)
    if isinstance(loss_object.node, ast.Call):
        name = (loss_object.source.dotted_name(loss_object.node.func) or "").rpartition(".")[2]
        if name in _CLASSES:
            return _catalog_loss(script, loss_object, loss_object.node, _CLASSES[name])
    computed = f"Computed in {origin.location}: {origin.text}"
    return Finding(notes=[computed, *_loss_stub(origin.text, _batch_expression(origin, node))])


def _is_loss_field(node: ast.expr) -> bool:
    """Return whether the node reads the loss from a model's output: `output.loss` or `output["loss"]`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "loss" and ast.unparse(node.value) != "self"
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "loss"
    )


def _reduced_difference(origin: Origin, call: ast.Call) -> Finding | None:
    """Return the loss that a call to mean or sum computes, such as the mean of the squares of a difference;
    None for any other call."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("mean", "sum") or call.keywords:
        return None
    is_torch = ast.unparse(call.func.value) == "torch"
    # torch.mean(x) has one argument, x.mean() none.
    if len(call.args) != is_torch:
        return None
    inner = trace_origin(origin.source, call.args[0] if is_torch else call.func.value).node
    elements, is_sum = _elementwise_kind(inner), call.func.attr == "sum"
    computed = f"Computed in {origin.location}: {origin.text}"
    if elements is None:
        return Finding(notes=[computed, *(_SUM_NOTES if is_sum else []), *_loss_stub(origin.text)])
    if elements == _SQUARED and not is_sum:
        return Finding("mse", notes=[f"{origin.location}: {origin.text}"])
    expression = {_SQUARED: "((outputs - targets) ** 2)", _ABSOLUTE: "(outputs - targets).abs()"}[elements]
    if is_sum:
        return Finding(
            notes=[computed, *_SUM_NOTES, *_loss_stub(origin.text, f"{expression}.sum(), len(targets)")]
        )
    named = "This is the mean absolute error (L1), which is not in the catalogue."
    return Finding(notes=[computed, named, *_loss_stub(origin.text, f"{expression}.sum(), targets.numel()")])


def _catalog_loss(script: ScriptFiles, origin: Origin, call: ast.Call, use: str) -> Finding:
    changed = [
        f"{keyword.arg} = {ast.unparse(keyword.value)}"
        for keyword in call.keywords
        if keyword.arg in _DEFAULTS
        and script.evaluate(origin.source, keyword.value) != _DEFAULTS[keyword.arg]
    ]
    if changed:
        note = (
            f"{origin.location} computes {use} with {', '.join(changed)}, which {use} does not support here."
        )
        sums = _SUM_NOTES if any(setting.endswith("'sum'") for setting in changed) else []
        return Finding(notes=[note, *sums, *_loss_stub(origin.text, _batch_expression(origin, call))])
    return Finding(use, notes=[f"{origin.location}."])


def _batch_expression(origin: Origin, call: ast.Call) -> str | None:
    """Return code for a batch's summed loss and number of targets, built from the script's loss call.

    Return None unless the call creates or calls a loss object, or passes two arguments to a loss function.
    """
    if has_unpacked_kwargs(call) or any(isinstance(arguments, ast.Starred) for arguments in call.args):
        return None
    loss_object = trace_origin(origin.source, call.func)
    maker = loss_object.node if isinstance(loss_object.node, ast.Call) else call
    name = (loss_object.source if maker is not call else origin.source).dotted_name(maker.func) or ""
    options = [ast.unparse(keyword) for keyword in maker.keywords]
    # A class creates an object that is then called with outputs and targets.
    is_class = name.rpartition(".")[2][:1].isupper()
    # A loss function is at the top of a file, where neither `self` nor the result of an expression exists.
    if not name or name.startswith(("()", "self.")) or (not is_class and len(call.args) != 2):
        return None
    arguments = [*map(ast.unparse, maker.args), *options] if is_class else ["outputs", "targets", *options]
    called = f"{name}({', '.join(arguments)})" + ("(outputs, targets)" if is_class else "")
    return (
        f"{called}, len(targets)"
        if "reduction='sum'" in options
        else f"{called} * len(targets), len(targets)"
    )


def _only_loss(script: ScriptFiles) -> Finding | None:
    """Return the only torch loss that the script, which never calls backward itself, uses; otherwise None."""
    names_by_callable = {**_FUNCTIONS, **_CLASSES}
    calls = [(source, call) for source, call in script.calls(*names_by_callable)]
    names = {
        names_by_callable[(source.dotted_name(call.func) or "").rpartition(".")[2]] for source, call in calls
    }
    if len(names) != 1:
        return None
    source, call = calls[0]
    return _catalog_loss(script, Origin(source, call), call, names.pop())


def _loss_stub(code: str = "the script's loss", returns: str | None = None) -> list[str]:
    """Return comment lines with a stub of the loss function that the user has to write. `code` is the
    script's code that the function replaces; `returns` is the expression that it returns, if known."""
    body = [f"        return {returns}"]
    if returns is None:
        body = [
            f"        mean = ...  # replaces {code}",
            "        return mean * len(targets), len(targets)",
        ]
    return [
        'Write "model" if the model returns its own loss, or write a function "file.py:loss" that returns '
        "the loss summed over the targets of a batch, and the number of targets:",
        "    def loss(outputs, targets):",
        *body,
    ]
