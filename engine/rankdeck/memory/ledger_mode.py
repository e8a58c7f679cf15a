"""Pass operations to the ledger: a TorchDispatchMode per thread intercepts every operation below autograd.

Views and in-place operations create no storage, except on sparse tensors, which may get new indices and
values; for all other operations, the storages that they return are added. The effect of an operation is read
from its schema once and cached. This is the hot path of a tracked step: a few microseconds per operation.
Read storages.py and scopes.py first.

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
    call_operation,
    classify_effect,
    has_wrappers,
    in_backward,
    is_meta,
    is_wrapper,
    storage_key,
    storage_tensors,
    tree_leaves,
)
from .entries import StorageEntry, kind_index
from .scopes import ThreadState
from .storages import Storages

if TYPE_CHECKING:
    from ..base.errors import TrainingError
    from ..torch_compat.dispatch import OpOverload

ComputeFn = Callable[[Any, tuple[Any, ...], Kwargs | None], Any]
"""Function that computes an operation's result from the operation's arguments."""
_ACTIVATIONS = kind_index("activations")
_TEMPORARY = kind_index("temporary")
_NO_DEVICE = -1
_STRIDED = torch.strided
_SET_STORAGE = "set_.source_Storage_storage_offset"
"""Operation that sets a tensor's storage, e.g. to one that deepcopy or torch.load filled outside the mode."""


# Temporaries inside a kernel (such as a copy of the values in a sparse addition) are not tracked.
class LedgerMode(DispatchMode):
    """Dispatch mode that tracks one thread for a ledger. Enter it in that thread. `compute` executes the
    operations."""

    def __init__(
        self,
        storages: Storages,
        state: ThreadState,
        compute: ComputeFn = call_operation,
    ) -> None:
        super().__init__()
        self._compute = compute
        self._storages = storages
        self._live: dict[int, StorageEntry] = storages.live
        self._state = state
        # With a single device all inputs are on it, which saves the lookup in the hot path.
        self._has_many_devices = storages.num_devices > 1

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        # A wrapper subclass such as DTensor runs the operation on its inner tensors, which come here again.
        if types and has_wrappers(types):
            return NotImplemented
        effect = EFFECTS.get(func)
        if effect is None:
            effect = classify_effect(func)
        state = self._state
        if state.paused:
            return self._compute(func, args, kwargs)
        if effect == VIEWS:
            out = self._compute(func, args, kwargs)
            if isinstance(out, Tensor) and out.layout is not _STRIDED:
                self._add_tensor(out, state.device)
            return out
        device = state.device
        if self._has_many_devices and not state.is_transfer and effect != PER_ITEM:
            device = self._device_of(func, args, kwargs)
        out = self._compute(func, args, kwargs)
        if effect == WRITES:
            if isinstance(out, Tensor) and out.layout is not _STRIDED:
                self._add_tensor(out, device)
            return out
        if effect == RESIZES:
            self._update_sizes(args, kwargs)
            if func.__name__ == _SET_STORAGE:
                self._add_tensor(args[0], device)
            return out
        if isinstance(out, Tensor):
            self._add_tensor(out, device)
        elif out is not None:
            if effect == PER_ITEM:
                self._add_per_item(args, out)
            else:
                self._add_tensors(out if isinstance(out, (list, tuple)) else tree_leaves(out), device)
        return out

    def _add_tensor(self, tensor: Tensor, device: int) -> None:
        # Counting the wrappers of collective results made Llama with tensor parallelism 1.9 % too large.
        if is_wrapper(type(tensor)):
            return  # its inner tensors are added on creation; its own storage has no memory
        if tensor.layout is not _STRIDED:
            for component in storage_tensors(tensor):
                self._add_tensor(component, device)
            return
        storage = tensor.untyped_storage()
        if storage_key(storage) in self._live or is_meta(tensor):
            return
        kind = self._state.kind
        if kind is None:
            # A backward pass with gradients enabled is recomputing activations (checkpointing).
            kind = _TEMPORARY if in_backward() and not torch.is_grad_enabled() else _ACTIVATIONS
        self._storages.add(storage, device, kind)

    def _add_tensors(self, values: list[Any] | tuple[Any, ...], device: int) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self._add_tensor(value, device)
            elif isinstance(value, (list, tuple)):
                self._add_tensors(value, device)

    def _add_per_item(self, args: tuple[Any, ...], outputs: list[Any] | tuple[Any, ...]) -> None:
        givers = args[0]
        for giver, output in zip(givers, outputs, strict=False):
            entry = self._entry_of(giver)
            if isinstance(output, Tensor):
                self._add_tensor(output, self._state.device if entry is None else entry.device)

    def _device_of(self, func: OpOverload, args: tuple[Any, ...], kwargs: Kwargs | None) -> int:
        """Return the device that the inputs share, or this thread's device if no input has one.

        Scalars (0-dim) may come from any device, just as GPU operations accept scalars from the host; a
        scalar's device is used only if there are no other inputs.

        Raises:
            TrainingError: the inputs are on two virtual devices.
        """
        device = scalar_device = _NO_DEVICE
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
                elif device == _NO_DEVICE:
                    device = entry.device
                elif in_backward():
                    return self._device_without_zeros(func, args, kwargs)
                else:
                    raise _mixed_devices_error(func, device, entry.device)
        if device != _NO_DEVICE:
            return device
        return scalar_device if scalar_device != _NO_DEVICE else self._state.device

    def _device_without_zeros(self, func: OpOverload, args: tuple[Any, ...], kwargs: Kwargs | None) -> int:
        """Return the inputs' device, ignoring the expanded zeros that autograd fills in for missing
        gradients.

        On GPUs autograd creates these zeros on the device of the other gradients; here their device is
        unknown.
        """
        tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        # An expanded zero has only strides of 0.
        entries = [self._entry_of(tensor) for tensor in tensors if any(tensor.stride())]
        device, *others = dict.fromkeys(entry.device for entry in entries if entry is not None)
        if others:
            raise _mixed_devices_error(func, device, others[0])
        return device

    def _entry_of(self, tensor: Any) -> StorageEntry | None:
        if not isinstance(tensor, Tensor):
            return None
        if tensor.layout is _STRIDED:
            return self._live.get(storage_key(tensor.untyped_storage()))
        return next(filter(None, map(self._entry_of, storage_tensors(tensor))), None)

    def _update_sizes(self, args: tuple[Any, ...], kwargs: Kwargs | None) -> None:
        for tensor in tree_leaves((args, kwargs)):
            if self._entry_of(tensor) is not None:
                for component in storage_tensors(tensor):
                    self._storages.update_size(component.untyped_storage())


def _mixed_devices_error(func: OpOverload, first: int, second: int) -> TrainingError:
    from ..base.errors import TrainingError
    from ..base.phrases import phrase

    return TrainingError(
        phrase(
            "{function} read tensors on virtual devices {first} and {second}. On GPUs, this "
            "operation would fail.",
            function=func,
            first=first,
            second=second,
        ),
        code="device-mix",
        advice=phrase("Move one of the tensors first (VirtualDevices.transfer), or keep both on one device."),
    )
