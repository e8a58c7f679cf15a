"""Take two steps of the plain module on one device; every strategy must match the results.

    zero_grad -> forward, loss, backward of each microstep -> divide by the count -> clip -> step

No strategy or distributed code is involved. A batch consists of `train.accumulate` microsteps, as on a single
device. causes.py takes the same steps over the strategy's slices of microsteps (by device or microbatch), to
find out whether a difference is due to the split. Read trial.py next.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.heartbeat import CHECK_BUILD, CHECK_STEP
from rankdeck.parallel.pytree import call_model, cast_to, map_tensors, tensor_leaves
from rankdeck.strategies.base import autocast, convert_model
from rankdeck.torch_compat.dispatch import tree_flatten, tree_unflatten
from rankdeck.torch_compat.modules import BatchNorm, own_buffers, split_state_dict
from rankdeck.training.step import set_optimizer_mode
from rankdeck.training.verify.budget import unpreempted_clock_s
from rankdeck.training.verify.compare import StepResults, snapshot
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.workload import Workload

MicrostepSlices = Sequence[tuple[Any, Any]]
"""(inputs, targets) of each slice of a microstep; a single pair if the microstep is not split."""


def run_reference_steps(
    workload: Workload,
    steps: Sequence[Sequence[MicrostepSlices]],
    device: torch.device,
    *,
    loss_by_slice: bool = True,
    whole_state: Sequence[Sequence[tuple[Any, Any]]] | None = None,
    num_norm_slices: int = 1,
    resets_state: bool = False,
    prepare: Callable[[nn.Module], None] = lambda model: None,
    should_continue: Callable[[StepResults], bool] = lambda computed: True,
    draws: FixedDraws,
    beat: Callable[[str], object],
) -> StepResults:
    """Take one optimizer step over the microsteps in each item of `steps`, while `should_continue` allows it.

    For a sliced microstep, the loss is computed for each slice, or once for the concatenated outputs of all
    slices. `prepare(model)` can change the model first.

    Each slice starts with the state that the previous slice's forward pass left. `whole_state` contains the
    same microsteps unsliced; if it is not None, each slice starts with the state before its microstep, and
    afterwards the model has the state that an unsliced forward pass leaves. In either case, running
    statistics of batch norms cover a microstep's first `num_norm_slices` slices together. If `resets_state`
    is True, the initial state is restored before each step.

    Raises: any exception of the model, the loss or the optimizer.
    """
    train = workload.config.train
    beat(CHECK_BUILD)
    model = _build_model(workload, device)
    prepare(model)
    optimizer = workload.build_optimizer(model.parameters())
    set_optimizer_mode(optimizer, "train")
    computed = StepResults(before=snapshot(split_state_dict(model)[0]))
    first_state = save_state(model) if resets_state else _keep_state
    for index, microsteps in enumerate(steps):
        if index and not should_continue(computed):
            break
        started_s = unpreempted_clock_s()
        optimizer.zero_grad(set_to_none=True)
        first_state()
        with draws:
            passes = _StepRunner(model, workload, device, loss_by_slice, num_norm_slices, beat)
            total, count = passes.forward_backward(
                microsteps, None if whole_state is None else whole_state[index]
            )
            _scale_gradients(model, train.global_batch / count if count > 0 else 1.0)
            if train.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
            computed.gradients[index] = _copy_gradients(model)
            optimizer.step()
        computed.losses.append(total / count if count > 0 else total)
        computed.seconds.append(unpreempted_clock_s() - started_s)
        computed.after[index] = snapshot(split_state_dict(model)[0])
    return computed


def _build_model(workload: Workload, device: torch.device) -> nn.Module:
    return convert_model(workload.build_model(), workload.config.train.precision, device)


def _keep_state() -> None:
    """Leave the state unchanged."""


@dataclass
class _StepRunner:
    """Forward and backward passes of one step."""

    model: nn.Module
    workload: Workload
    device: torch.device
    loss_by_slice: bool
    num_norm_slices: int = 1
    beat: Callable[[str], object] = lambda phase: None

    def forward_backward(
        self, microsteps: Sequence[MicrostepSlices], wholes: Sequence[tuple[Any, Any]] | None
    ) -> tuple[float, float]:
        """Accumulate the gradients of all microsteps' loss sums, divided by the global batch size; return the
        total loss sum and the number of targets."""
        train = self.workload.config.train
        total, count = 0.0, 0.0
        for index, microstep in enumerate(microsteps):
            self.beat(CHECK_STEP)
            slices = [_to_device(piece, self.device, train.precision) for piece in microstep]
            with autocast(train.precision, self.device):
                restore_first = restore_last = _keep_state
                if wholes is not None:
                    restore_first = save_state(self.model)
                    full_batch = _to_device(wholes[index], self.device, train.precision)
                    with torch.no_grad():
                        call_model(self.model, full_batch[0])
                    restore_last = save_state(self.model)
                    restore_first()
                norms = NormStatisticsOfSlices(self.model, self.num_norm_slices) if len(slices) > 1 else None
                for loss, num in self.losses(slices, restore_first, norms):
                    (loss / train.global_batch).backward()
                    total, count = total + float(loss.detach()), count + float(num)
                restore_last()
                if norms is not None:
                    norms.update()
        return total, count

    def losses(
        self,
        slices: MicrostepSlices,
        before_forward: Callable[[], None] = _keep_state,
        norms: NormStatisticsOfSlices | None = None,
    ) -> Iterator[tuple[Tensor, Any]]:
        """Yield the loss sum and count of each slice, or of all slices together; `before_forward` is called
        before each forward pass."""
        function = self.workload.loss.function

        def forward(index: int, inputs: Any) -> Any:
            before_forward()
            if norms is not None:
                norms.index = index
            return call_model(self.model, inputs)

        if self.loss_by_slice or len(slices) == 1:
            for index, (inputs, targets) in enumerate(slices):
                yield function(forward(index, inputs), targets)
            return
        outputs = concatenate([forward(index, inputs) for index, (inputs, _) in enumerate(slices)])
        yield function(outputs, concatenate([targets for _, targets in slices]))


def try_slice(
    workload: Workload,
    microstep_slices: MicrostepSlices,
    device: torch.device,
    draws: FixedDraws,
    beat: Callable[[str], object],
) -> None:
    """Compute the loss of one slice with its autograd graph, because for some losses the number of targets is
    read from that graph.

    Raises: any exception that the model or the loss raises for so few samples.
    """
    precision = workload.config.train.precision
    beat(CHECK_BUILD)
    model = _build_model(workload, device)
    beat(CHECK_STEP)
    slices = [_to_device(piece, device, precision) for piece in microstep_slices]
    with draws, autocast(precision, device):
        list(_StepRunner(model, workload, device, loss_by_slice=True).losses(slices))


def concatenate(values: Sequence[Any]) -> Any:
    """Concatenate batches, or a model's outputs for batches, along the first dimension.

    Raises: ValueError if the values differ in structure, or contain a tensor without dimensions.
    """
    leaves, specs = zip(*map(tree_flatten, values), strict=True)
    if any(spec != specs[0] for spec in specs):
        raise ValueError("The slices have different structures, so they cannot be concatenated.")
    together = []
    for same in zip(*leaves, strict=True):
        if not isinstance(same[0], Tensor):
            together.append(same[0])
        elif same[0].ndim == 0 or any(tensor.shape[1:] != same[0].shape[1:] for tensor in same):
            raise ValueError("The slices contain tensors whose shapes cannot be concatenated.")
        else:
            together.append(torch.cat(same))
    return tree_unflatten(together, specs[0])


def _to_device(value: Any, device: torch.device, precision: str) -> Any:
    dtype = torch.float64 if precision == "fp64" else torch.float32
    moved = map_tensors(cast_to(value, dtype), lambda tensor: tensor.to(device))
    assert tensor_leaves(moved) or not tensor_leaves(value)
    return moved


def _scale_gradients(model: nn.Module, factor: float) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _copy_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    named = {
        name: weight
        for name, weight in model.named_parameters(remove_duplicate=False)
        if weight.dtype.is_floating_point or weight.dtype.is_complex
    }
    copies = snapshot({name: _to_dense(p.grad) for name, p in named.items() if p.grad is not None})
    return {name: copies.get(name) for name in named}


def _to_dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


# Compute running statistics of batch norms on one device, for a microstep in slices.
#
# A strategy's statistics cover the slices that its first replica processes, a pipeline's all microbatches
# together. Here each norm's inputs are recorded, and the norm runs over all of them after the microstep.


class NormStatisticsOfSlices:
    """Recorder of batch norms' inputs, which collects them until `update` is called.

    `index` is the index of the slice that the current forward pass processes. The statistics cover only the
    first `num_normed` slices.
    """

    def __init__(self, model: nn.Module, num_normed: int) -> None:
        self.index = 0
        self._num_norm_slices = num_normed
        self._norms = [
            module
            for module in model.modules()
            if isinstance(module, BatchNorm) and module.training and module.track_running_stats
        ]
        self._initial_statistics = [
            {name: buffer.clone() for name, buffer in own_buffers(norm).items() if buffer is not None}
            for norm in self._norms
        ]
        self._inputs: dict[int, list[dict[int, Tensor]]] = defaultdict(list)
        """Index of a norm -> for each call of the norm in a forward pass, its inputs by slice."""
        self._hooks = contextlib.ExitStack()
        for number, norm in enumerate(self._norms):
            self._hooks.enter_context(norm.register_forward_pre_hook(self._record_inputs(number)))

    def _record_inputs(self, number: int) -> Any:
        def record(_norm: nn.Module, args: tuple[Tensor, ...]) -> None:
            calls = self._inputs[number]
            free = next((inputs for inputs in calls if self.index not in inputs), None)
            if free is None:
                calls.append(free := {})
            free[self.index] = args[0].detach()

        return record

    @torch.no_grad()
    def update(self) -> None:
        """Set the running statistics from the inputs of the first `num_normed` slices, in one pass. Call it
        after the last slice."""
        self._hooks.close()
        for number, norm in enumerate(self._norms):
            for name, value in self._initial_statistics[number].items():
                norm.get_buffer(name).copy_(value)
            for inputs in self._inputs[number]:
                counting = [inputs[index] for index in sorted(inputs) if index < self._num_norm_slices]
                if counting:
                    norm(torch.cat(counting))


# Save and restore a model's state on one device, independently of the strategies' code for it.

_TORCH_ATTRIBUTES = frozenset(vars(nn.Module()))


def save_state(model: nn.Module) -> Callable[[], None]:
    """Return a function that restores the model's current buffers, frozen weights and attributes."""
    modules = list(model.modules())
    tensors = [*model.buffers(), *(weight for weight in model.parameters() if not weight.requires_grad)]
    values = [tensor.detach().clone() for tensor in tensors]
    tables = [dict(module._buffers) for module in modules]
    attributes = [_copy_attributes(module) for module in modules]

    @torch.no_grad()
    def put_back() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data.copy_(value)
        for module, table, module_attributes in zip(modules, tables, attributes, strict=True):
            module._buffers.update(table)
            # Copied again, because the saved state may be restored several times.
            vars(module).update(copy.deepcopy(module_attributes))

    return put_back


def _copy_attributes(module: nn.Module) -> dict[str, object]:
    """Return copies of a module's attributes, without torch's own attributes and those that cannot be
    copied."""
    attributes: dict[str, object] = {}
    for name, value in vars(module).items():
        # A tensor with a graph is a forward's result and no state, and deepcopy refuses it.
        is_result = isinstance(value, Tensor) and value.requires_grad
        if name in _TORCH_ATTRIBUTES or isinstance(value, nn.Module) or is_result:
            continue
        try:
            attributes[name] = copy.deepcopy(value)
        except Exception:  # a lock, a file, a result with a graph: no state that a forward depends on
            continue
    return attributes
