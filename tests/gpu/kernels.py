"""What kernels and libraries allocate besides their results, measured and planned, kernel by kernel.

The planner runs the same function on tensors without memory, under its rules of a GPU. The context and
cuBLAS' workspaces are constants of config/gpu_models.py, looked for in a process that has just begun. What
NCCL holds needs more than one card.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rankdeck.base.units import format_bytes
from rankdeck.config.gpu_models import gpu_model
from rankdeck.memory.ledger import Ledger
from rankdeck.planner.plan_ledger import CUDA_ROUNDING_BYTES
from rankdeck.planner.planning_mode import emulate_cuda
from rankdeck.torch_compat.fake_tensors import FakeTensorMode
from tests.gpu.children import ChildError, in_child
from tests.gpu.device import MIB, AnyDevice
from tests.gpu.driver import Driver
from tests.gpu.part import Part

BAR = 0.05
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Kernel:
    """`run` on inputs of these shapes, of which the first `num_batched` have the batch as their first dim: a
    CPU gets a part of it. With `has_classes` the last are class numbers."""

    name: str
    run: Callable[..., Tensor]
    shapes: Sequence[tuple[int, ...]]
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    num_batched: int = 1
    has_classes: bool = False

    def inputs(self, device: torch.device, *, small: bool) -> list[Tensor]:
        tensors = []
        for index, (first, *sizes) in enumerate(self.shapes):
            shape = (first // 16 if small and index < self.num_batched else first, *sizes)
            is_classes = self.has_classes and index == len(self.shapes) - 1
            dtype = torch.int64 if is_classes else self.dtype
            tensors.append(torch.zeros(shape, dtype=dtype, device=device, requires_grad=not is_classes))
        return tensors


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


_HALF = torch.bfloat16
_HEADS = [(16, 16, 1024, 64)] * 3
KERNELS = (
    Kernel("linear, fp32", F.linear, [(8192, 2048), (2048, 2048), (2048,)]),
    Kernel("linear, bf16", F.linear, [(8192, 2048), (2048, 2048), (2048,)], _HALF),
    Kernel("linear, autocast", F.linear, [(8192, 2048), (2048, 2048), (2048,)], autocast=True),
    Kernel("attention, bf16", _attention, _HEADS, _HALF, num_batched=3),
    Kernel("attention, fp32", _attention, _HEADS, num_batched=3),
    Kernel("attention, rows of no whole 16 bytes", _attention, [(16, 4, 512, 63)] * 3, num_batched=3),
    Kernel("dropout", lambda x: F.dropout(x, 0.1), [(64, 1024, 1024)]),
    Kernel(
        "layer norm, autocast",
        lambda x, w: F.layer_norm(x, w.shape, w),
        [(16384, 1024), (1024,)],
        autocast=True,
    ),
    Kernel("gelu", F.gelu, [(64, 1024, 1024)]),
    Kernel(
        "cross entropy, autocast",
        F.cross_entropy,
        [(8192, 32000), (8192,)],
        autocast=True,
        num_batched=2,
        has_classes=True,
    ),
    Kernel(
        "convolution 3x3, fp32", lambda x, w: F.conv2d(x, w, padding=1), [(64, 64, 56, 56), (64, 64, 3, 3)]
    ),
    Kernel(
        "convolution 7x7, autocast",
        lambda x, w: F.conv2d(x, w, stride=2, padding=3),
        [(64, 3, 224, 224), (64, 3, 7, 7)],
        autocast=True,
    ),
    Kernel("max pool", lambda x: F.max_pool2d(x, 3, 2, 1), [(64, 64, 112, 112)]),
)


@dataclass(frozen=True)
class Needs:
    """Beside the inputs: what lives after the forward, and the peaks of forward and backward."""

    kept_bytes: int
    forward_bytes: int
    backward_bytes: int


def _forward(kernel: Kernel, inputs: list[Tensor], device_type: str) -> Tensor:
    with torch.autocast(device_type, dtype=_HALF) if kernel.autocast else contextlib.nullcontext():
        return kernel.run(*inputs)


def _backward(out: Tensor) -> None:
    """From a gradient of its own memory, as the next layer's is."""
    out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]


def measured(kernel: Kernel, device: AnyDevice) -> Needs:
    """Of the second time: libraries have their workspaces then. Call it in a process of its own."""
    inputs = kernel.inputs(device.torch_device, small=not device.is_real)
    _backward(_forward(kernel, inputs, device.torch_device.type))
    del inputs
    with device.watching() as watched:
        inputs = kernel.inputs(device.torch_device, small=not device.is_real)
        watched.next_section()
        out = _forward(kernel, inputs, device.torch_device.type)
        watched.next_section()
        _backward(out)
    before, forward, backward = watched.sections
    base = before.live_bytes
    return Needs(forward.live_bytes - base, forward.peak_bytes - base, backward.peak_bytes - base)


def planned(kernel: Kernel, device: AnyDevice) -> Needs:
    """On tensors without memory, under a GPU's rules where there is one."""
    ledger = Ledger(1, round_to_bytes=CUDA_ROUNDING_BYTES if device.is_real else 1)
    cpu = torch.device("cpu")
    with FakeTensorMode(), emulate_cuda("bf16" if kernel.autocast else "fp32", enabled=device.is_real):
        with ledger.tracking():
            inputs = kernel.inputs(cpu, small=not device.is_real)
        base = ledger.live_bytes
        with ledger.tracking():
            out = _forward(kernel, inputs, "cpu")
        kept_bytes, forward = ledger.live_bytes, ledger.devices()[0].peak_bytes
        with ledger.tracking():
            _backward(out)
        backward = ledger.devices()[0].peak_bytes
    return Needs(kept_bytes - base, forward - base, backward - base)


def measure(part: Part, device: AnyDevice, rows: int | None) -> None:
    """The part `kernels`."""
    part.header = ["kernel", "kept: planned", "measured", "forward: planned", "measured", "backward: planned"]
    part.header += ["measured", "error"]
    _constants(part, device)
    for kernel in KERNELS[:rows]:
        if part.left_s <= 0:
            part.leave_out(f"{kernel.name} and what follows: no time left.")
            return
        try:
            plan: Needs = in_child(planned, kernel, device, timeout_s=TIMEOUT_S, log=part.log)
            needs: Needs = in_child(measured, kernel, device, timeout_s=TIMEOUT_S, log=part.log)
        except ChildError as error:
            part.fail(f"{kernel.name}: {error}")
            continue
        pairs = [
            (plan.kept_bytes, needs.kept_bytes),
            (plan.forward_bytes, needs.forward_bytes),
            (plan.backward_bytes, needs.backward_bytes),
        ]
        error = max((guess / truth - 1 for guess, truth in pairs if truth), key=abs, default=0.0)
        cells = [format_bytes(size) for pair in pairs for size in pair]
        part.row(kernel.name, *cells, f"{error * 100:+.2f} %")
        if abs(error) > BAR:
            part.miss(f"{kernel.name}: planned {error * 100:+.2f} % off (bar {BAR:.0%}).")
    if rows is not None and rows < len(KERNELS):
        part.leave_out(f"{len(KERNELS) - rows} of {len(KERNELS)} kernels: not asked for.")


@dataclass(frozen=True)
class Constants:
    """Bytes of a process that has just begun to compute."""

    context_bytes: int
    forward_workspace_bytes: int
    backward_workspace_bytes: int


def _constants(part: Part, device: AnyDevice) -> None:
    """The context and cuBLAS' workspaces; less than planned is on the safe side, more is a miss."""
    try:
        constants: Constants = in_child(_found_constants, device, timeout_s=TIMEOUT_S, log=part.log)
    except ChildError as error:
        part.fail(f"constants: {error}")
        return
    gpu = gpu_model(part.facts["name"], part.facts["total_bytes"]) if device.is_real else None
    rows = (
        ("the context of a process", constants.context_bytes, gpu and gpu.context_bytes),
        ("cuBLAS' workspace, forward", constants.forward_workspace_bytes, gpu and gpu.workspace_bytes),
        ("cuBLAS' workspace, backward", constants.backward_workspace_bytes, gpu and gpu.workspace_bytes),
    )
    for name, num_bytes, planned_bytes in rows:
        planned_words = "nothing" if planned_bytes is None else format_bytes(planned_bytes)
        part.figure(f"Beside tensors, {name}: {format_bytes(num_bytes)}, planned {planned_words}.")
        if planned_bytes is not None and num_bytes > planned_bytes:
            part.miss(f"{name} is {format_bytes(num_bytes)}, planned {planned_bytes / MIB:.1f} MiB.")


def _found_constants(device: AnyDevice) -> Constants:
    with device.watching() as watched:
        left, right = (torch.ones(64, 64, device=device.torch_device, requires_grad=True) for _ in range(2))
        watched.next_section()
        out = left @ right
        watched.next_section()
        out.sum().backward()
        watched.next_section()
    before, forward, backward = (section.live_bytes for section in watched.sections[:3])
    gradients = sum(tensor.nbytes for tensor in (left, right))
    context_bytes = _own_bytes(device) - device.reserved_bytes()
    workspace = forward - before - out.nbytes
    return Constants(context_bytes, max(0, workspace), max(0, backward - forward - gradients))


def _own_bytes(device: AnyDevice) -> int:
    """What the driver says this process holds; the whole card's where it does not tell."""
    status = Driver(device).sampled()
    own_bytes = [
        process.used_bytes
        for process in status.processes
        if process.pid == os.getpid() and process.used_bytes
    ]
    assert status.used_bytes is not None
    return own_bytes[0] if own_bytes and own_bytes[0] else status.used_bytes
