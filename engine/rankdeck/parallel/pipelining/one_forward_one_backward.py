"""1F1B by hand: the most widely used schedule, with plain sends and receives.

    rank 0 of 3   F0 F1 F2          B0 F3 B1 F4 B2    B3    B4
    rank 1           F0 F1       B0 F2 B1 F3 B2 F4 B3    B4
    rank 2              F0 B0 F1 B1 F2 B2 F3 B3 F4 B4

Stage s of p first runs p - 1 - s forward passes, then one forward and one backward pass in turn, then the
remaining backward passes. A micro-batch's activations live from its forward to its backward pass, so stage s
holds those of p - s micro-batches, while a schedule that runs all forward passes first (gpipe) would hold
those of all micro-batches. In the alternating phase, a rank has something to send to a neighbour whenever it
waits for something from the same neighbour: both go into one exchange, because two ranks that each send first
and receive afterwards may wait for each other forever.

This schedule gives the same results as torch's "1f1b", to the last bit. Source: Narayanan et al., Efficient
Large-Scale Language Model Training on GPU Clusters, 2021. Read schedules.py first,
../../strategies/pipeline.py next.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from rankdeck.memory.ledger import AnyLedger
from rankdeck.parallel.collectives.peers import Peers
from rankdeck.parallel.fsdp.blocks import sharded_modules
from rankdeck.parallel.pipelining.communication import StageCommunication
from rankdeck.parallel.pipelining.costs import Boundary
from rankdeck.parallel.pipelining.stages import StageRunner, Traffic

Tensors = tuple[Tensor, ...]


def one_forward_one_backward(
    forward: Callable[[int, Tensors], Tensors],
    backward: Callable[[int, Tensors, Tensors, Tensors], Tensors],
    previous: Neighbour,
    following: Neighbour,
    *,
    num_warmup: int,
    num_microbatches: int,
) -> None:
    """Run all micro-batches of a batch through one rank's stage, forward and backward.

    `forward(microbatch, received)` returns the tensors for the next stage. `backward(microbatch, received,
    outputs, gradients)` accumulates the gradients of the stage's weights and returns the gradients of
    `received`. Stage s of p first runs `num_warmup` = p - 1 - s forward passes. The `previous` neighbour of
    the first stage and the `following` neighbour of the last stage exchange nothing.
    """
    under_way: deque[tuple[int, Tensors, Tensors]] = deque()

    def forward_next(microbatch: int, received: Tensors) -> Tensors:
        outputs = forward(microbatch, received)
        under_way.append((microbatch, received, outputs))
        return outputs

    def backward_oldest(gradients: Tensors) -> Tensors:
        return backward(*under_way.popleft(), gradients)

    num_warmup = min(num_warmup, num_microbatches)
    for microbatch in range(num_warmup):
        following.send(forward_next(microbatch, previous.receive()))

    if num_warmup < num_microbatches:
        # From here on, each receive is paired with a send to the same neighbour.
        received = previous.receive()
        for microbatch in range(num_warmup, num_microbatches - 1):
            gradients = following.exchange(forward_next(microbatch, received))
            received = previous.exchange(backward_oldest(gradients))
        gradients = following.exchange(forward_next(num_microbatches - 1, received))
        previous.send(backward_oldest(gradients))

    for _ in range(num_warmup):
        previous.send(backward_oldest(following.receive()))


class Neighbour:
    """The rank of the previous or the next stage.

    `exchange_with(tensors, boundary)` sends tensors to that rank and returns its reply, whose shapes and
    dtypes are those of `boundary`.
    """

    def __init__(self, exchange_with: Callable[[Tensors, Boundary], Tensors], boundary: Boundary) -> None:
        self._exchange_with = exchange_with
        self._boundary = boundary

    def send(self, tensors: Tensors) -> None:
        """Send tensors; return once they may be freed."""
        self._exchange_with(tensors, ())

    def receive(self) -> Tensors:
        return self._exchange_with((), self._boundary)

    def exchange(self, tensors: Tensors) -> Tensors:
        """Send and receive concurrently, so that neither rank waits for the other to start."""
        return self._exchange_with(tensors, self._boundary)


class HandWrittenSchedule:
    """Schedule that runs `one_forward_one_backward` on a rank's only stage, and records the stage's spans and
    micro-batches in flight."""

    def __init__(
        self,
        runner: StageRunner,
        stages: StageCommunication,
        num_microbatches: int,
        traffic: Traffic,
        ledger: AnyLedger,
    ) -> None:
        self._runner = runner
        self._stages = stages
        self._device = stages.device
        self._peers = Peers(stages.group)
        self._num_microbatches = num_microbatches
        self._traffic = traffic
        self._ledger = ledger
        stage, boundaries = runner.index, stages.cut.boundaries
        gradients = tuple(shape for shape in boundaries[stage + 1] if shape.returns_gradient)
        self._previous = Neighbour(functools.partial(self._exchange, stage - 1), boundaries[stage])
        self._next = Neighbour(functools.partial(self._exchange, stage + 1), gradients)

    def run(self) -> None:
        """Run all micro-batches of the batch that the runner has started."""
        one_forward_one_backward(
            self._forward,
            self._backward,
            self._previous,
            self._next,
            num_warmup=self._peers.size - 1 - self._runner.index,
            num_microbatches=self._num_microbatches,
        )

    def _exchange(self, rank: int, tensors: Tensors, boundary: Boundary) -> Tensors:
        """Exchange tensors with a rank; do nothing if `rank` would be before the first rank or after the
        last."""
        if not 0 <= rank < self._peers.size:
            return ()
        outgoing = [tensor.detach().contiguous() for tensor in tensors]
        # Receive buffers count as communication, not as activations.
        with self._ledger.phase("communication"):
            incoming = [shape.empty(self._device) for shape in boundary]
        self._peers.exchange([(tensor, rank) for tensor in outgoing], [(tensor, rank) for tensor in incoming])
        self._traffic.count_sent(outgoing)
        return tuple(incoming)

    def _forward(self, microbatch: int, received: Tensors) -> Tensors:
        runner = self._runner
        for tensor, shape in zip(received, self._stages.cut.boundaries[runner.index], strict=True):
            tensor.requires_grad_(shape.returns_gradient)
        mark = self._traffic.spans.phase(0, "forward", stage=runner.index, microbatch=microbatch)
        with runner.run_microbatch(microbatch), mark:
            output = runner(*received)
        self._traffic.count_forward()
        return (output,) if runner.is_last else output

    def _backward(self, microbatch: int, received: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
        """Run a micro-batch's backward pass.

        Sharded weights sync their gradients in the last backward pass; until then, the gradients accumulate.
        """
        is_last = microbatch == self._num_microbatches - 1
        for module in sharded_modules(self._runner):
            module.set_is_last_backward(is_last)
            module.set_reshard_after_backward(is_last, recurse=False)
            module.set_requires_gradient_sync(is_last, recurse=False)
        leaving = self._stages.cut.boundaries[self._runner.index + 1]
        if leaving:
            outputs = tuple(
                tensor for tensor, shape in zip(outputs, leaving, strict=True) if shape.returns_gradient
            )
        output_grads = gradients if leaving else (None,)
        pairs = [pair for pair in zip(outputs, output_grads, strict=True) if pair[0].requires_grad]
        mark = self._traffic.spans.phase(0, "backward", stage=self._runner.index, microbatch=microbatch)
        with self._runner.run_microbatch(microbatch), mark:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        self._traffic.count_backward()
        leaves = [tensor for tensor in received if tensor.requires_grad]
        # The previous stage waits for a tensor of every shape in its boundary, so a missing gradient is sent
        # as zeros.
        return tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)

    def buffers(self) -> list[Tensor]:
        """Return an empty list: this schedule keeps no receive buffers."""
        return []
