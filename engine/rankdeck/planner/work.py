"""How much a device has to do in a step: floating point operations, bytes through its memory, kernels.

    roofline of a step = sum over operations of max(FLOPs / rate, bytes / bandwidth)

Nothing reaches the roofline, so a time is a range: from 90 % of it to 35 % plus the launch of every kernel.
What is made of it for a strategy (bubbles, rings) is in step_time.py. Read fake_pass.py before.

Source: Williams et al., "Roofline" (2009); torch.utils.flop_counter for the FLOPs of an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankdeck.config.gpu_models import Rates
from rankdeck.profiling.simulated_pace import flops_formula
from rankdeck.torch_compat.dispatch import VIEWS, effect_of, packet_of

if TYPE_CHECKING:
    from rankdeck.planner.plan_ledger import PlanLedger

_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Work:
    """One device's step. `roofline_s` is None where its rates are not known."""

    flops: int = 0
    moved_bytes: int = 0
    num_kernels: int = 0
    roofline_s: float | None = None


class WorkCounter:
    """Counts the operations that it is given, each on the device of its first tensor."""

    def __init__(self, ledger: PlanLedger, rates: Rates | None) -> None:
        self.by_device = [Work(roofline_s=None if rates is None else 0.0) for _ in range(ledger.num_devices)]
        self._ledger = ledger
        self._rates = rates
        self._known: dict[Any, Callable[..., int] | bool] = {}

    def add(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any
    ) -> tuple[int, int] | None:
        """The device and the FLOPs of an operation; None of what is no kernel."""
        formula = self._known.get(func)
        if formula is None:
            formula = self._known[func] = self._formula(func)
        if formula is False:
            return None
        tensors = [value for value in _flat(args) if isinstance(value, Tensor)]
        outputs = [value for value in _flat((out,)) if isinstance(value, Tensor)]
        moved = sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *outputs))
        flops = formula(*args, **(kwargs or {}), out_val=out) if callable(formula) else 0
        device = self._device_of(tensors)
        work = self.by_device[device]
        work.flops += flops
        work.moved_bytes += moved
        work.num_kernels += 1
        if self._rates is not None and work.roofline_s is not None:
            compute_s = flops / _rate(self._rates, func, outputs[0].dtype) if flops and outputs else 0.0
            work.roofline_s += max(compute_s, moved / self._rates.bytes_per_s)
        return device, flops

    def _formula(self, func: Any) -> Callable[..., int] | bool:
        """False for what computes nothing, True for what only moves bytes."""
        if getattr(func, "namespace", "") != "aten" or effect_of(func) == VIEWS:
            return False
        return flops_formula(packet_of(func)) or True

    def _device_of(self, tensors: list[Tensor]) -> int:
        for tensor in tensors:
            device = self._ledger.device_of(tensor)
            if device is not None:
                return device
        return 0


def _rate(rates: Rates, func: Any, dtype: torch.dtype) -> float:
    """Of an operation that computes products, which torch's own switches may move to TF32."""
    if dtype in _HALVES:
        return rates.half_flops_per_s
    is_convolution = "convolution" in func.__name__
    backends: Any = torch.backends
    switch = backends.cudnn.conv if is_convolution else backends.cuda.matmul
    in_tf32 = dtype == torch.float32 and switch.fp32_precision == "tf32"
    return rates.tf32_flops_per_s if in_tf32 else rates.flops_per_s


def _flat(values: Any) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            flat.extend(value)
        else:
            flat.append(value)
    return flat
