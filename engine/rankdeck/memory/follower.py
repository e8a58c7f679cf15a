"""How operations reach the ledger: a TorchDispatchMode that sees each one below autograd, per thread.

Views and in-place operations make no storage; everything else enters what it returns. What an operation
does is read from its schema once and kept. This is the hot path of a followed step: a few microseconds per
operation. Read ledger.py first.

Source: torch.utils._python_dispatch.TorchDispatchMode.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankdeck.memory.entries import DeviceMixError, kind_index

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from rankdeck.memory.entries import Entry
    from rankdeck.memory.ledger import Ledger

VIEWS, WRITES, CREATES, RESIZES, PER_ITEM = range(5)
_EFFECTS: dict[OpOverload, int] = {}
_ACTIVATIONS = kind_index("activations")
_TEMPORARY = kind_index("temporary")
_NO_BACKWARD = -1
_NOWHERE = -1


class ThreadState:
    """Where one thread is. `kind` None follows the rule of ledger.py."""

    __slots__ = ("crossing", "depth", "device", "kind", "paused")

    def __init__(self) -> None:
        self.device = 0
        self.kind: int | None = None
        self.crossing = False
        self.paused = 0
        self.depth = 0


def effect_of(func: OpOverload) -> int:
    """What an operation does to storages, read from its schema.

    VIEWS: returns aliases, or nothing. WRITES: in place. CREATES: may return new storages. RESIZES: may
    change the bytes of a storage that it was given. PER_ITEM: works through lists item by item, so items
    may be on different devices.
    """
    schema = func._schema
    if func.__name__.startswith("_foreach_"):
        effect = PER_ITEM if schema.returns else VIEWS
    elif "out" in func._overloadname.split("_") or func.__name__.startswith(("resize_", "set_")):
        effect = RESIZES
    elif func.__name__.startswith("lift_fresh") or any(out.alias_info is None for out in schema.returns):
        # torch.tensor(...) fills its storage unseen and shows it first here, as a view.
        effect = CREATES
    elif any(
        argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
    ):
        effect = WRITES
    else:
        effect = VIEWS
    _EFFECTS[func] = effect
    return effect


class Follower(TorchDispatchMode):
    """Follows one thread for a ledger. Enter it in that thread."""

    def __init__(self, ledger: Ledger, state: ThreadState) -> None:
        super().__init__()
        self._ledger = ledger
        self._live: dict[int, Entry] = ledger.live
        self._state = state
        self._has_many_devices = ledger.num_devices > 1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap the hot path in a call that imports torch._dynamo: seconds, and never used here.
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and _wraps_others(types):
            return NotImplemented
        effect = _EFFECTS.get(func)
        if effect is None:
            effect = effect_of(func)
        state = self._state
        if effect == VIEWS or state.paused:
            return func(*args, **kwargs) if kwargs else func(*args)
        device = state.device
        if self._has_many_devices and not state.crossing and effect != PER_ITEM:
            device = self._device_of(func, args, kwargs)
        out = func(*args, **kwargs) if kwargs else func(*args)
        if effect == WRITES:
            return out
        if effect == RESIZES:
            self._refresh(args, kwargs)
            return out
        if isinstance(out, Tensor):
            self._enter(out, device)
        elif out is not None:
            if effect == PER_ITEM:
                self._enter_per_item(args, out)
            else:
                for leaf in out if isinstance(out, (list, tuple)) else tree_leaves(out):
                    if isinstance(leaf, Tensor):
                        self._enter(leaf, device)
                    elif isinstance(leaf, (list, tuple)):
                        self._enter_all(leaf, device)
        return out

    def _enter(self, tensor: Tensor, device: int) -> None:
        if _is_wrapper(type(tensor)):
            return  # what it holds was booked where it was made; its own storage has a size and no memory
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            return  # sparse tensors have no storage of their own
        if storage._cdata in self._live or tensor.is_meta:
            return
        kind = self._state.kind
        if kind is None:
            in_backward = torch._C._current_graph_task_id() != _NO_BACKWARD
            kind = _TEMPORARY if in_backward and not torch.is_grad_enabled() else _ACTIVATIONS
        self._ledger.add(storage, device, kind)

    def _enter_all(self, tensors: list[Any] | tuple[Any, ...], device: int) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._enter(tensor, device)

    def _enter_per_item(self, args: tuple[Any, ...], outputs: list[Any] | tuple[Any, ...]) -> None:
        givers = args[0]
        for giver, output in zip(givers, outputs, strict=False):
            entry = self._entry_of(giver)
            if isinstance(output, Tensor):
                self._enter(output, self._state.device if entry is None else entry.device)

    def _device_of(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> int:
        """The one device of the inputs; this thread's device when there is none.

        Scalars (0-dim) may come from anywhere, as on GPUs those of the host may; they decide only when alone.

        Raises:
            DeviceMixError: the inputs live on two virtual devices.
        """
        device = scalar_device = _NOWHERE
        live = self._live
        for arg in args if not kwargs else (*args, *kwargs.values()):
            if isinstance(arg, Tensor):
                tensors: Any = (arg,)
            elif isinstance(arg, (list, tuple)):
                tensors = arg
            else:
                continue
            for tensor in tensors:
                if not isinstance(tensor, Tensor):
                    continue
                try:
                    entry = live.get(tensor.untyped_storage()._cdata)
                except NotImplementedError:
                    continue
                if entry is None or entry.device == device:
                    continue
                if not tensor.dim():
                    scalar_device = entry.device
                elif device == _NOWHERE:
                    device = entry.device
                else:
                    raise _mix_error(func, device, entry.device)
        if device != _NOWHERE:
            return device
        return scalar_device if scalar_device != _NOWHERE else self._state.device

    def _entry_of(self, tensor: Any) -> Entry | None:
        if not isinstance(tensor, Tensor):
            return None
        try:
            return self._live.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:
            return None

    def _refresh(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        for tensor in tree_leaves((args, kwargs)):
            if self._entry_of(tensor) is not None:
                self._ledger.resized(tensor.untyped_storage())


def _mix_error(func: OpOverload, first: int, second: int) -> DeviceMixError:
    return DeviceMixError(
        f"{func} read tensors of virtual devices {first} and {second}. On GPUs this operation would fail.",
        advice="Move one of them first (VirtualDevices.transfer), or keep both on one device.",
    )


def _wraps_others(types: Sequence[type]) -> bool:
    """Whether an argument wraps other tensors (DTensor, a result of a collective that is not waited for yet):
    those are followed where it unwraps itself.

    Plain subclasses (Parameter) wrap nothing, nor does a fake tensor: its storage is the one to book.
    """
    return any(_is_wrapper(cls) for cls in types)


@functools.cache
def _is_wrapper(cls: type) -> bool:
    plain = torch._C._disabled_torch_dispatch_impl
    return cls.__name__ != "FakeTensor" and getattr(cls, "__torch_dispatch__", plain) is not plain
