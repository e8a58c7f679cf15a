"""Run a rank's stages, forward and backward, one microbatch at a time, in torch's schedules.

The loss is computed inside the last stage, so the model's outputs may be of any type and are freed early.
torch gets static shapes, so it does not run a forward pass to infer them. Read schedules.py first, and
one_forward_one_backward.py for a schedule that is not torch's.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.export.unflatten import InterpreterModule

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.memory.ledger import AnyLedger
from rankdeck.models.losses import Loss
from rankdeck.parallel.backward import loss_of_valid
from rankdeck.parallel.collectives.sync_batch_norm import update_running_statistics
from rankdeck.parallel.pipelining.communication import StageCommunication
from rankdeck.parallel.pipelining.costs import Boundary, TensorShape
from rankdeck.parallel.pipelining.cutting import CutModel
from rankdeck.parallel.pipelining.probing import output_tensors
from rankdeck.parallel.pipelining.schedules import make_schedule
from rankdeck.parallel.pytree import tensor_leaves
from rankdeck.parallel.state.forward import ForwardState
from rankdeck.parallel.state.rank_state import Groups
from rankdeck.profiling.spans import SpanRecorder
from rankdeck.torch_compat.modules import BatchNorm, own_buffers
from rankdeck.torch_compat.pipelining import Stage, clone_view, receive_buffers, unwrap_stage_errors

_FREED_GRAPH_TEXT = "backward through the graph a second time"
_MICROBATCH_INDEX = torch.empty(1, dtype=torch.int64, device="meta")
"""Shape and dtype, as a meta tensor, of the input that torch's first stage gets: a microbatch's index."""


class Traffic:
    """This rank's microbatches in flight, bytes sent, and spans of its stages' work."""

    def __init__(self, spans: SpanRecorder) -> None:
        self.spans = spans
        self.sent_bytes = 0
        self.in_flight = 0
        self.max_in_flight = 0

    def count_forward(self) -> None:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)

    def count_backward(self) -> None:
        self.in_flight -= 1

    def count_sent(self, tensors: Sequence[Tensor]) -> None:
        self.sent_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class StageRunner(nn.Module):
    """Stage `index` of a model, run on one microbatch at a time, with the loss after the last stage."""

    def __init__(
        self,
        cut: CutModel,
        index: int,
        loss: Loss,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        *,
        is_split: bool,
        ledger: AnyLedger,
    ) -> None:
        """Set up the stage; `is_split` means that the schedule splits each backward pass in two."""
        super().__init__()
        self.stage = cut.stages[index]
        self.index = index
        self.is_first = index == 0
        self.is_last = index == len(cut.stages) - 1
        self.microbatch = 0
        self.sums: list[tuple[Tensor, Any]] = []
        self._statistics = FullBatchStatistics(self.stage)
        self.state = ForwardState(self.stage, self._statistics.norms, ledger)
        self._input_shapes, self._output_shapes = cut.boundaries[index : index + 2]
        self._loss = loss
        self._autocast = autocast
        self._is_split = is_split
        self._inputs: list[Any] = []
        self._targets: list[Any] = []
        self._valid_counts: list[int | None] = []
        self._scale: float | Tensor = 1.0

    def start(
        self, inputs: list[Any], targets: list[Any], valid: list[int | None], scale: float | Tensor
    ) -> None:
        """Start a batch of microbatches; the loss of microbatch i covers its first `valid[i]` samples
        (None: all samples)."""
        self._inputs, self._targets, self._valid_counts, self._scale = inputs, targets, valid, scale
        self.sums = []

    def run_microbatch(
        self, microbatch: int, *, updates_state: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward or backward pass of a microbatch; a backward pass starts from the
        state at the end of the forward pass. If `updates_state` is false, the state stays unchanged."""
        self.microbatch = self._statistics.microbatch = microbatch
        return self.state.chunk(microbatch, updates_state=updates_state)

    def finish(self, groups: Groups) -> None:
        """Update the state after a batch's last backward pass; `groups` are process groups of ranks that
        train on different samples."""
        self._statistics.update()
        self.state.finish(groups)

    def forward(self, *received: Tensor) -> Any:
        """Return the scaled loss (a 0-dim tensor) on the last stage, and the next stage's input on all other
        stages."""
        with self._autocast():
            entered = None if self.is_first else tuple(map(prepare_input, received, self._input_shapes))
            output = self.stage(entered, self._inputs[self.microbatch])
            if self.is_last:
                total, count = loss_of_valid(
                    self._loss, output, self._targets[self.microbatch], self._valid_counts[self.microbatch]
                )
                self.sums.append((total.detach(), count))
                return total * self._scale
        left = [
            prepare_output(tensor, shape).contiguous()
            for tensor, shape in zip(output, self._output_shapes, strict=True)
        ]
        return tuple(map(clone_view, left) if self._is_split else left)


def prepare_input(tensor: Tensor, shape: TensorShape) -> Tensor:
    """Return a received tensor, with a hook that raises an error for a gradient that no stage waits for."""
    if shape.returns_gradient or not tensor.is_floating_point():
        return tensor
    tensor = tensor.detach().requires_grad_()
    tensor.register_hook(lambda gradient: check_gradient(shape, gradient) and None)
    return tensor


def prepare_output(tensor: Tensor, shape: TensorShape) -> Tensor:
    """Return a tensor as it leaves a stage, detached if no gradient is sent back for it."""
    tensor = tensor.to(shape.dtype)
    return tensor if shape.returns_gradient else tensor.detach()


def check_gradient(shape: TensorShape, gradient: Tensor | None) -> bool:
    """Check whether the gradient of a tensor that crosses a cut is sent back.

    Raises: ModelError if there is a gradient now but there was none when the model was cut, so no stage waits
    for it.
    """
    if gradient is None or shape.returns_gradient:
        return shape.returns_gradient
    raise ModelError(
        phrase("The loss depends on a tensor passed between stages, but did not when the model was cut."),
        path="strategy.use",
        advice=phrase('Run the same operations for all batches, or set strategy.use = "ddp" or "fsdp".'),
    )


def loss_inputs(loss: Loss, outputs: Any, targets: Any) -> Sequence[Tensor]:
    """Return the tensors from which a backward pass starts. A user-defined loss is assumed to depend on all
    outputs: it is not called here, because it may count its calls."""
    if loss.is_in_model:
        return tensor_leaves(outputs["loss"] if isinstance(outputs, dict) else outputs.loss)
    return (
        # Outputs that such a loss does not read get a gradient of zero; on one device they get none.
        output_tensors(outputs)
        if loss.count_correct is None and loss.name != "mse"
        else [loss.function(outputs, targets)[0]]
    )


class TorchSchedule:
    """One of torch's schedules for a rank's stages. `dtype` is the loss's dtype."""

    def __init__(
        self,
        name: str,
        runners: Sequence[StageRunner],
        stages: StageCommunication,
        num_microbatches: int,
        traffic: Traffic,
        dtype: torch.dtype,
    ) -> None:
        boundaries = stages.cut.boundaries
        self._runners = runners
        self._num_microbatches = num_microbatches
        loss = torch.empty((), dtype=dtype, device="meta")
        self._stages = [
            _CountingStage(
                traffic,
                runner,
                runner.index,
                len(stages.rank_of),
                stages.device,
                input_args=(
                    (_MICROBATCH_INDEX,) if runner.is_first else _meta_tensors(boundaries[runner.index])
                ),
                output_args=_meta_tensors(boundaries[runner.index + 1]) or (loss,),
                group=stages.group,
            )
            for runner in runners
        ]
        self._schedule = make_schedule(name, self._stages, num_microbatches, lambda output, _: output)

    def run(self) -> None:
        """Run all microbatches of the batch that the runners have started."""
        # The runners cut inputs and targets of any structure themselves: torch only passes on indices.
        numbers = torch.arange(self._num_microbatches)
        args = (numbers,) if any(runner.is_first for runner in self._runners) else ()
        target = numbers if any(runner.is_last for runner in self._runners) else None
        with unwrap_stage_errors():
            # Outputs are not returned, so that they are freed as soon as possible.
            self._schedule.step(*args, target=target, return_outputs=False)

    def buffers(self) -> list[Tensor]:
        """Return the receive buffers that torch's stages keep, one set per microbatch."""
        return [tensor for stage in self._stages for tensor in receive_buffers(stage)]


def _split_backward_error() -> ModelError:
    return ModelError(
        phrase(
            "The schedule computes input gradients and weight gradients separately, which "
            "torch does not support if layers of a stage share a weight."
        ),
        path="strategy.schedule",
        advice=phrase('Set strategy.schedule = "1f1b".'),
        changes={"strategy.schedule": "1f1b"},
    )


class _CountingStage(Stage):
    """A torch stage that sets the microbatch index and counts forward passes, backward passes and sends."""

    def __init__(self, traffic: Traffic, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._traffic = traffic

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._run_microbatch(fwd_chunk_id), self._phase("forward", fwd_chunk_id):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._traffic.count_forward()
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        # Both halves of a split backward pass may recompute activations; only one of them updates state.
        name = "backward" if full_backward else "backward-input"
        with self._run_microbatch(bwd_chunk_id, counts=full_backward), self._phase(name, bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        if full_backward:
            self._traffic.count_backward()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> Any:
        with self._run_microbatch(bwd_chunk_id), self._phase("backward-weight", bwd_chunk_id):
            try:
                super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            except RuntimeError as error:
                if _FREED_GRAPH_TEXT not in str(error):
                    raise
                raise _split_backward_error() from error
        self._traffic.count_backward()

    def _run_microbatch(
        self, microbatch: int, *, counts: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        assert isinstance(self.submod, StageRunner)
        return self.submod.run_microbatch(microbatch, updates_state=counts)

    def _phase(self, name: str, microbatch: int) -> contextlib.AbstractContextManager[object]:
        return self._traffic.spans.phase(0, name, stage=self.stage_index, microbatch=microbatch)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._count_sends(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._count_sends(super().get_bwd_send_ops(bwd_chunk_id))

    def _count_sends(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        self._traffic.count_sent([op.tensor for op in ops])
        return ops


def _meta_tensors(boundary: Boundary) -> tuple[Tensor, ...]:
    """Return a boundary in the form that torch's stages expect: tensors on the meta device."""
    return tuple(shape.empty("meta").requires_grad_(shape.returns_gradient) for shape in boundary)


# A stage's batch norms keep the running statistics of whole batches, as on one device, although they get one
# microbatch at a time.
#
#     each microbatch     mean and squared deviations per channel, combined with those before it
#     after the last one  one update of running_mean, running_var and num_batches_tracked
#
# So they equal those of one device that takes the whole batch at once. A norm still divides by its
# microbatch's statistics: weights equal those of one device that takes the microbatches one after another
# (accumulate). Read ../collectives/sync_batch_norm.py first, where statistics come from ranks, and
# ../state/forward.py for all other state.


@dataclass
class _Moments:
    """Means and sums of squared deviations (C,) over all microbatches so far, and the number of values that
    they cover."""

    mean: Tensor
    squares: Tensor
    count: int

    def add(self, mean: Tensor, squares: Tensor, count: int) -> None:
        """Add a microbatch's values. Source: Chan, Golub and LeVeque (1979), as in sync_batch_norm.py."""
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.squares = self.squares + squares + delta.square() * (self.count * count / total)
        self.count = total


class FullBatchStatistics:
    """Running statistics of a stage's batch norms, unchanged until `update`. The first norm's statistics are
    exact; those of later norms are not, because earlier norms normalized their inputs per microbatch."""

    def __init__(self, stage: nn.Module) -> None:
        self.microbatch = 0
        """Index of the microbatch whose forward or backward pass is running."""
        self._statistics: dict[tuple[Any, int], _Moments] = {}
        self._num_calls: Counter[tuple[nn.Module, int]] = Counter()
        """Calls per norm and microbatch: a norm that is used twice counts twice, as on one device."""
        self._saved_buffers: tuple[Tensor | None, ...] = ()
        self._written_share = 1.0
        """Momentum with which a norm writes the microbatch's statistics into its buffers."""
        self.norms = [module for module in stage.modules() if _is_norm(module)]
        for module in self.norms:
            module.register_forward_pre_hook(self._replace_buffers)
            module.register_forward_hook(self._collect, with_kwargs=True)

    def _replace_buffers(self, norm: Any, _: Any) -> None:
        """Give the norm temporary buffers, to which it writes this microbatch's statistics, and a momentum of
        1, which traced graphs ignore. Do nothing in a recomputation, for which checkpointing sets
        num_batches_tracked to None."""
        self._saved_buffers = ()
        if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
            self._saved_buffers = norm.running_mean, norm.running_var, norm.num_batches_tracked
            is_traced, own_momentum = isinstance(norm, InterpreterModule), norm.momentum
            # A traced graph has its momentum as a constant, so its share is divided out afterwards.
            self._written_share = own_momentum if is_traced else 1.0
            self._momentum, norm.momentum = own_momentum, 1.0
            norm.running_mean = torch.zeros_like(norm.running_mean)
            norm.running_var = torch.zeros_like(norm.running_var)
            norm.num_batches_tracked = torch.zeros_like(norm.num_batches_tracked)

    def _collect(self, norm: Any, args: Any, kwargs: Any, _: Any) -> None:
        if not self._saved_buffers:
            return
        mean, variance = norm.running_mean / self._written_share, norm.running_var / self._written_share
        norm.running_mean, norm.running_var, norm.num_batches_tracked = self._saved_buffers
        norm.momentum, self._saved_buffers = self._momentum, ()
        inputs = args[0] if args else kwargs["input"]
        count = inputs.numel() // inputs.shape[1]
        # Batch norm writes the unbiased variance.
        squares = variance * (count - 1)
        call = norm, self.microbatch
        moments = self._statistics.get(key := (norm, self._num_calls[call]))
        self._num_calls[call] += 1
        if moments is None:
            self._statistics[key] = _Moments(mean, squares, count)
        else:
            moments.add(mean, squares, count)

    def update(self) -> None:
        """Update the running statistics after the last microbatch of a batch."""
        for (norm, _), moments in self._statistics.items():
            count = moments.mean.new_full((), moments.count)
            update_running_statistics(norm, moments.mean, moments.squares / count, count)
        self._statistics.clear()
        self._num_calls.clear()


def _is_norm(module: Any) -> bool:
    """Check whether a module is a batch norm of this stage; batch norms of other stages have no buffers here.
    A traced batch norm is a graph: set its `track_running_stats` and `momentum` attributes from the graph."""
    if own_buffers(module).get("running_mean") is None:
        return False
    if not isinstance(module, InterpreterModule):
        return isinstance(module, BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.batch_norm.default and str(node.args[3]) == "running_mean":
            is_training, momentum = node.args[5:7]
            module.track_running_stats, module.momentum = is_training, momentum
            return bool(is_training and momentum)
    return False
