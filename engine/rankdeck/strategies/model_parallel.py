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
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.config.catalog import CutOptions
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.backward import backward, sums_of_first
from rankdeck.parallel.nested import cast, each_tensor, first_samples, num_samples, padded
from rankdeck.parallel.pipelining.chain import Received
from rankdeck.parallel.pipelining.cutting import cut_model, move_in_place
from rankdeck.parallel.pipelining.traced import other_sizes
from rankdeck.parallel.state.forward import ForwardState, bring_home, copies_of
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy, place
from rankdeck.strategies.facts import LayerSplitFacts


class ModelParallel(Strategy):
    name = "model"
    forwards_alone = False
    options: CutOptions
    facts: LayerSplitFacts

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        num_devices = len(setup.devices)
        self.facts = LayerSplitFacts(num_devices, self.spans, is_rehearsal=setup.is_rehearsal)
        self._virtual = VirtualDevices(num_devices, self.ledger) if setup.is_rehearsal else None

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        setup = self.setup
        with self.ledger.paused():
            self.module = place(model_fn(), setup, torch.device("cpu"))
            assert setup.sample is not None
            inputs = cast(setup.sample(setup.part_batch)[0], setup.dtype)
            self._cut = cut_model(
                self.module, len(setup.devices), self.options, inputs, setup.part_batch, device=self.device
            )
            self.stage_modules = self._cut.stages
            self._place()
        # A weight that several stages use lives on the first of them and travels to the others.
        self._lent = [self._lent_to(stage) for stage in range(len(setup.devices))]
        self._states = [ForwardState(stage, ledger=self.ledger) for stage in self.stage_modules]
        self._copies = copies_of(self.module, self.stage_modules)

    def refuse_other_sizes(self) -> None:
        if not self._cut.takes_any_batch:
            raise other_sizes()

    def _place(self) -> None:
        """Every weight to the device of the first stage that holds it; each stage has its own buffers."""
        unused = self._cut.unused_by([0])
        self._cut.separate_buffers(range(len(self.stage_modules)))
        for index, (stage, device) in enumerate(zip(self.stage_modules, self.setup.devices, strict=True)):
            own: list[Tensor] = [weight for weight in stage.parameters() if self._cut.home(weight) == index]
            own += stage.buffers()
            own += unused if index == 0 else []
            move_in_place(own, device)
            for kind, is_weight in (("parameters", True), ("buffers", False)):
                self.ledger.adopt([t for t in own if isinstance(t, nn.Parameter) == is_weight], index, kind)

    def _lent_to(self, stage: int) -> list[tuple[int, str]]:
        """(home, name) of each weight that the stage borrows from an earlier one."""
        homes = {id(parameter): stages[0] for parameter, stages in self._cut.shared_parameters()}
        return [
            (homes[id(parameter)], name)
            for name, parameter in self.stage_modules[stage].named_parameters()
            if homes.get(id(parameter), stage) != stage
        ]

    @property
    def pads(self) -> bool:
        return not self._cut.takes_any_batch

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        self.facts.steps += last
        part_batch, num = self.setup.part_batch, num_samples(batch)
        valid = num if self.pads and num < part_batch else None
        if valid is not None:
            with self.ledger.paused():
                batch = padded(batch, part_batch)
        for state in self._states:
            state.start([num])
        with self.facts.running():
            outputs = self._forward(batch[0])
            last_stage = len(self.stage_modules) - 1
            targets = self._to(batch[1], last_stage)
            self.facts.switch_to(last_stage, "loss")
            with self.autocast(), self.ledger.on(last_stage):
                total, count = sums_of_first(self.loss, outputs, targets, valid)
                del outputs
                self.facts.switch_to(last_stage, "backward")
                backward(total, scale)
        for state in self._states:
            state.finish()
        bring_home(self._states, self._copies, self._moved)
        return LossSum(total.detach(), count)

    def _forward(self, inputs: Any) -> Any:
        with self.ledger.paused():
            self._cut.renew_copies()
        passing: Received = None
        output: Any = None
        for index, stage in enumerate(self.stage_modules):
            if index:
                passing = tuple(self._hand_on(tensor, index - 1) for tensor in output)
            self.facts.switch_to(index, "forward")
            with self.autocast(), self.ledger.on(index), self._states[index].part(0):
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
        inputs, targets = batch
        is_short = self.pads and num_valid < self.setup.part_batch
        with self.facts.running(), self.evaluating():
            outputs = self._forward(padded(inputs, self.setup.part_batch) if is_short else inputs)
            if is_short:
                outputs = first_samples(outputs, num_valid)
            return self.heldout_sums(outputs, self._to(targets, len(self.stage_modules) - 1))

    def _to(self, value: Any, index: int) -> Any:
        """A part of the batch, still the host's, on a device."""
        with self.ledger.paused():
            value = cast(value, self.setup.dtype)
        if self._virtual is not None:
            return each_tensor(value, lambda tensor: self._arrived(tensor, index))
        device = self.setup.devices[index]
        return each_tensor(value, lambda tensor: tensor.to(device, non_blocking=True))

    def _arrived(self, tensor: Tensor, index: int) -> Tensor:
        """The host's tensor as the device's, in a rehearsal; a copy where another device has it already."""
        ledger = self.ledger
        if not ledger.is_following:
            return tensor
        if ledger.device_of(tensor) not in (None, index):
            with ledger.crossing(index, "inputs"):
                return tensor.clone()
        ledger.adopt((tensor,), index, "inputs")
        return tensor

    def _moved(self, tensor: Tensor, index: int) -> Tensor:
        """What another stage left in an attribute; what it keeps on the host stays there."""
        if self._virtual is None:
            return tensor.to(self.setup.devices[index]) if tensor.is_cuda else tensor
        source = self.ledger.device_of(tensor)
        return tensor if source is None else self._virtual.copy(tensor, source, index, "buffers")

    def _transfer(self, tensor: Tensor, source: int, target: int, kind: str | None = None) -> Tensor:
        """A tensor on another device; its gradient travels back."""
        if self.module.training:
            num_bytes = tensor.numel() * tensor.element_size()
            self.facts.moved_bytes += num_bytes * (2 if tensor.requires_grad else 1)
        if self._virtual is None:
            return tensor.to(self.setup.devices[target])
        return self._virtual.transfer(tensor, source, target, kind)

    def _hand_on(self, tensor: Tensor, index: int) -> Tensor:
        """An activation on the next device. When its gradient goes back, so does the work."""
        moved = self._transfer(tensor, index, index + 1)
        if moved.requires_grad:
            moved.register_hook(lambda _: self.facts.switch_to(index, "backward"))
        return moved

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.cpu() for name, tensor in super().weights().items()}

    def stepping(self) -> contextlib.AbstractContextManager[object]:
        return self.spans.all_devices("step")
