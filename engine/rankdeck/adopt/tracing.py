"""Traces a name in a script back to the expression that created its value, without executing code.

    optimizer = AdamW(model.parameters())  ->  model = DDP(model)  ->  model = build(width=64).to(device)

A name leads to the last assignment above its use, in the same function. A parameter leads to the argument
that the first caller passes, in the same file or in the file that imports it. `self.name` leads to an
assignment in a method of the same class. Any other name leads to the top level of the file. Calls that only
move or wrap a value (`.to`, DDP, accelerator.prepare) are skipped. The last assignment need not be the
executed one, but the user can check the result in the configuration. Read findings.py next.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from rankdeck.adopt.source import Assignment, Function, Scope, ScriptSource, self_attribute

MAX_TRACE_STEPS = 30
"""Maximum number of steps in tracing a value. Without a limit, tracing a parameter that a function passes to
itself would never end."""
_CONVERSION_METHODS = {
    "to",
    "cuda",
    "cpu",
    "train",
    "eval",
    "float",
    "double",
    "half",
    "bfloat16",
    "requires_grad_",
}
PARALLEL_WRAPPERS = {
    "DistributedDataParallel",
    "DDP",
    "DataParallel",
    "FullyShardedDataParallel",
    "FSDP",
    "fully_shard",
}
"""Names of torch's parallel wrappers, which the run's strategy replaces."""
_WRAPPERS = PARALLEL_WRAPPERS | {
    "compile",
    "convert_sync_batchnorm",
    "prepare",
    "prepare_model",
    "prepare_data_loader",
    "setup",
    "setup_module",
    "setup_dataloaders",
}


@dataclass(frozen=True)
class Origin:
    """An expression that created a value; if `index` is set, the value is only that entry of the expression's
    result."""

    source: ScriptSource
    node: ast.expr
    index: int | None = None

    @property
    def location(self) -> str:
        return self.source.location(self.node)

    @property
    def code(self) -> str:
        """The expression's source on one line."""
        text = " ".join(ast.unparse(self.node).split())
        return text if self.index is None else f"{text}[{self.index}]"

    @property
    def text(self) -> str:
        """The expression's source, shortened to 90 characters."""
        return self.code if len(self.code) <= 90 else self.code[:87] + "..."


def trace_origin(source: ScriptSource, node: ast.expr, index: int | None = None) -> Origin:
    """Trace a value, or its entry `index`, back to the earliest expression that the script's source shows."""
    here = Origin(source, node, index)
    for _ in range(MAX_TRACE_STEPS):
        further = _unwrap(here) or _follow_name(here)
        if further is None:
            break
        here = further
    return here


def _unwrap(here: Origin) -> Origin | None:
    """Return the inner expression if `here` only moves it, wraps it, or takes an entry of it; otherwise
    None."""
    node, source = here.node, here.source
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and here.index is None:
        index = node.slice.value
        return Origin(source, node.value, index) if isinstance(index, int) else None
    if isinstance(node, ast.Tuple | ast.List) and here.index is not None and here.index < len(node.elts):
        return Origin(source, node.elts[here.index])
    # The model inside DDP or DataParallel.
    if isinstance(node, ast.Attribute) and node.attr == "module":
        return Origin(source, node.value)
    if not isinstance(node, ast.Call):
        return None
    name = (source.dotted_name(node.func) or "").rpartition(".")[2]
    if name in _WRAPPERS and node.args:
        # accelerator.prepare(model, optimizer) returns its arguments in order.
        at = here.index if here.index is not None and len(node.args) > 1 else 0
        return Origin(source, node.args[at]) if at < len(node.args) else None
    if name in _CONVERSION_METHODS and isinstance(node.func, ast.Attribute):
        return Origin(source, node.func.value, here.index)
    return None


def _follow_name(here: Origin) -> Origin | None:
    """Return the value of the name or `self` attribute at `here`; None if `here` is neither or its value is
    unknown."""
    node, source = here.node, here.source
    scope = source.scope_of(node)
    if self_attribute(node) is not None:
        return _follow_self_attribute(here, scope)
    if not isinstance(node, ast.Name):
        return None
    above = [
        binding
        for binding in _bindings(source, scope, node.id)
        if binding.end <= (node.lineno, node.col_offset)
    ]
    if above:
        return _assigned_origin(here, above[-1])
    if not isinstance(scope, ast.Module):
        passed = _find_passed_argument(source, scope, node.id)
        if passed is not None:
            return Origin(*passed, here.index)
        at_top = _bindings(source, source.tree, node.id)
        if at_top:
            return _assigned_origin(here, at_top[-1])
    return _imported_constant(here, node.id)


def _assigned_origin(here: Origin, binding: Assignment) -> Origin:
    return Origin(here.source, binding.value, here.index if binding.entry is None else binding.entry)


def _bindings(source: ScriptSource, scope: Scope | ast.ClassDef, name: str) -> list[Assignment]:
    """Return the assignments to a name in a function or class, in source order."""
    return source.assignments.get((id(scope), name), [])


def _follow_self_attribute(here: Origin, scope: Scope) -> Origin | None:
    """Return the value assigned to `self.name` above its use in the same method, else in __init__, else in
    any other method."""
    owner = here.source.class_of(scope)
    assignments = [] if owner is None else _bindings(here.source, owner, ast.unparse(here.node))
    methods = [(here.source.scope_of(assignment.value), assignment) for assignment in assignments]
    above = [
        assignment
        for method, assignment in methods
        if method is scope and assignment.end <= (here.node.lineno, here.node.col_offset)
    ]
    in_init = [
        assignment
        for method, assignment in methods
        if getattr(method, "name", "") == "__init__" and method is not scope
    ]
    others = [assignment for method, assignment in methods if method is not scope]
    candidates = above or in_init or others
    return _assigned_origin(here, candidates[-1]) if candidates else None


def _find_passed_argument(
    source: ScriptSource, function: Scope, name: str
) -> tuple[ScriptSource, ast.expr] | None:
    """Return the argument that the first caller passes for parameter `name` of `function`, else the
    parameter's default."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    parameters = parameters_of(function)
    if name not in parameters:
        return None
    owner = source.class_of(function)
    # A constructor is called by the name of its class.
    called = owner.name if owner is not None and function.name == "__init__" else function.name
    # The call of a method passes no self.
    at = list(parameters).index(name) - (owner is not None and next(iter(parameters)) == "self")
    caller: ScriptSource | None = source
    while caller is not None:
        for call in caller.calls(called):
            for keyword in call.keywords:
                if keyword.arg == name:
                    return caller, keyword.value
            arguments = call.args[: at + 1]
            if 0 <= at < len(arguments) and not any(
                isinstance(argument, ast.Starred) for argument in arguments
            ):
                return caller, arguments[at]
        caller = caller.importer
    default = parameters[name]
    return None if default is None else (source, default)


def returned_origin(origin: Origin) -> Origin | None:
    """Return the expression that the function called at `origin` returns, or entry `origin.index` of its
    result.

    Returns None unless the script defines the function, with exactly one `return`.
    """
    call = origin.node
    definition = (
        origin.source.find_definition(origin.source.dotted_name(call.func) or "")
        if isinstance(call, ast.Call)
        else None
    )
    if definition is None or isinstance(definition[1], ast.ClassDef):
        return None
    source, function = definition
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(values) != 1 or values[0] is None:
        return None
    return trace_origin(source, values[0], origin.index)


def parameters_of(function: Function) -> dict[str, ast.expr | None]:
    """Return the parameters except *args and **kwargs, in signature order, with their defaults or None."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    return {parameter.arg: default for parameter, default in pairs}


def _imported_constant(here: Origin, name: str) -> Origin | None:
    """Return the value of `name` if it is imported from a local file, otherwise None."""
    dotted = here.source.imports.get(name, "")
    module, _, attribute = dotted.rpartition(".")
    other = here.source.local_module(module) if module else None
    if other is None:
        return None
    at_top = _bindings(other, other.tree, attribute)
    return Origin(other, at_top[-1].value, at_top[-1].entry) if at_top else None
