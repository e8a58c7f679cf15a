"""How operations reach the ledger: a TorchDispatchMode that sees each one below autograd, per thread.

Views and in-place operations make no storage, but for those on sparse tensors, which may get other indices
and values; everything else enters what it returns. What an operation does is read from its schema once and
kept. This is the hot path of a followed step: a few microseconds per operation. Read storages.py and
scopes.py first.

Source: torch.utils._python_dispatch.TorchDispatchMode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..torch_compat.dispatch import (
    EFFECTS,
    PER_ITEM,
    RESIZES,
    VIEWS,
    WRITES,
    DispatchMode,
    Kwargs,
    computed,
    effect_of,
    in_backward,
    is_meta,
    is_wrapper,
    parts_of,
    storage_key,
    tree_leaves,
    wraps_others,
)
from .entries import StorageEntry, kind_index
from .scopes import ThreadState
from .storages import Storages

if TYPE_CHECKING:
    from ..base.errors import TrainingError
    from ..torch_compat.dispatch import OpOverload

Compute = Callable[[Any, tuple[Any, ...], Kwargs | None], Any]
"""What an operation returns for its arguments."""
_ACTIVATIONS = kind_index("activations")
_TEMPORARY = kind_index("temporary")
_NOWHERE = -1
_STRIDED = torch.strided
_LAID_OVER = "set_.source_Storage_storage_offset"
"""What copies of objects and files are made with: the storage was filled unseen."""


class Follower(DispatchMode):
    """Follows one thread for a ledger. Enter it in that thread. `compute` runs the operations."""

    def __init__(
        self,
        storages: Storages,
        state: ThreadState,
        compute: Compute = computed,
    ) -> None:
        super().__init__()
        self._compute = compute
        self._storages = storages
        self._live: dict[int, StorageEntry] = storages.live
        self._state = state
        self._has_many_devices = storages.num_devices > 1

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        if types and wraps_others(types):
            return NotImplemented
        effect = EFFECTS.get(func)
        if effect is None:
            effect = effect_of(func)
        state = self._state
        if state.paused:
            return self._compute(func, args, kwargs)
        if effect == VIEWS:
            out = self._compute(func, args, kwargs)
            if isinstance(out, Tensor) and out.layout is not _STRIDED:
                self._enter(out, state.device)
            return out
        device = state.device
        if self._has_many_devices and not state.crossing and effect != PER_ITEM:
            device = self._device_of(func, args, kwargs)
        out = self._compute(func, args, kwargs)
        if effect == WRITES:
            if isinstance(out, Tensor) and out.layout is not _STRIDED:
                self._enter(out, device)
            return out
        if effect == RESIZES:
            self._refresh(args, kwargs)
            if func.__name__ == _LAID_OVER:
                self._enter(args[0], device)
            return out
        if isinstance(out, Tensor):
            self._enter(out, device)
        elif out is not None:
            if effect == PER_ITEM:
                self._enter_per_item(args, out)
            else:
                self._enter_all(out if isinstance(out, (list, tuple)) else tree_leaves(out), device)
        return out

    def _enter(self, tensor: Tensor, device: int) -> None:
        if is_wrapper(type(tensor)):
            return  # what it holds was entered where it was made; its own storage has a size and no memory
        if tensor.layout is not _STRIDED:
            for part in parts_of(tensor):
                self._enter(part, device)
            return
        storage = tensor.untyped_storage()
        if storage_key(storage) in self._live or is_meta(tensor):
            return
        kind = self._state.kind
        if kind is None:
            kind = _TEMPORARY if in_backward() and not torch.is_grad_enabled() else _ACTIVATIONS
        self._storages.add(storage, device, kind)

    def _enter_all(self, values: list[Any] | tuple[Any, ...], device: int) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self._enter(value, device)
            elif isinstance(value, (list, tuple)):
                self._enter_all(value, device)

    def _enter_per_item(self, args: tuple[Any, ...], outputs: list[Any] | tuple[Any, ...]) -> None:
        givers = args[0]
        for giver, output in zip(givers, outputs, strict=False):
            entry = self._entry_of(giver)
            if isinstance(output, Tensor):
                self._enter(output, self._state.device if entry is None else entry.device)

    def _device_of(self, func: OpOverload, args: tuple[Any, ...], kwargs: Kwargs | None) -> int:
        """The one device of the inputs; this thread's device when there is none.

        Scalars (0-dim) may come from anywhere, as on GPUs those of the host may; they decide only when alone.

        Raises:
            TrainingError: the inputs live on two virtual devices.
        """
        device = scalar_device = _NOWHERE
        for arg in args if not kwargs else (*args, *kwargs.values()):
            if isinstance(arg, Tensor):
                tensors: Any = (arg,)
            elif isinstance(arg, (list, tuple)):
                tensors = arg
            else:
                continue
            for tensor in tensors:
                entry = self._entry_of(tensor)
                if entry is None or entry.device == device:
                    continue
                if not tensor.dim():
                    scalar_device = entry.device
                elif device == _NOWHERE:
                    device = entry.device
                elif in_backward():
                    return self._device_but_for_zeros(func, args, kwargs)
                else:
                    raise _mix_error(func, device, entry.device)
        if device != _NOWHERE:
            return device
        return scalar_device if scalar_device != _NOWHERE else self._state.device

    def _device_but_for_zeros(self, func: OpOverload, args: tuple[Any, ...], kwargs: Kwargs | None) -> int:
        """As `_device_of`, without what autograd fills in for a gradient that nobody gave: one zero,
        expanded. On GPUs it makes that on the device of the other gradients, here nothing says where.
        """
        given = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        entries = [self._entry_of(tensor) for tensor in given if any(tensor.stride())]
        device, *others = dict.fromkeys(entry.device for entry in entries if entry is not None)
        if others:
            raise _mix_error(func, device, others[0])
        return device

    def _entry_of(self, tensor: Any) -> StorageEntry | None:
        if not isinstance(tensor, Tensor):
            return None
        if tensor.layout is _STRIDED:
            return self._live.get(storage_key(tensor.untyped_storage()))
        return next(filter(None, map(self._entry_of, parts_of(tensor))), None)

    def _refresh(self, args: tuple[Any, ...], kwargs: Kwargs | None) -> None:
        for tensor in tree_leaves((args, kwargs)):
            if self._entry_of(tensor) is not None:
                for part in parts_of(tensor):
                    self._storages.resized(part.untyped_storage())


def _mix_error(func: OpOverload, first: int, second: int) -> TrainingError:
    from ..base.errors import TrainingError
    from ..base.phrases import phrase

    return TrainingError(
        phrase(
            "{function} read tensors of virtual devices {first} and {second}."
            " On GPUs this operation would fail.",
            function=func,
            first=first,
            second=second,
        ),
        code="device-mix",
        advice=phrase("Move one of them first (VirtualDevices.transfer), or keep both on one device."),
    )
