"""torch's compiler, of which a step on fake tensors wants little: its settings, and that it stays out.

Importing torch._dynamo takes half as long as torch itself, and every optimizer's step imports it. In its
place stands a module that has this little; whoever asks for anything else gets the real one, for good.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from rankdeck.torch_compat.places import Private

_NAME = "torch._dynamo"
_SETTINGS = f"{_NAME}.config"
_SOURCES = f"{_NAME}.source"
_SLOW = "plans begin later"
PLACES = (
    Private(f"{_NAME}:graph_break", _SLOW),
    Private(f"{_NAME}:disable", _SLOW, takes=("fn", "recursive")),
    Private(_SETTINGS, _SLOW),
    Private(f"{_SOURCES}:ConstantSource", _SLOW, takes=("source_name",)),
)


@contextlib.contextmanager
def compiler_left_out() -> Iterator[None]:
    """A context in which nothing is compiled, and torch's compiler is imported only by whoever needs it."""
    if _NAME in sys.modules:
        yield
        return
    parts = _Parts()
    sys.modules[_NAME] = _StandIn(_NAME, graph_break=_no_graph, disable=_not_compiled)
    sys.modules[_NAME].__path__ = [str(Path(torch.__file__).with_name("_dynamo"))]
    sys.modules[_SOURCES] = _StandIn(_SOURCES, ConstantSource=_Source, RandomValueSource=_Random)
    sys.meta_path.insert(0, parts)
    try:
        yield
    finally:
        sys.meta_path.remove(parts)
        _leave()


class _StandIn(ModuleType):
    """The answers that it is made with; for any other the real module takes its place."""

    def __init__(self, name: str, **answers: Any) -> None:
        super().__init__(name)
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _leave()
        return getattr(importlib.import_module(self.__name__), name)


class _Source:
    """What a fake tensor keeps of where it came from; only a compiler reads it."""

    def __init__(self, source_name: str) -> None:
        self.source_name = source_name


class _Random(_Source):
    """Nothing comes from there."""


def _no_graph(*_: Any, **__: Any) -> None:
    """There is none to break."""


def _not_compiled(fn: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """The function itself, which has nothing to stay out of."""
    return fn


def _leave() -> None:
    """Make room for the real modules, if this has not happened yet."""
    if isinstance(sys.modules.get(_NAME), _StandIn):
        for name in (_NAME, _SOURCES, _SETTINGS):
            sys.modules.pop(name, None)


class _Parts:
    """Finds modules inside of torch._dynamo, by importing all of it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_part = name.startswith(f"{_NAME}.") and name != _SETTINGS
        if not is_part or not isinstance(sys.modules.get(_NAME), _StandIn):
            return None
        _leave()
        importlib.import_module(_NAME)
        if name in sys.modules:  # it came along, and is not to be run twice
            return ModuleSpec(name, _Imported(sys.modules[name]))  # type: ignore[arg-type]
        return importlib.util.find_spec(name)


class _Imported:
    """A loader of a module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
