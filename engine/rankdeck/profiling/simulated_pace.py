"""Simulate compute time: each virtual device takes as long as its FLOPs take at a fixed rate.

    slot = FLOPs of a forward or backward pass / rate     the device computes, then sleeps to the slot's end

Four devices that compute on two cores show no bubble or overlap; four devices that mostly sleep do. In the
first step every slot's FLOPs are counted, in the second the real computation is timed, and from the third on
every slot is paced. A slot must last at least 50 ms and its real computation at most 5 % of the slot, or the
timeline would be misleading: a rate that makes slots too short is refused, and a suitable rate is chosen if
none is requested. Everything else (optimizer, copies, gloo) runs in real time. Read spans.py first: its spans
are the slots.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import flop_registry

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_duration
from rankdeck.config import RunConfig
from rankdeck.torch_compat.dispatch import DispatchMode, Kwargs, overload_packet

PACED_PHASES = ("forward", "backward", "backward-input", "backward-weight")
MIN_SLOT_S = 0.05
MAX_COMPUTE_SHARE = 0.05
_MARGIN = 1.25
_COUNTING, _TIMING, _HOLDING = "counting", "timing", "holding"

_Key = tuple[int, str, int | None]
MaxOverRanks = Callable[[list[float]], list[float]]
"""Function that returns the element-wise maximum over all ranks."""


@dataclass
class _Slot:
    """Measurements of one kind of slot: sums over its occurrences in the counting and the timing step."""

    flops: int = 0
    num_counted: int = 0
    compute_s: float = 0.0
    num_timed: int = 0

    @property
    def mean_flops(self) -> float:
        return self.flops / max(self.num_counted, 1)

    @property
    def mean_compute_s(self) -> float:
        return self.compute_s / max(self.num_timed, 1)


@dataclass
class _OpenSlot:
    """A slot that a thread has entered."""

    key: _Key
    slot: _Slot
    started_s: float
    cpu_started_s: float
    mode: DispatchMode | None = None
    slept_s: float = 0.0
    done_share: float = 0.0


@dataclass
class _ThreadState(threading.local):
    stack: list[_OpenSlot] = field(default_factory=list)
    is_counted: bool = False


class SimulatedPace:
    """Pacing of one rank's devices; a rate shared by all ranks determines how long a device's slots last.

    `device_gflops` is one device's rate in 1e9 operations per second, or None to choose one. If
    `communicates_in_forward` is true, a device may wait for other ranks in the middle of a slot; that wait
    does not count as computation.
    """

    def __init__(
        self,
        device_gflops: float | None = None,
        *,
        max_over_ranks: MaxOverRanks = lambda values: values,
        communicates_in_forward: bool = False,
        max_slot_s: float = 60.0,
    ) -> None:
        self._requested_gflops = device_gflops
        self._max_over_ranks = max_over_ranks
        self._communicates_in_forward = communicates_in_forward
        self._max_slot_s = max_slot_s
        self._state = _COUNTING
        self._slots: dict[_Key, _Slot] = defaultdict(_Slot)
        self._s_per_flop = 0.0
        # Dispatch modes are per thread, and each thread has slots of its own.
        self._thread = _ThreadState()
        self._mode: _FlopCounterMode | None = None

    @property
    def is_holding(self) -> bool:
        return self._state == _HOLDING

    def start_step(self) -> None:
        self._mode = self._start_counting()

    def _start_counting(self) -> _FlopCounterMode | None:
        """Enter and return a FLOP counter mode; return None after the first step, or if this thread already
        has a mode."""
        if self._state != _COUNTING or self._thread.is_counted:
            return None
        self._thread.is_counted = True
        mode = _FlopCounterMode(self._thread)
        # Entered by hand: the mode stays active until end_step or close_slot.
        mode.__enter__()
        return mode

    def end_step(self) -> None:
        """Switch from counting to timing after the first step, and from timing to pacing after the second.

        Raises:
            ConfigError: the pace cannot be simulated with this model or this rate.
        """
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode, self._thread.is_counted = None, False
            self._state = _TIMING
        elif self._state == _TIMING:
            self._calibrate()
            self._state = _HOLDING

    def open_slot(self, device: int, name: str, stage: int | None) -> None:
        """Start a device's phase on the calling thread."""
        key = (device, name, stage)
        entered = _OpenSlot(
            key, self._slots[key], time.perf_counter(), time.thread_time(), self._start_counting()
        )
        self._thread.stack.append(entered)

    def close_slot(self) -> None:
        """End this thread's most recent phase: sleep until its slot is over."""
        left = self._thread.stack.pop()
        if left.mode is not None:
            left.mode.__exit__(None, None, None)
            self._thread.is_counted = False
        slot = left.slot
        if self._state == _COUNTING:
            slot.num_counted += 1
        elif self._state == _TIMING:
            # CPU time: on shared cores, wall time would include other ranks.
            slot.compute_s += time.thread_time() - left.cpu_started_s
            slot.num_timed += 1
        # A backward pass with paced gradients has already slept for its slot.
        elif left.key[1] in PACED_PHASES and not left.done_share:
            self._sleep_until_share(left, 1.0)

    def _sleep_until_share(self, inside: _OpenSlot, share: float) -> None:
        """Sleep until the fraction `share` of the slot's time has passed."""
        goal_s = inside.slot.mean_flops * self._s_per_flop * share
        # Waiting for other ranks is not this slot's computation: count CPU time and sleep only.
        if self._communicates_in_forward:
            spent_s = time.thread_time() - inside.cpu_started_s + inside.slept_s
        else:
            spent_s = time.perf_counter() - inside.started_s
        if goal_s > spent_s:
            time.sleep(goal_s - spent_s)
            inside.slept_s += goal_s - spent_s

    def pace_backward(self, module: nn.Module) -> None:
        """Spread the gradients across the slot of a backward pass, so that each is ready when its share of
        the work is done.

        Communication that starts during the backward pass then overlaps with it.
        """
        shares = _work_shares(module)

        def ready(parameter: torch.Tensor) -> None:
            stack = self._thread.stack
            if self.is_holding and stack and stack[-1].key[1] == "backward":
                inside = stack[-1]
                inside.done_share += shares[id(parameter)]
                self._sleep_until_share(inside, inside.done_share)

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(ready)

    def _calibrate(self) -> None:
        paced = {key: slot for key, slot in self._slots.items() if key[1] in PACED_PHASES}
        flops = sum(slot.mean_flops for slot in paced.values())
        computing_s = sum(slot.mean_compute_s for slot in paced.values() if slot.mean_flops)
        forward = max((slot.mean_flops for key, slot in paced.items() if key[1] == "forward"), default=0.0)
        largest = max((slot.mean_flops for slot in paced.values()), default=0.0)
        cost, forward, largest = self._max_over_ranks(
            [computing_s / flops if flops else 0.0, forward, largest]
        )
        if not forward:
            raise _pace_error(
                phrase(
                    'rehearsal.pace = "simulated": this model has no matrix product or '
                    "convolution whose time can be estimated from its FLOPs."
                ),
                phrase('Use rehearsal.pace = "real".'),
            )
        if self._requested_gflops is None:
            # Slow enough for both limits, with a margin because the measured cost varies.
            self._s_per_flop = max(MIN_SLOT_S / forward, _MARGIN * cost / MAX_COMPUTE_SHARE)
        else:
            self._s_per_flop = 1e-9 / self._requested_gflops
            self._check_rate(self._requested_gflops, forward, cost)
        if largest * self._s_per_flop > self._max_slot_s:
            raise _pace_error(
                phrase(
                    'rehearsal.pace = "simulated": one forward or backward pass would take {slot_s:.0f} s, '
                    "longer than the ranks wait for each other ({longest}).",
                    slot_s=largest * self._s_per_flop,
                    longest=format_duration(self._max_slot_s),
                ),
                phrase("Lower train.global_batch, make the model smaller, or raise launch.timeout_s."),
            )

    def _check_rate(self, asked_gflops: float, forward: float, cost: float) -> None:
        slowest = max(MIN_SLOT_S / forward, cost / MAX_COMPUTE_SHARE)
        if self._s_per_flop >= slowest:
            return
        slot_s = forward * self._s_per_flop
        if slot_s < MIN_SLOT_S:
            message = phrase(
                "rehearsal.device_gflops = {asked:g} is too fast to simulate: a forward pass "
                "would take {slot_ms:.2g} ms, but accurate timing needs at least 50 ms.",
                asked=asked_gflops,
                slot_ms=slot_s * 1e3,
            )
        else:
            message = phrase(
                "rehearsal.device_gflops = {asked:g} is too fast to simulate: on this machine, the real "
                "computation would take {share:.0%} of the simulated time, but accurate timing "
                "allows at most 5 %.",
                asked=asked_gflops,
                share=cost / self._s_per_flop,
            )
        max_gflops = _round_down(1e-9 / slowest / _MARGIN)
        raise _pace_error(
            message,
            phrase("Use at most {most:g}, or omit the key to let Rankdeck choose a value.", most=max_gflops),
            path="rehearsal.device_gflops",
        )


def _pace_error(message: str, advice: str, path: str = "rehearsal.pace") -> ConfigError:
    return ConfigError(message, code="pace-not-held", path=path, advice=advice)


def make_pace(
    config: RunConfig, device: torch.device, world_size: int, *, communicates_in_forward: bool
) -> SimulatedPace | None:
    """Return the simulated pace of a rank's devices, or None if the configuration does not ask for one.

    Raises:
        ConfigError: the devices are GPUs, whose pace is not simulated.
    """
    if config.rehearsal.pace != "simulated":
        return None
    if device.type != "cpu":
        raise ConfigError(
            phrase('rehearsal.pace = "simulated" is for virtual devices, but this run uses GPUs.'),
            path="rehearsal.pace",
            advice=phrase('Use rehearsal.pace = "real", or devices.use = "cpu:4".'),
        )

    def largest(values: list[float]) -> list[float]:
        if world_size == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return [float(value) for value in shared]

    return SimulatedPace(
        config.rehearsal.device_gflops,
        max_over_ranks=largest,
        communicates_in_forward=communicates_in_forward,
        max_slot_s=config.launch.timeout_s,
    )


def _round_down(value: float) -> float:
    """Round down to two significant digits, for a value that the user is advised to enter."""
    rounded = float(f"{value:.2g}")
    return rounded if rounded <= value else float(f"{value * 0.95:.2g}")


def _work_shares(module: nn.Module) -> dict[int, float]:
    """Return each parameter's share of the backward pass's work, by id: estimated from its size, 0 for
    embeddings."""
    free = {id(p) for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    sizes = {id(p): 0 if id(p) in free else p.numel() for p in module.parameters() if p.requires_grad}
    total = sum(sizes.values()) or 1
    return {key: size / total for key, size in sizes.items()}


class _FlopCounterMode(DispatchMode):
    """Dispatch mode that adds the FLOPs of matrix products, convolutions and attention to the thread's
    current slot."""

    def __init__(self, thread: _ThreadState) -> None:
        from torch.distributed.tensor import DTensor  # takes 0.5 s, too much for runs at real pace

        super().__init__()
        self._thread = thread
        self._wrapper = DTensor

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        if any(issubclass(kind, self._wrapper) for kind in types):
            return NotImplemented  # DTensor unwraps itself, and its local shards are dispatched here again
        out = func(*args, **(kwargs or {}))
        count = flops_formula(overload_packet(func))
        if count is not None and self._thread.stack:
            self._thread.stack[-1].slot.flops += count(*args, **(kwargs or {}), out_val=out)
        return out


_aten = torch.ops.aten
_CPU_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}


def flops_formula(packet: Any) -> Callable[..., int] | None:
    """Return torch's FLOP formula for an operation; attention on CPU is counted as on a GPU."""
    formula: Callable[..., int] | None = flop_registry.get(_CPU_ATTENTION.get(packet, packet))
    return formula
