"""model: layers on different devices, one process, one batch after another.

    device 0: units 0..i ->  device 1: units i+1..j  -> ... -> loss on the last device
    backward the same way back

Where: each device holds weights, gradients, optimizer state and activations of its own units. Sent per step:
at each cut the activations of the whole batch forward, and as many bytes of gradients back. Wins: a model
that does not fit one device, where pipelines are too much trouble; it equals single in everything, batch
norms included. Breaks: only one device works at a time, the others wait. Source: the classical cut of
ResNet-50 after layer2, as in PyTorch's tutorial on model parallel training. Read single.py before,
pipeline.py after.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.mesh import Mesh
from rankdeck.parallel.pipelining.chain import Received
from rankdeck.parallel.pipelining.cutting import cut_model, move_in_place
from rankdeck.profiling.spans import PhaseSpan, SpanRecorder
from rankdeck.strategies.base import (
    Batch,
    HeldoutSums,
    LossSum,
    Setup,
    Strategy,
    cast,
    each_tensor,
    first_samples,
)
from rankdeck.torch_compat.modules import own_buffers


class ModelParallel(Strategy):
    name = "model"
    forwards_alone = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._steps = 0
        self._moved_bytes = 0
        self._clock = _DeviceClock(len(setup.devices), setup.spans)
        self._virtual = VirtualDevices(len(setup.devices), setup.ledger) if setup.is_rehearsal else None

    def mesh(self) -> Mesh:
        """One rank, which sees the whole batch."""
        return Mesh.of(0, stage=1)

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        setup = self.setup
        with self._unfollowed():
            model = model_fn().train()
            if setup.precision == "fp64":
                model = model.double()
            assert setup.sample is not None
            inputs = cast(setup.sample(setup.part_batch)[0], setup.dtype)
            num_stages = len(setup.devices)
            self._cut = cut_model(
                model, num_stages, setup.options, inputs, setup.part_batch, device=self.device
            )
            self._stages = self._cut.stages
            self._place()
        # A weight that several stages use lives on the first of them and travels to the others.
        self._lent = [self._lent_to(stage) for stage in range(num_stages)]

    def _place(self) -> None:
        """Every tensor to the device of the first stage that holds it; later stages get their own buffers."""
        placed: set[int] = set()
        for index, (stage, device) in enumerate(zip(self._stages, self.setup.devices, strict=True)):
            for module in stage.modules():
                for name, buffer in own_buffers(module).items():
                    if buffer is not None and id(buffer) in placed:
                        own_buffers(module)[name] = buffer.clone()
            own = [tensor for tensor in (*stage.parameters(), *stage.buffers()) if id(tensor) not in placed]
            placed.update(map(id, own))
            move_in_place(own, device)
            if self.setup.ledger is not None:
                self.setup.ledger.adopt(set(own) & set(stage.parameters()), index, "parameters")
                self.setup.ledger.adopt(set(own) & set(stage.buffers()), index, "buffers")

    def _lent_to(self, stage: int) -> list[tuple[int, str]]:
        """(home, name) of each weight that the stage borrows from an earlier one."""
        homes = {id(parameter): stages[0] for parameter, stages in self._cut.shared_parameters()}
        return [
            (homes[id(parameter)], name)
            for name, parameter in self._stages[stage].named_parameters(remove_duplicate=False)
            if homes.get(id(parameter), stage) != stage
        ]

    @property
    def module(self) -> nn.Module:
        return self._cut.model

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        self._steps += last
        with self._clock.running():
            outputs = self._forward(batch[0])
            targets = self._to(batch[1], len(self._stages) - 1)
            last_stage = len(self._stages) - 1
            self._clock.switch_to(last_stage, "loss")
            with self.autocast(), self._on(last_stage):
                total, count = self.loss.function(outputs, targets)
                del outputs
                self._clock.switch_to(last_stage, "backward")
                (total * scale).backward()
        return LossSum(total.detach(), count)

    def _forward(self, inputs: Any) -> Any:
        passing: Received = None
        output: Any = None
        for index, stage in enumerate(self._stages):
            if index:
                passing = tuple(self._hand_on(tensor, index - 1) for tensor in output)
            self._clock.switch_to(index, "forward")
            with self.autocast(), self._on(index):
                borrowed = {
                    name: self._transfer(stage.get_parameter(name), home, index, "parameters")
                    for home, name in self._lent[index]
                }
                own_inputs = self._to(inputs, index) if not index or self._cut.reads_inputs else None
                if borrowed:
                    output = torch.func.functional_call(stage, borrowed, (passing, own_inputs))
                else:
                    output = stage(passing, own_inputs)
        return output

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        inputs, targets = first_samples(batch, num_valid)
        with self._clock.running(), self.evaluating():
            outputs = self._forward(inputs)
            return self.heldout_sums(outputs, self._to(targets, len(self._stages) - 1))

    @contextlib.contextmanager
    def evaluating(self) -> Any:
        with self._cut.evaluating(), torch.no_grad(), self.autocast():
            yield

    def _to(self, value: Any, index: int) -> Any:
        """A part of the batch, still the host's, on a device."""
        with self._unfollowed():
            value = cast(value, self.setup.dtype)
        if self._virtual is not None:
            return each_tensor(value, lambda tensor: self._arrived(tensor, index))
        device = self.setup.devices[index]
        return each_tensor(value, lambda tensor: tensor.to(device, non_blocking=True))

    def _arrived(self, tensor: Tensor, index: int) -> Tensor:
        """The host's tensor as the device's, in a rehearsal; a copy where another device has it already."""
        ledger = self.setup.ledger
        if ledger is None or not ledger.is_following:
            return tensor
        if ledger.device_of(tensor) not in (None, index):
            with ledger.crossing(index, "inputs"):
                return tensor.clone()
        ledger.adopt((tensor,), index, "inputs")
        return tensor

    def _transfer(self, tensor: Tensor, source: int, target: int, kind: str | None = None) -> Tensor:
        """A tensor on another device; its gradient travels back."""
        num_bytes = tensor.numel() * tensor.element_size()
        self._moved_bytes += num_bytes * (2 if tensor.requires_grad and torch.is_grad_enabled() else 1)
        if self._virtual is None:
            return tensor.to(self.setup.devices[target])
        return self._virtual.transfer(tensor, source, target, kind)

    def _hand_on(self, tensor: Tensor, index: int) -> Tensor:
        """An activation on the next device. When its gradient goes back, so does the work."""
        moved = self._transfer(tensor, index, index + 1)
        if moved.requires_grad:
            moved.register_hook(lambda _: self._clock.switch_to(index, "backward"))
        return moved

    def _on(self, index: int) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._virtual is None else self._virtual.on(index)

    def _unfollowed(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._virtual is None else self._virtual.unfollowed()

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.cpu() for name, tensor in super().weights().items()}

    def stepping(self) -> contextlib.AbstractContextManager[object]:
        return self.spans.all_devices("step")

    def replicas_busy_s(self) -> list[float] | None:
        """By stage of forward and backward; the optimizer's time is nobody's."""
        return self._clock.busy_s if self.setup.is_rehearsal else None

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        if len(self._stages) == 1 or self._steps == 0:
            return None
        return "activations and their gradients", round(self._moved_bytes / self._steps), True


class _DeviceClock:
    """CPU seconds of this thread, each booked on the device that it worked for at that moment.

    Phases are marked as it goes: each stage has its own device.
    """

    def __init__(self, num_devices: int, spans: SpanRecorder) -> None:
        self.busy_s = [0.0] * num_devices
        self._spans = spans
        self._mark: PhaseSpan | None = None
        self._device: int | None = None
        self._phase = ""
        self._since_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Any:
        try:
            yield
        finally:
            self.switch_to(None)

    def switch_to(self, device: int | None, phase: str = "") -> None:
        if (device, phase) == (self._device, self._phase):
            return
        self._spans.stop(self._mark)
        self._mark = None if device is None else self._spans.start(device, phase, stage=device)
        self._phase = phase
        now_s = time.thread_time()
        if self._device is not None:
            self.busy_s[self._device] += now_s - self._since_s
        self._device, self._since_s = device, now_s
