"""Which loss a script goes backward from, and whether the catalogue has it."""

from __future__ import annotations

import ast

from rankdeck.adopt.findings import ScriptFiles, find_trainer_argument, has_unpacked_kwargs
from rankdeck.adopt.naming import Finding
from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.tracing import MAX_TRACE_STEPS, Origin, trace_origin

_FUNCTIONS = {"cross_entropy": "cross_entropy", "mse_loss": "mse"}
_CLASSES = {"CrossEntropyLoss": "cross_entropy", "MSELoss": "mse"}
_DEFAULTS: dict[str, object] = {
    "reduction": "mean",
    "ignore_index": -100,
    "label_smoothing": 0.0,
    "weight": None,
}
_SQUARED, _ABSOLUTE = "squares", "absolutes"
_POWERS = {"square": _SQUARED, "abs": _ABSOLUTE, "absolute": _ABSOLUTE}
_SUM_NOTES = [
    "It is a sum over the batch. Here it is divided by the targets of the batch, and so are gradients."
]


def find_loss(script: ScriptFiles, accumulate: int) -> tuple[Finding, bool]:
    """(the loss, whether it is divided before backward, as one that accumulates should be)."""
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
                if not (is_division and accumulate > 1):
                    factors.append(f"{origin.location} scales it, which is not taken over: {origin.text}")
            origin = trace_origin(origin.source, inner)
        found = _name_loss(script, origin)
        found.notes += factors
        return found, is_divided
    return _trainer_loss(script) or _only_loss(script) or Finding(notes=_loss_stub()), True


def _trainer_loss(script: ScriptFiles) -> Finding | None:
    """transformers' Trainer takes the loss that the model returns, unless a class overrides it."""
    if find_trainer_argument(script, "train_dataset") is None or any(
        isinstance(node, ast.FunctionDef) and node.name == "compute_loss"
        for source in script.sources
        for node in ast.walk(source.tree)
    ):
        return None
    return Finding("model", notes=["The model's own, which a Trainer takes."])


def _is_divided_by_accelerate(script: ScriptFiles) -> bool:
    """Accelerate's backward divides by the steps that its Accelerator was made for."""
    return any(
        keyword.arg == "gradient_accumulation_steps"
        for _, call in script.calls("Accelerator")
        for keyword in call.keywords
    )


def _backward_targets(script: ScriptFiles) -> list[tuple[ScriptSource, ast.expr]]:
    """What `backward` is called on: loss.backward(), accelerator.backward(loss), scaler.scale(loss)."""
    found = []
    for source, call in script.calls("backward"):
        if call.args and not isinstance(call.args[0], ast.Constant):
            found.append((source, call.args[0]))
        elif isinstance(call.func, ast.Attribute):
            found.append((source, call.func.value))
    return found


def _unscaled(node: ast.expr) -> ast.expr | None:
    """A loss without what divides, scales or averages it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
        return node.right if isinstance(node.left, ast.Constant) else node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "scale" and node.args:
            return node.args[0]
        if node.func.attr == "mean" and not node.args and _elementwise_kind(node.func.value) is None:
            return node.func.value
    return None


def _elementwise_kind(node: ast.expr) -> str | None:
    """Whether it is the squares or the absolute values of a difference: (a - b) ** 2, torch.abs(a - b)."""
    exponent: ast.expr | None = None
    kind: str | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = node.left, node.right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_torch = ast.unparse(node.func.value) == "torch"
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
    """The catalogue's name of a loss; else how to write it as a configuration needs it."""
    node, source = origin.node, origin.source
    if _is_loss_field(node):
        return Finding("model", notes=[f"The model's own ({origin.location})."])
    if isinstance(node, ast.Call) and origin.index is not None:
        return Finding(
            notes=[
                f"{origin.location} takes an entry of what the model gives: {origin.text}",
                'Write "model" where the model returns an object or a dict with its `loss`.',
            ]
        )
    if not isinstance(node, ast.Call):
        return Finding(
            notes=[f"Backward begins at {origin.text} ({origin.location}).", *_loss_stub(origin.text)]
        )
    reduced = _reduced_difference(origin, node)
    if reduced is not None:
        return reduced
    name = (source.dotted_name(node.func) or "").rpartition(".")[2]
    if name in _FUNCTIONS:
        return _catalog_loss(script, origin, node, _FUNCTIONS[name])
    made = trace_origin(source, node.func)
    if isinstance(made.node, ast.Call):
        name = (made.source.dotted_name(made.node.func) or "").rpartition(".")[2]
        if name in _CLASSES:
            return _catalog_loss(script, made, made.node, _CLASSES[name])
    computed = f"{origin.location} computes it with: {origin.text}"
    return Finding(notes=[computed, *_loss_stub(origin.text, _batch_expression(origin, node))])


def _is_loss_field(node: ast.expr) -> bool:
    """`output.loss` or `output["loss"]`, of what a model gives."""
    if isinstance(node, ast.Attribute):
        return node.attr == "loss" and ast.unparse(node.value) != "self"
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "loss"
    )


def _reduced_difference(origin: Origin, call: ast.Call) -> Finding | None:
    """The mean or the sum of the squares or absolute values of a difference."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("mean", "sum") or call.keywords:
        return None
    is_torch = ast.unparse(call.func.value) == "torch"
    if len(call.args) != is_torch:
        return None
    inner = trace_origin(origin.source, call.args[0] if is_torch else call.func.value).node
    elements, is_sum = _elementwise_kind(inner), call.func.attr == "sum"
    computed = f"{origin.location} computes it with: {origin.text}"
    if elements is None:
        return Finding(notes=[computed, *(_SUM_NOTES if is_sum else []), *_loss_stub(origin.text)])
    if elements == _SQUARED and not is_sum:
        return Finding("mse", notes=[f"{origin.location}: {origin.text}"])
    words = {_SQUARED: "((outputs - targets) ** 2)", _ABSOLUTE: "(outputs - targets).abs()"}[elements]
    if is_sum:
        return Finding(
            notes=[computed, *_SUM_NOTES, *_loss_stub(origin.text, f"{words}.sum(), len(targets)")]
        )
    named = "That is the mean absolute error (L1), which the catalogue has not."
    return Finding(notes=[computed, named, *_loss_stub(origin.text, f"{words}.sum(), targets.numel()")])


def _catalog_loss(script: ScriptFiles, origin: Origin, call: ast.Call, use: str) -> Finding:
    changed = [
        f"{keyword.arg} = {ast.unparse(keyword.value)}"
        for keyword in call.keywords
        if keyword.arg in _DEFAULTS
        and script.evaluate(origin.source, keyword.value) != _DEFAULTS[keyword.arg]
    ]
    if changed:
        words = f"{origin.location} computes {use} with {', '.join(changed)}, which the catalogue's has not."
        sums = _SUM_NOTES if any(one.endswith("'sum'") for one in changed) else []
        return Finding(notes=[words, *sums, *_loss_stub(origin.text, _batch_expression(origin, call))])
    return Finding(use, notes=[f"{origin.location}."])


def _batch_expression(origin: Origin, call: ast.Call) -> str | None:
    """What a loss function returns, of a call of a function of two, or of one that makes such a function;
    None where it is no such call."""
    if has_unpacked_kwargs(call) or any(isinstance(given, ast.Starred) for given in call.args):
        return None
    made = trace_origin(origin.source, call.func)
    maker = made.node if isinstance(made.node, ast.Call) else call
    name = (made.source if maker is not call else origin.source).dotted_name(maker.func) or ""
    options = [ast.unparse(keyword) for keyword in maker.keywords]
    is_class = name.rpartition(".")[2][:1].isupper()
    if not name or name.startswith(("()", "self.")) or (not is_class and len(call.args) != 2):
        return None
    given = [*map(ast.unparse, maker.args), *options] if is_class else ["outputs", "targets", *options]
    called = f"{name}({', '.join(given)})" + ("(outputs, targets)" if is_class else "")
    return (
        f"{called}, len(targets)"
        if "reduction='sum'" in options
        else f"{called} * len(targets), len(targets)"
    )


def _only_loss(script: ScriptFiles) -> Finding | None:
    """The only loss of torch's in the text, where nobody calls backward in it."""
    known = {**_FUNCTIONS, **_CLASSES}
    found = [(source, call) for source, call in script.calls(*known)]
    names = {known[(source.dotted_name(call.func) or "").rpartition(".")[2]] for source, call in found}
    if len(names) != 1:
        return None
    source, call = found[0]
    return _catalog_loss(script, Origin(source, call), call, names.pop())


def _loss_stub(code: str = "the script's loss", returns: str | None = None) -> list[str]:
    """The function to write. `returns` is what it returns, where the text tells that much."""
    body = [f"        return {returns}"]
    if returns is None:
        body = [
            f"        mean = ...  # in place of {code}",
            "        return mean * len(targets), len(targets)",
        ]
    return [
        'Write "model" where the model returns its own loss, or a function "file.py:loss" that returns the',
        "sum over the targets of a batch, and how many there were:",
        "    def loss(outputs, targets):",
        *body,
    ]
