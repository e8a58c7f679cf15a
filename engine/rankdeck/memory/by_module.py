"""Bytes by module and kind: what the model's own modules, and the optimizer for them, hold on a device.

Each storage counts once, under the first module and kind that name it. Wrappers of strategies are left out of
names, so that they are those of the person's model. Read torch_memory.py before, which counts by kind alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

import torch
from torch import nn

from rankdeck.memory.torch_memory import num_bytes_of

MAX_MODULES = 200
"""A deeper model is told by its outer modules."""
_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")

BytesByModule = dict[str, dict[str, int]]


def strip_wrappers(name: str) -> str:
    """A module's name without those of wrappers around it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def count_by_module(
    module: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device | None = None
) -> BytesByModule:
    """Bytes by kind of each module that holds any itself; `device` None counts all devices."""
    seen: set[int] = set()
    found: BytesByModule = {}
    for name, one in module.named_modules():
        for kind, tensors in _tensors_by_kind(one, optimizer):
            num_bytes = num_bytes_of(tensors, device, seen)
            if num_bytes:
                kinds = found.setdefault(strip_wrappers(name), {})
                kinds[kind] = kinds.get(kind, 0) + num_bytes
    return merge_modules(found, MAX_MODULES)


def _tensors_by_kind(
    module: nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[tuple[str, Iterable[object]]]:
    weights = list(module.parameters(recurse=False))
    yield "parameters", weights
    yield "buffers", module.buffers(recurse=False)
    yield "gradients", [weight.grad for weight in weights]
    if optimizer is not None:
        states = [optimizer.state[weight] for weight in weights if weight in optimizer.state]
        yield "optimizer", [value for state in states for value in state.values()]


def merge_modules(modules: Mapping[str, Mapping[str, int]], most: int) -> BytesByModule:
    """At most so many modules: the deepest names are added up under what they are inside of."""
    found: BytesByModule = {name: dict(kinds) for name, kinds in modules.items()}
    depth = max((name.count(".") for name in found), default=0)
    while len(found) > most and depth > 0:
        outer: BytesByModule = {}
        for name, kinds in found.items():
            kept = outer.setdefault(".".join(name.split(".")[:depth]), {})
            for kind, num_bytes in kinds.items():
                kept[kind] = kept.get(kind, 0) + num_bytes
        found, depth = outer, depth - 1
    return dict(sorted(found.items(), key=lambda item: -sum(item[1].values()))[:most])


def failing_module(error: BaseException, model: nn.Module) -> str | None:
    """The innermost of the model's modules whose code an exception came through, as in 'blocks.2.mlp (MLP)';
    None where there is none."""
    names = {id(one): name for name, one in model.named_modules()}
    trace: TracebackType | None = error.__traceback__
    found: str | None = None
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            name = names.get(id(owner))
            found = found if name is None else f"{strip_wrappers(name)} ({type(owner).__name__})".strip()
        trace = trace.tb_next
    return found
