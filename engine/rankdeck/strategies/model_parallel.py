"""model: layers on different devices, one process, one batch at a time.

    device 0: units 0..i ->  device 1: units i+1..j  -> ... -> loss on the last device
    the backward pass runs the same way in reverse

Where: each device holds weights, gradients, optimizer state and activations of its own units. Sent per step:
at each cut the activations of the whole batch forward, and as many bytes of gradients back. Wins: a model
that does not fit on one device, where pipelines are too much trouble; all results equal those of single, even
with batch norms. Breaks: only one device works at a time while the others wait. Source: the classical cut of
ResNet-50 after layer2, as in PyTorch's tutorial on model parallel training. Read single.py first, pipeline.py
next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.config.catalog import CutOptions
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.backward import backward, loss_of_valid
from rankdeck.parallel.pipelining.chain import StageInputs
from rankdeck.parallel.pipelining.cutting import cut_model, move_in_place
from rankdeck.parallel.pipelining.traced import other_sizes_error
from rankdeck.parallel.pytree import cast_to, first_samples, map_tensors, num_samples, pad_batch
from rankdeck.parallel.state.forward import ForwardState, merge_attributes, module_copies
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy, place_model
from rankdeck.strategies.facts import LayerSplitFacts


class ModelParallel(Strategy):
    name = "model"
    forward_is_local = False
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
            self.module = place_model(model_fn(), setup, torch.device("cpu"))
            assert setup.read_samples is not None
            inputs = cast_to(setup.read_samples(setup.microstep_samples)[0], setup.dtype)
            self._cut_model = cut_model(
                self.module,
                len(setup.devices),
                self.options,
                inputs,
                setup.microstep_samples,
                device=self.device,
            )
            self.stage_modules = self._cut_model.stages
            self._place_stages()
        # A weight that several stages use stays on the first of them; each forward copies it to the others.
        self._borrowed_weights = [self._find_borrowed(stage) for stage in range(len(setup.devices))]
        self._states = [ForwardState(stage, ledger=self.ledger) for stage in self.stage_modules]
        self._copies = module_copies(self.module, self.stage_modules)

    def require_varying_sizes(self) -> None:
        if not self._cut_model.accepts_any_batch:
            raise other_sizes_error()

    def _place_stages(self) -> None:
        """Move every weight to the device of the first stage that uses it; each stage has its own buffers."""
        unused = self._cut_model.unused_tensors([0])
        self._cut_model.copy_shared_buffers(range(len(self.stage_modules)))
        for index, (stage, device) in enumerate(zip(self.stage_modules, self.setup.devices, strict=True)):
            tensors: list[Tensor] = [
                weight for weight in stage.parameters() if self._cut_model.owner_stage(weight) == index
            ]
            tensors += stage.buffers()
            tensors += unused if index == 0 else []
            move_in_place(tensors, device)
            for kind, is_weight in (("parameters", True), ("buffers", False)):
                self.ledger.adopt(
                    [t for t in tensors if isinstance(t, nn.Parameter) == is_weight], index, kind
                )

    def _find_borrowed(self, stage: int) -> list[tuple[int, str]]:
        """Return (owner stage, name) of each weight that `stage` uses but an earlier stage owns."""
        homes = {id(parameter): stages[0] for parameter, stages in self._cut_model.shared_parameters()}
        return [
            (homes[id(parameter)], name)
            for name, parameter in self.stage_modules[stage].named_parameters()
            if homes.get(id(parameter), stage) != stage
        ]

    @property
    def pads_batches(self) -> bool:
        return not self._cut_model.accepts_any_batch

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        self.facts.steps += last
        microstep_samples, num = self.setup.microstep_samples, num_samples(batch)
        valid = num if self.pads_batches and num < microstep_samples else None
        if valid is not None:
            with self.ledger.paused():
                batch = pad_batch(batch, microstep_samples)
        for state in self._states:
            state.start([num])
        with self.facts.count_busy():
            outputs = self._forward(batch[0])
            last_stage = len(self.stage_modules) - 1
            targets = self._to_stage(batch[1], last_stage)
            self.facts.switch_to(last_stage, "loss")
            with self.autocast(), self.ledger.on_device(last_stage):
                total, count = loss_of_valid(self.loss, outputs, targets, valid)
                del outputs
                self.facts.switch_to(last_stage, "backward")
                backward(total, scale)
        for state in self._states:
            state.finish()
        merge_attributes(self._states, self._copies, self._move_attribute)
        return LossSum(total.detach(), count)

    def _forward(self, inputs: Any) -> Any:
        with self.ledger.paused():
            self._cut_model.refresh_copies()
        passing: StageInputs = None
        output: Any = None
        for index, stage in enumerate(self.stage_modules):
            if index:
                passing = tuple(self._to_next_stage(tensor, index - 1) for tensor in output)
            self.facts.switch_to(index, "forward")
            with self.autocast(), self.ledger.on_device(index), self._states[index].chunk(0):
                borrowed = {
                    name: self._transfer(stage.get_parameter(name), home, index, "parameters")
                    for home, name in self._borrowed_weights[index]
                }
                own_inputs = (
                    self._to_stage(inputs, index) if not index or self._cut_model.reads_inputs else None
                )
                if borrowed:
                    # The borrowed weights are on another device: their copies replace them for this call.
                    output = torch.func.functional_call(stage, borrowed, (passing, own_inputs))
                else:
                    output = stage(passing, own_inputs)
        return output

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        inputs, targets = batch
        is_short = self.pads_batches and num_valid < self.setup.microstep_samples
        with self.facts.count_busy(), self.eval_mode():
            outputs = self._forward(pad_batch(inputs, self.setup.microstep_samples) if is_short else inputs)
            if is_short:
                outputs = first_samples(outputs, num_valid)
            return self.heldout_sums(outputs, self._to_stage(targets, len(self.stage_modules) - 1))

    def _to_stage(self, value: Any, index: int) -> Any:
        """Move inputs or targets from the CPU to the device of stage `index`."""
        with self.ledger.paused():
            value = cast_to(value, self.setup.dtype)
        if self._virtual is not None:
            return map_tensors(value, lambda tensor: self._adopt(tensor, index))
        device = self.setup.devices[index]
        return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))

    def _adopt(self, tensor: Tensor, index: int) -> Tensor:
        """Assign a CPU tensor to virtual device `index`; copy the tensor first if it is already assigned to
        another virtual device."""
        ledger = self.ledger
        if not ledger.is_tracking:
            return tensor
        if ledger.device_of(tensor) not in (None, index):
            with ledger.transfer_to(index, "inputs"):
                return tensor.clone()
        ledger.adopt((tensor,), index, "inputs")
        return tensor

    def _move_attribute(self, tensor: Tensor, index: int) -> Tensor:
        """Move a tensor attribute from another stage to the device of stage `index`; a CPU tensor stays on
        the CPU."""
        if self._virtual is None:
            return tensor.to(self.setup.devices[index]) if tensor.is_cuda else tensor
        source = self.ledger.device_of(tensor)
        return tensor if source is None else self._virtual.copy(tensor, source, index, "buffers")

    def _transfer(self, tensor: Tensor, source: int, target: int, kind: str | None = None) -> Tensor:
        """Move a tensor from device `source` to device `target`; its gradient is transferred back to
        `source`. In a rehearsal, the copy is labelled `kind` ("activations" by default)."""
        # Bytes are counted per training step, without evaluations.
        if self.module.training:
            num_bytes = tensor.numel() * tensor.element_size()
            self.facts.moved_bytes += num_bytes * (2 if tensor.requires_grad else 1)
        if self._virtual is None:
            return tensor.to(self.setup.devices[target])
        return self._virtual.transfer(tensor, source, target, kind)

    def _to_next_stage(self, tensor: Tensor, index: int) -> Tensor:
        """Move an activation from device `index` to the next device; when the gradient returns, device
        `index` counts as busy again."""
        moved = self._transfer(tensor, index, index + 1)
        if moved.requires_grad:
            moved.register_hook(lambda _: self.facts.switch_to(index, "backward"))
        return moved

    def weights(self) -> dict[str, Tensor]:
        # The weights are on several devices; the caller gets them on one.
        return {name: tensor.cpu() for name, tensor in super().weights().items()}

    def optimizer_phase(self) -> contextlib.AbstractContextManager[object]:
        return self.spans.phase_on_all_devices("step")
