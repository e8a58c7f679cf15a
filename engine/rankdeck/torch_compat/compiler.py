"""Training that does not import torch's compiler, half a second and more of every start, until it compiles.

Each step of an optimizer imports torch._dynamo to mark where a graph breaks, other methods to be left out of
graphs, and DistributedDataParallel to read an option. As long as it is not imported there are no graphs, and
these functions do without it. As soon as anybody imports it, by whatever way, they are torch's own again.

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

from .places import Private

_NAME = "torch._dynamo"
_WITHOUT = "runs start a second later"
_KEPT = "__dynamo_disable"
"""Where torch keeps, on a function, what the compiler made of it."""
PLACES = (
    Private("torch.optim.optimizer:_use_grad_for_differentiable", _WITHOUT, takes=("func",)),
    Private("torch._compile:_disable_dynamo", _WITHOUT, takes=("fn",)),
    Private(f"{_NAME}.utils:get_optimize_ddp_mode", _WITHOUT, takes=()),
)


def import_when_needed() -> None:
    """Let the compiler be imported by the first that compiles, traces or configures it."""
    if _NAME not in sys.modules and not any(isinstance(finder, _TorchsOwn) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchsOwn())


@contextlib.contextmanager
def wrapping() -> Iterator[None]:
    """Make a DistributedDataParallel, which asks the compiler how it would cut graphs."""
    if _NAME in sys.modules:
        yield
        return
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")  # without a configuration
    vars(torch)["_dynamo"] = SimpleNamespace(utils=utils)
    try:
        yield
    finally:
        if isinstance(vars(torch).get("_dynamo"), SimpleNamespace):
            del vars(torch)["_dynamo"]


class _TorchsOwn(MetaPathFinder):
    """Does without the compiler until it is imported; finds no module itself."""

    def __init__(self) -> None:
        self._codes: dict[FunctionType, CodeType] = {}
        self._left_out: list[FunctionType] = []
        for kind in _with_subclasses(Optimizer):
            for step in _wrappers(vars(kind).get("step")):
                code = step.__code__
                is_torchs = (code.co_name, code.co_freevars) == (_EAGER.co_name, _EAGER.co_freevars)
                if is_torchs and _NAMES.issuperset(code.co_names):
                    self._codes[step] = code
                    step.__code__ = _EAGER
        left_out = Optimizer.zero_grad.__code__
        for method in [*vars(Optimizer).values(), *vars(DistributedDataParallel).values()]:
            for wrapper in _wrappers(method):
                if wrapper.__code__ is left_out and not hasattr(function := wrapper.__wrapped__, _KEPT):  # type: ignore[attr-defined]
                    setattr(function, _KEPT, function)
                    self._left_out.append(function)

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == _NAME:
            for function, code in self._codes.items():
                function.__code__ = code
            for function in self._left_out:
                vars(function).pop(_KEPT, None)


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))


def _wrappers(function: Any) -> Iterator[FunctionType]:
    """A function, the one that it wraps, and so on."""
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


_EAGER = _use_grad_for_differentiable(lambda: None).__code__
"""What torch's function does outside a graph; `torch` is a name of its module, too."""
_NAMES = {*_EAGER.co_names, _NAME, "_dynamo", "graph_break", "cast", "Optimizer"}
"""What torch's function calls. One that calls more does more, and stays."""
