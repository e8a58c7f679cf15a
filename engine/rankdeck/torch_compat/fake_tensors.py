"""Tensors with shapes but no memory, and a process group whose collectives finish at once.

Source: torch._subclasses.fake_tensor; torch.testing._internal.distributed.fake_pg.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor

from rankdeck.torch_compat.private_api import PrivateApi

_NO_PLANS = "all plans fail"
_SLOW_PLANS = "plans take 1.5 times as long"
_NO_THREADED_PLANS = "plans of models that load weights in several threads fail"


def _make_fake_tensor() -> Any:
    with fake_tensor.FakeTensorMode():
        return torch.zeros(2)


PRIVATE_APIS = (
    PrivateApi(
        "torch._subclasses.fake_tensor:FakeTensorMode.from_tensor", _NO_PLANS, parameters=("self", "tensor")
    ),
    PrivateApi(
        "torch._subclasses.fake_tensor:in_kernel_invocation_manager", _SLOW_PLANS, parameters=("fake_mode",)
    ),
    PrivateApi(
        "torch._subclasses.fake_tensor:DataDependentOutputException",
        "error messages of some failed plans are unclear",
    ),
    PrivateApi(
        "torch._subclasses.fake_tensor:DynamicOutputShapeException",
        "error messages of some failed plans are unclear",
    ),
    PrivateApi("torch._C:_get_dispatch_mode", _SLOW_PLANS),
    PrivateApi("torch._C:_DisableTorchDispatch", _NO_PLANS),
    PrivateApi("torch._C:_set_throw_on_mutable_data_ptr", _NO_PLANS),
    PrivateApi("torch:Tensor._make_subclass", _NO_PLANS),
    PrivateApi("torch._C:_TorchDispatchModeKey.FAKE", _SLOW_PLANS),
    PrivateApi("the fake_device of a fake tensor", _NO_PLANS, lookup=lambda: _make_fake_tensor().fake_device),
    PrivateApi("the fake_mode of a fake tensor", _SLOW_PLANS, lookup=lambda: _make_fake_tensor().fake_mode),
    PrivateApi(
        "the in_kernel_invocation of a fake mode",
        _NO_THREADED_PLANS,
        lookup=lambda: _make_fake_tensor().fake_mode.in_kernel_invocation,
    ),
    PrivateApi(
        "the enter_stack of a fake mode",
        _NO_THREADED_PLANS,
        lookup=lambda: _make_fake_tensor().fake_mode.enter_stack,
    ),
    PrivateApi("the constant of a fake tensor", _SLOW_PLANS, lookup=lambda: _make_fake_tensor().constant),
    PrivateApi(
        "the _has_symbolic_sizes_strides of a fake tensor",
        _SLOW_PLANS,
        lookup=lambda: _make_fake_tensor()._has_symbolic_sizes_strides,
    ),
    PrivateApi("torch.testing._internal.distributed.fake_pg:FakeStore", "plans for several ranks fail"),
    PrivateApi("torch.ops:prim.device.default", _NO_PLANS),
    PrivateApi("torch.ops:aten._local_scalar_dense.default", _NO_PLANS),
    PrivateApi("torch.ops:aten.mkldnn_rnn_layer.default", "plans of LSTMs understate memory"),
)

DEVICE_OP = torch.ops.prim.device.default
"""The operation that torch calls, through every mode, to read a fake tensor's device."""

in_kernel = getattr(fake_tensor, "in_kernel_invocation_manager", None)
"""A context in which a fake tensor appears to be on "meta"; None if this version of torch has none."""


class FakeTensorMode(fake_tensor.FakeTensorMode):
    """Variant of torch's fake mode that several threads can use at once.

    Each thread has its own flag for whether a kernel is running, and its own stack of the fake modes to
    restore on exit.
    """

    def __init__(self, **options: Any) -> None:
        # Before torch's constructor, which sets the properties below.
        self._thread_state = threading.local()
        super().__init__(**options)

    @property
    def in_kernel_invocation(self) -> bool:
        return getattr(self._thread_state, "in_kernel", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._thread_state.in_kernel = value

    @property
    def enter_stack(self) -> list[Any]:
        stack: list[Any] = vars(self._thread_state).setdefault("stack", [])
        return stack

    @enter_stack.setter
    def enter_stack(self, value: list[Any]) -> None:
        self._thread_state.stack = value


no_dispatch = torch._C._DisableTorchDispatch
"""A context in which no mode intercepts operations: twice as fast as `in_kernel`, for calls without fake
tensors."""


def active_fake_mode() -> Any:
    """Return the calling thread's active fake mode, or None."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def make_fake_tensor(
    blank: torch.Tensor, mode: fake_tensor.FakeTensorMode, device: torch.device, state: Mapping[str, object]
) -> FakeTensor:
    """Make a fake tensor from the "meta" tensor `blank`, four times as fast as torch itself.

    `state` holds the attributes of a fake tensor made by torch, except its mode.
    """
    fake = torch.Tensor._make_subclass(
        FakeTensor, blank, False, dispatch_device=True, device_for_backend_keys=device
    )
    # As torch does itself: writing through the pointer of a tensor without memory would crash.
    torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(state, fake_mode=mode)
    return fake


def has_symbols(tensor: FakeTensor) -> bool:
    """Check whether the tensor's sizes or strides are symbols rather than numbers."""
    return bool(tensor._has_symbolic_sizes_strides)


def init_fake_process_group(rank: int, world_size: int) -> None:
    """Initialize torch.distributed as rank `rank` of a group of `world_size` ranks; the group's collectives
    finish at once and change no tensors."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
