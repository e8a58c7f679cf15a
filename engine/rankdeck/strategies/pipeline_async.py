"""pipeline-async: a pipeline that never flushes; weights are updated as soon as a gradient arrives.

    rank 0   F0 F1 F2    B0 F3 B1 F4 B2 F5 B3 ...        stage s of p: forward pass of microbatch k, then
    rank 1      F0 F1 B0 F2 B1 F3 B2 F4 B3 ...           backward pass of k - (p-1-s), then an update

Where: stage s holds its weights, gradients and optimizer state, p - s versions of the weights (with stash;
two with 2bw) and the activations of p - s microbatches. Sent per rank and microbatch, for each cut: the
activations forward and as many bytes of gradients back. Wins: no bubble at all. Breaks: a microbatch uses
weights that are p-1-s updates old (one update with 2bw), which large learning rates do not tolerate; no
operation, such as clipping, can use all gradients of an update, because they never exist at the same time.

    stash   an update takes one microbatch of global_batch samples; the backward pass uses the same weights
            as the microbatch's forward pass
    2bw     an update sums `accumulate` microbatches (at least one per stage); forward passes of update u use
            the weights after u - 1 updates, so that two versions are enough

An evaluation or a checkpoint drains the pipeline first, so that all stages are at the same update. Source:
Harlap et al., PipeDream, 2018; Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021 (2BW).
Read ../parallel/pipelining/versions.py and pipeline.py first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import AsyncPipelineOptions
from rankdeck.parallel.backward import iter_graph_nodes, loss_of_valid
from rankdeck.parallel.pipelining.costs import with_shapes
from rankdeck.parallel.pipelining.stages import Traffic, check_gradient, prepare_output
from rankdeck.parallel.pipelining.versions import WeightVersions
from rankdeck.parallel.pytree import tensor_leaves
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup
from rankdeck.strategies.facts import StageFacts
from rankdeck.strategies.pipeline import PipelineParallel
from rankdeck.torch_compat.dispatch import storage_key


@dataclass
class _Microbatch:
    """A microbatch that has finished its forward pass in this stage and is waiting for its gradient.

    `count`, the number of targets, is known on the last stage only. `inputs`: the storage keys of the batch's
    tensors, to distinguish these from activations in the autograd graph.
    """

    number: int
    version: int
    received: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    count: Any
    inputs: frozenset[int]


class AsyncPipeline(PipelineParallel):
    """Pipeline with one stage per rank, in which each microstep is one microbatch."""

    name = "pipeline-async"
    owns_optimizer_step = True
    options: AsyncPipelineOptions  # type: ignore[assignment]  # it has no schedule option

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._stage = setup.rank
        self._num_later_stages = setup.world_size - 1 - setup.rank
        """Number of stages after this one; in a full pipeline, also the number of microbatches that this
        stage has in flight between two microsteps."""
        self._two_versions = self.options.mode == "2bw"
        self._microbatches_per_update = setup.accumulate if self._two_versions else 1
        self._in_flight: deque[_Microbatch] = deque()
        self._sending: deque[list[tuple[dist.Work | None, Tensor, str]]] = deque([[]])
        self._num_forwards = 0
        self._num_backwards = 0
        self._drained_version = 0
        self._target_count: Any = 0
        self._was_tracked = True

    def choose_microbatches(self) -> int:
        return 1

    @property
    def num_fill_steps(self) -> int:
        # The first update comes `_num_later_stages` microbatches late: with mode = "2bw", within one step.
        # Otherwise old weights accumulate in as many further steps, and sent tensors remain for one more.
        return int(self._num_later_stages > 0) if self._two_versions else 2 * self._num_later_stages + 1

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        self.build_stages(model_fn, range(self.setup.world_size))
        self._place_stages()
        if shared := self.cut.shared_parameters():
            names = {id(parameter): name for name, parameter in self.module.named_parameters()}
            raise ModelError(
                phrase(
                    "{weight} is used by stages that update it at different times, so its "
                    "copies would diverge.",
                    weight=names.get(id(shared[0][0]), "A weight"),
                ),
                path="strategy.use",
                advice=phrase(
                    "Untie the weights, split the model so that one stage contains both uses, "
                    'or set strategy.use = "pipeline".'
                ),
            )
        self._versions = WeightVersions(self.cut.stages[self._stage])
        self._traffic = Traffic(self.spans)
        label = "point-to-point, no flush"
        self.facts = StageFacts(
            label, self.stages, self._microbatches_per_update, self._traffic, versions=self._versions
        )
        self.facts.staleness = 0
        # One group per direction, so that activations cannot block gradients.
        self._forward_group, self._backward_group = dist.new_group(), dist.new_group()

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        self._adopt_in_flight()
        self._sending.append([])
        sums = self._forward(batch, scale)
        if len(self._in_flight) > self._num_later_stages:
            self._run_backward()
        self._finish_sending(keep_calls=2)
        self.facts.steps += last
        return sums

    def set_update_weights(self, update_weights: Callable[[int, Any], object]) -> None:
        self._update_weights = update_weights

    def _forward(self, batch: Batch, scale: float | Tensor) -> LossSum:
        """Run the next microbatch through this stage, with the weight version from `_version_for`."""
        batch, valid = self.pad_batch(batch)
        inputs, targets = self.stage_inputs(batch)
        self.use_sizes(batch)
        received = self._receive_activations()
        version = self._version_for(self._num_forwards)
        count: Any = 0
        total = torch.zeros((), device=self.device)
        marked = self.spans.phase(0, "forward", stage=self._stage, microbatch=self._num_forwards)
        with marked, self._versions.use_version(version), self.autocast():
            output = self.cut.stages[self._stage](received if self._stage else None, inputs)
            if not self._num_later_stages:
                loss, count = loss_of_valid(self.loss, output, targets, valid if scale else 0)
                total, output = loss.detach(), (loss * scale,)
        if self._num_later_stages:
            leaves = self.cut.boundaries[self._stage + 1]
            output = tuple(
                prepare_output(tensor, shape) for tensor, shape in zip(output, leaves, strict=True)
            )
            self._send(output, self._stage + 1, self._forward_group)
        self._in_flight.append(
            _Microbatch(
                self._num_forwards, version, received, output, count, _storage_keys((inputs, targets))
            )
        )
        self._num_forwards += 1
        self._traffic.count_forward()
        return LossSum(total, count)

    def _receive_activations(self) -> tuple[Tensor, ...]:
        if not self._stage:
            return ()
        with self.ledger.phase("communication"):
            enters = self.cut.boundaries[self._stage]
            received = self.stages.receive(
                enters, self.setup.microstep_samples, self._stage - 1, self._forward_group
            )
        return tuple(tensor.requires_grad_(tensor.is_floating_point()) for tensor in received)

    def _version_for(self, number: int) -> int:
        """Return the weight version for the forward pass of microbatch `number`; it is never older than the
        version that all stages reached when the pipeline was last drained."""
        if self._two_versions:
            return max(number // self._microbatches_per_update - 1, self._drained_version)
        return self._versions.newest

    def _run_backward(self) -> None:
        """Run the backward pass of the oldest microbatch in flight, then update the weights if this
        microbatch completes an update."""
        done = self._in_flight.popleft()
        self._traffic.count_backward()
        staleness = done.number // self._microbatches_per_update - done.version
        self.facts.staleness = max(self.facts.staleness or 0, staleness)
        gradients, count = self._receive_gradients(done)
        weights = self._versions.weights(done.version)
        input_tensors = [tensor for tensor in done.received if tensor.requires_grad]
        pairs = [pair for pair in zip(done.outputs, gradients, strict=True) if pair[0].requires_grad]
        marked = self.spans.phase(0, "backward", stage=self._stage, microbatch=done.number)
        with marked, self._versions.use_version(done.version):
            # Not backward(): it would accumulate in the old version of the weights, but the optimizer steps
            # the current one.
            computed = torch.autograd.grad(
                [output for output, _ in pairs],
                [*weights, *input_tensors],
                [gradient for _, gradient in pairs],
                allow_unused=True,
            )
        # Free the microbatch's activations before sending allocates more.
        del done, pairs, gradients
        if self._stage:
            enters = [shape for shape in self.cut.boundaries[self._stage] if shape.dtype.is_floating_point]
            back = [
                torch.zeros_like(tensor) if gradient is None else gradient
                for tensor, gradient, shape in zip(
                    input_tensors, computed[len(weights) :], enters, strict=True
                )
                if check_gradient(shape, gradient)
            ]
            # Every stage updates by itself and needs the count, which only the last stage computes.
            count_back = torch.tensor([float(count)], dtype=torch.float64, device=self.device)
            self._send((*back, count_back), self._stage - 1, self._backward_group)
        # `computed` ends with the gradients of the inputs, which `zip` leaves out.
        for weight, gradient in zip(self._versions.current_weights, computed, strict=False):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        del computed
        self._num_backwards += 1
        self._target_count = self._target_count + count
        if self._num_backwards % self._microbatches_per_update == 0:
            self._update()

    def _receive_gradients(self, done: _Microbatch) -> tuple[Sequence[Tensor | None], Any]:
        """Return the gradients of this stage's outputs (None for an output without a gradient) and the number
        of targets.

        Only the last stage computes the number of targets; the other stages receive it.
        """
        if not self._num_later_stages:
            return [torch.ones_like(output) for output in done.outputs], done.count
        handed_on = with_shapes(self.cut.boundaries[self._stage + 1], done.outputs)
        boundary = tuple(shape for shape in handed_on if shape.returns_gradient)
        with self.ledger.phase("communication"):
            gradients = self.stages.receive(
                boundary, self.setup.microstep_samples, self._stage + 1, self._backward_group
            )
            count = torch.empty(1, dtype=torch.float64, device=self.device)
        dist.recv(count, self._stage + 1, group=self._backward_group)
        remaining = iter(gradients)
        return [next(remaining) if shape.returns_gradient else None for shape in handed_on], count[0]

    def _update(self) -> None:
        needed = {microbatch.version for microbatch in self._in_flight}
        if self._two_versions:
            # The next forward may still use the version before this update.
            needed.add(max(self._num_forwards // self._microbatches_per_update - 1, self._drained_version))
        with self.ledger.phase("parameters"):
            self._versions.prepare_update(needed)
        self._update_weights(self._num_backwards // self._microbatches_per_update, self._target_count)
        self._versions.finish_update(needed & set(range(self._versions.newest + 1)))
        self._target_count = 0

    def finalize(self) -> None:
        """Drain the pipeline: finish all microbatches in flight, so that all stages are at the same
        update."""
        under_way, is_new = len(self._in_flight), self._versions.newest > self._drained_version
        while self._in_flight:
            self._run_backward()
        # This removes the lists of all calls, but `_send` appends to the newest, hence the empty list that
        # follows.
        self._finish_sending(keep_calls=0)
        self._sending.append([])
        self._drained_version = self._versions.newest
        self._versions.drop_old()
        if is_new or under_way:
            self.setup.on_drained(under_way, self._versions.newest)

    def _send(self, tensors: tuple[Tensor, ...], stage: int, group: dist.ProcessGroup) -> None:
        # A tensor sent forward is also an activation of its microbatch; one sent back exists only to be sent.
        kind = "communication" if stage < self._stage else "activations"
        sending = self.stages.send(tensors, stage, group)
        self._traffic.count_sent([tensor for _, tensor in sending])
        self._sending[-1] += [(work, tensor, kind) for work, tensor in sending]
        if self.ledger.is_tracking:
            self.ledger.relabel([tensor for _, tensor in sending], kind)

    def _finish_sending(self, *, keep_calls: int) -> None:
        """Release sent tensors, except those sent in the last `keep_calls` calls of `forward_backward`.

        Some backends mark a send as finished only once `wait` is called on it. Two calls after the send,
        `wait` returns at once: the tensors that this stage has received since then show that the neighbour
        has received the sent tensor.
        """
        while len(self._sending) > keep_calls:
            for work, _, _ in self._sending.popleft():
                if work is not None:
                    work.wait()

    def _adopt_in_flight(self) -> None:
        """Register the tensors of microbatches in flight with the memory ledger, if the ledger has started
        tracking in the middle of the run."""
        ledger = self.ledger
        is_followed = ledger.is_tracking
        if is_followed and not self._was_tracked:
            ledger.adopt(self._versions.tensors(), 0, "parameters")
            for _, tensor, kind in [sent for sending in self._sending for sent in sending]:
                ledger.adopt((tensor,), 0, kind)
            for microbatch in self._in_flight:
                tensors = [*microbatch.received, *microbatch.outputs, *saved_tensors(microbatch.outputs)]
                unknown = [tensor for tensor in tensors if ledger.device_of(tensor) is None]
                inputs = [tensor for tensor in unknown if _storage_keys(tensor) & microbatch.inputs]
                ledger.adopt(inputs, 0, "inputs")
                ledger.adopt([t for t in unknown if ledger.device_of(t) is None], 0, "activations")
        self._was_tracked = is_followed

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        assert not self._in_flight, "the pipeline is not drained before an evaluation"
        return super().evaluate(batch, num_valid)


def _storage_keys(value: Any) -> frozenset[int]:
    return frozenset(storage_key(tensor.untyped_storage()) for tensor in tensor_leaves(value))


def saved_tensors(outputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the tensors that the autograd graph of `outputs` saves for the backward pass."""
    saved: list[Tensor] = []
    for node in iter_graph_nodes(output.grad_fn for output in outputs):
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                items = value if isinstance(value, tuple | list) else (value,)
                saved += [item for item in items if isinstance(item, Tensor)]
    return saved
