"""From a name in a script back to the expression that made it, by reading alone.

    optimizer = AdamW(model.parameters())  ->  model = DDP(model)  ->  model = build(width=64).to(device)

A name leads to the last assignment above it in its function, a parameter to what the first caller passes,
anything else to the top of the file. What only moves or wraps a thing (`.to`, DDP, accelerator.prepare) is
looked through. Where the text says two things, the last one above is taken: a configuration names what it
took, so that a person can see it. Read findings.py next.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from rankdeck.adopt.source import Assignment, Function, Scope, ScriptSource

FURTHEST = 30
"""How many steps back a value is followed."""
_MOVES = {"to", "cuda", "cpu", "train", "eval", "float", "double", "half", "bfloat16", "requires_grad_"}
_WRAPS = {
    "DistributedDataParallel",
    "DDP",
    "DataParallel",
    "FullyShardedDataParallel",
    "FSDP",
    "compile",
    "convert_sync_batchnorm",
    "fully_shard",
    "prepare",
    "prepare_model",
    "prepare_data_loader",
    "setup",
    "setup_module",
    "setup_dataloaders",
}


@dataclass(frozen=True)
class Origin:
    """An expression that made something; `index` where it is an entry of what the expression gives."""

    source: ScriptSource
    node: ast.expr
    index: int | None = None

    @property
    def place(self) -> str:
        return self.source.place(self.node)

    @property
    def code(self) -> str:
        """The expression as it stands, in one line."""
        text = " ".join(ast.unparse(self.node).split())
        return text if self.index is None else f"{text}[{self.index}]"

    @property
    def text(self) -> str:
        """The same, shortened."""
        return self.code if len(self.code) <= 90 else self.code[:87] + "..."


def origin_of(source: ScriptSource, node: ast.expr) -> Origin:
    """Where a value comes from: the furthest expression that the text leads to."""
    here = Origin(source, node)
    for _ in range(FURTHEST):
        further = _looked_through(here) or _followed(here)
        if further is None:
            break
        here = further
    return here


def _looked_through(here: Origin) -> Origin | None:
    """What an expression only moves, wraps or takes an entry of."""
    node, source = here.node, here.source
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and here.index is None:
        index = node.slice.value
        return Origin(source, node.value, index) if isinstance(index, int) else None
    if isinstance(node, ast.Tuple | ast.List) and here.index is not None and here.index < len(node.elts):
        return Origin(source, node.elts[here.index])
    if isinstance(node, ast.Attribute) and node.attr == "module":
        return Origin(source, node.value)
    if not isinstance(node, ast.Call):
        return None
    name = (source.dotted(node.func) or "").rpartition(".")[2]
    if name in _WRAPS and node.args:
        at = here.index if here.index is not None and len(node.args) > 1 else 0
        return Origin(source, node.args[at]) if at < len(node.args) else None
    if name in _MOVES and isinstance(node.func, ast.Attribute):
        return Origin(source, node.func.value, here.index)
    return None


def _followed(here: Origin) -> Origin | None:
    """What a name was last given."""
    node, source = here.node, here.source
    if not isinstance(node, ast.Name):
        return None
    scope = source.scope_of(node)
    above = [
        binding
        for binding in _bindings(source, scope, node.id)
        if binding.end <= (node.lineno, node.col_offset)
    ]
    if above:
        return _bound(here, above[-1])
    if not isinstance(scope, ast.Module):
        passed = _passed(source, scope, node.id)
        if passed is not None:
            return Origin(source, passed, here.index)
        at_top = _bindings(source, source.tree, node.id)
        if at_top:
            return _bound(here, at_top[-1])
    return _imported(here, node.id)


def _bound(here: Origin, binding: Assignment) -> Origin:
    return Origin(here.source, binding.value, here.index if binding.entry is None else binding.entry)


def _bindings(source: ScriptSource, scope: Scope, name: str) -> list[Assignment]:
    """The assignments to a name in a function, in the order of the text."""
    return source.assignments.get((id(scope), name), [])


def _passed(source: ScriptSource, function: Scope, name: str) -> ast.expr | None:
    """What the first caller gives a parameter, else the parameter's default."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    parameters = parameters_of(function)
    if name not in parameters:
        return None
    at = list(parameters).index(name)
    for call in source.calls(function.name):
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if at < len(call.args) and not any(isinstance(given, ast.Starred) for given in call.args[: at + 1]):
            return call.args[at]
    return parameters[name]


def parameters_of(function: Function) -> dict[str, ast.expr | None]:
    """Parameter -> its default, or None; in their order, *args and **kwargs left out."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    return {parameter.arg: default for parameter, default in pairs}


def _imported(here: Origin, name: str) -> Origin | None:
    """A constant of a file beside the script."""
    dotted = here.source.imports.get(name, "")
    module, _, attribute = dotted.rpartition(".")
    other = here.source.beside(module) if module else None
    if other is None:
        return None
    at_top = _bindings(other, other.tree, attribute)
    return Origin(other, at_top[-1].value, at_top[-1].entry) if at_top else None
