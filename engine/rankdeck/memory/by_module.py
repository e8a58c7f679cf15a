"""Count the bytes on a device by module and kind: the model's modules and their share of the optimizer state.

Each storage counts once, under the first module and kind it belongs to. Names omit the strategies' wrappers,
so that they match the user's model. Read torch_memory.py first, which counts by kind alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

import torch
from torch import nn

from rankdeck.memory.torch_memory import num_bytes_of

MAX_MODULES = 200
"""Maximum number of modules to report; in larger models, inner modules are merged into outer ones."""
_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")

BytesByModule = dict[str, dict[str, int]]


def strip_wrappers(name: str) -> str:
    """Return a module's name without the names of wrappers around it."""
    return ".".join(component for component in name.split(".") if component not in _WRAPPERS)


def count_by_module(
    module: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device | None = None
) -> BytesByModule:
    """Return bytes by kind for each module that directly owns tensors. If `device` is None, count all
    devices."""
    counted: set[int] = set()
    by_module: BytesByModule = {}
    for name, submodule in module.named_modules():
        for kind, tensors in _tensors_by_kind(submodule, optimizer):
            num_bytes = num_bytes_of(tensors, device, counted)
            if num_bytes:
                kinds = by_module.setdefault(strip_wrappers(name), {})
                kinds[kind] = kinds.get(kind, 0) + num_bytes
    return merge_modules(by_module, MAX_MODULES)


def _tensors_by_kind(
    module: nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[tuple[str, Iterable[object]]]:
    weights = list(module.parameters(recurse=False))
    yield "parameters", weights
    yield "buffers", module.buffers(recurse=False)
    yield "gradients", [weight.grad for weight in weights]
    if optimizer is not None:
        # The optimizer's state is a defaultdict: reading a weight without state would create an entry.
        states = [optimizer.state[weight] for weight in weights if weight in optimizer.state]
        yield "optimizer", [value for state in states for value in state.values()]


def merge_modules(modules: Mapping[str, Mapping[str, int]], max_modules: int) -> BytesByModule:
    """Return at most `max_modules` modules, merging the most deeply nested modules into those around them."""
    merged: BytesByModule = {name: dict(kinds) for name, kinds in modules.items()}
    depth = max((name.count(".") for name in merged), default=0)
    while len(merged) > max_modules and depth > 0:
        outer: BytesByModule = {}
        for name, kinds in merged.items():
            outer_kinds = outer.setdefault(".".join(name.split(".")[:depth]), {})
            for kind, num_bytes in kinds.items():
                outer_kinds[kind] = outer_kinds.get(kind, 0) + num_bytes
        merged, depth = outer, depth - 1
    return dict(sorted(merged.items(), key=lambda item: -sum(item[1].values()))[:max_modules])


def failing_module(error: BaseException, model: nn.Module) -> str | None:
    """Return the innermost module of `model` that the exception passed through, e.g. 'blocks.2.mlp (MLP)'.

    None if it passed through no module.
    """
    names = {id(submodule): name for name, submodule in model.named_modules()}
    trace: TracebackType | None = error.__traceback__
    innermost: str | None = None
    while trace is not None:
        # The innermost frame whose `self` is a module requested the memory; backward passes have no such one.
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            name = names.get(id(owner))
            innermost = (
                innermost if name is None else f"{strip_wrappers(name)} ({type(owner).__name__})".strip()
            )
        trace = trace.tb_next
    return innermost
