"""Delay the import of torch's compiler until code is compiled, which saves over half a second per start.

Each step of an optimizer imports torch._dynamo to mark a graph break, some methods of optimizers and of
DistributedDataParallel import it so that graphs exclude them, and DistributedDataParallel's constructor
imports it to read an option. Until torch._dynamo is imported there are no graphs, so all of these work
without it. As soon as any code imports it, in any way, torch's original functions are restored.

Source: torch/_compile.py, torch/optim/optimizer.py, torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .private_api import PrivateApi

_DYNAMO = "torch._dynamo"
_SLOW_START = "runs take a second longer to start"
_DISABLED_ATTRIBUTE = "__dynamo_disable"
"""Attribute in which torch stores a function's wrapped variant, which the compiler skips."""
PRIVATE_APIS = (
    PrivateApi("torch.optim.optimizer:_use_grad_for_differentiable", _SLOW_START, parameters=("func",)),
    PrivateApi("torch._compile:_disable_dynamo", _SLOW_START, parameters=("fn",)),
    PrivateApi(f"{_DYNAMO}.utils:get_optimize_ddp_mode", _SLOW_START, parameters=()),
)


def defer_compiler_import() -> None:
    """Defer importing the compiler until code compiles or traces a function, or configures the compiler."""
    if _DYNAMO not in sys.modules and not any(
        isinstance(finder, _CompilerFinder) for finder in sys.meta_path
    ):
        # First, so that torch's functions are restored before the import starts.
        sys.meta_path.insert(0, _CompilerFinder())


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Prevent DistributedDataParallel's constructor, called in the `with` block, from importing the compiler
    just to read an option."""
    if _DYNAMO in sys.modules:
        yield
        return
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")  # without a configuration
    vars(torch)["_dynamo"] = SimpleNamespace(utils=utils)
    try:
        yield
    finally:
        # The real module may have been imported meanwhile.
        if isinstance(vars(torch).get("_dynamo"), SimpleNamespace):
            del vars(torch)["_dynamo"]


class _CompilerFinder(MetaPathFinder):
    """Import finder that prevents torch's functions from importing the compiler until other code imports it;
    the finder itself never finds a module."""

    def __init__(self) -> None:
        self._original_codes: dict[FunctionType, CodeType] = {}
        self._marked_functions: list[FunctionType] = []
        for kind in _all_subclasses(Optimizer):
            for step in _iter_wrapped(vars(kind).get("step")):
                code = step.__code__
                is_torchs = (code.co_name, code.co_freevars) == (_EAGER_CODE.co_name, _EAGER_CODE.co_freevars)
                if is_torchs and _EAGER_NAMES.issuperset(code.co_names):
                    self._original_codes[step] = code
                    step.__code__ = _EAGER_CODE
        # torch's decorator gives all its wrappers one code object; zero_grad is a method that has it.
        left_out = Optimizer.zero_grad.__code__
        for method in [*vars(Optimizer).values(), *vars(DistributedDataParallel).values()]:
            for wrapper in _iter_wrapped(method):
                function: Any = getattr(wrapper, "__wrapped__", None)
                if wrapper.__code__ is left_out and not hasattr(function, _DISABLED_ATTRIBUTE):
                    setattr(function, _DISABLED_ATTRIBUTE, function)
                    self._marked_functions.append(function)

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == _DYNAMO:
            for function, code in self._original_codes.items():
                function.__code__ = code
            for function in self._marked_functions:
                vars(function).pop(_DISABLED_ATTRIBUTE, None)


def _all_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_all_subclasses, kind.__subclasses__()))


def _iter_wrapped(function: Any) -> Iterator[FunctionType]:
    """Yield a function and all functions that it wraps, outermost first."""
    while type(function) is FunctionType:
        yield function
        function = getattr(function, "__wrapped__", None)


def _use_grad_for_differentiable(func: Callable[..., Any]) -> FunctionType:
    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        was_enabled = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(was_enabled)

    return _use_grad  # type: ignore[return-value]


_EAGER_CODE = _use_grad_for_differentiable(lambda: None).__code__
"""Replacement for the code of torch's wrapper of an optimizer step, with the same effect outside a graph. It
runs with the globals of torch.optim.optimizer, which include `torch`."""
_EAGER_NAMES = {*_EAGER_CODE.co_names, _DYNAMO, "_dynamo", "graph_break", "cast", "Optimizer"}
"""Names that torch's wrapper of an optimizer step uses. A wrapper that uses other names does other work, and
is not replaced."""
