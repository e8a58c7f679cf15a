"""Third stage of a fan-out: each replica runs its forward and backward pass on its own slice and device.

The replicas' graphs are detached from the caller's. To autograd in the calling thread, all replicas together
are one function: its forward method runs all replicas' forward passes in the devices' threads, and its
backward method runs their backward passes in the same threads, as on GPUs. Read fan_out.py first.

Source: torch.nn.parallel.parallel_apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rankdeck.base.errors import TrainingError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.collectives.outputs import OutputStructure, flatten_output
from rankdeck.parallel.collectives.replica_threads import ReplicaThreads
from rankdeck.parallel.collectives.replicate import Replicas
from rankdeck.torch_compat.dispatch import tree_flatten, tree_unflatten

T = TypeVar("T")

SOLE_OWNER_ATTRIBUTE = "_rankdeck_handed_over"
"""Attribute that marks a gradient that only its receiver reads."""


def parallel_apply(replicas: Replicas, inputs: Sequence[Any], threads: ReplicaThreads) -> list[Any]:
    """Call replica i with the arguments inputs[i] (a tuple) in its device's thread; return one output per
    replica.

    Each replica's backward pass runs in the same thread. Second derivatives through the replicas raise an
    error.

    Raises:
        ReplicaError: a replica failed in its forward pass or, during the caller's backward pass, in its own.
    """
    work = _ParallelPass(replicas, inputs, threads)
    flat: tuple[Tensor, ...] = _ParallelApply.apply(work, *replicas.flat_parameters, *work.input_tensors)
    return work.unflatten(flat)


class _Replica:
    """One replica's forward pass, with everything that its backward pass needs."""

    def __init__(self, module: nn.Module, parameters: Sequence[Tensor], arguments: Any) -> None:
        self._module = module
        self._with_grad = torch.is_grad_enabled()
        self._grads: list[Tensor | None] = []
        self.parameters = parameters
        self.inputs: list[tuple[Tensor, Tensor]] = []
        """The inputs that require a gradient, each with the leaf that replaces it in the replica."""
        leaves, spec = tree_flatten(arguments if isinstance(arguments, tuple) else (arguments,))
        for index, leaf in enumerate(leaves):
            if self._with_grad and isinstance(leaf, Tensor) and leaf.requires_grad:
                leaves[index] = leaf.detach().requires_grad_()
                self.inputs.append((leaf, leaves[index]))
        self._arguments: Any = tree_unflatten(leaves, spec)

    def forward(self) -> tuple[list[Tensor], list[Tensor]]:
        """Run the module; return a flat list of its detached outputs, and a list of those outputs that get
        no gradient."""
        # Inside an autograd function grad mode is off; the replica's own graph is made here.
        with torch.set_grad_enabled(self._with_grad):
            outputs, self.structure = flatten_output(self._module(*self._arguments))
            self._root: Tensor = _SeedFunction.apply(self._grads, *outputs)
        # The graph keeps the inputs that its backward pass needs; the others can be freed.
        self._arguments = ()
        detached = [output.detach() for output in outputs]
        pairs = zip(outputs, detached, strict=True)
        return detached, [constant for output, constant in pairs if not output.requires_grad]

    def set_output_gradients(self, grads: Sequence[Tensor | None]) -> None:
        """Store the outputs' gradients, which this replica owns from now on."""
        self._grads += [_take_ownership(grad) for grad in grads]

    def backward(self) -> None:
        if self._root.requires_grad and any(grad is not None for grad in self._grads):
            self._root.backward()


class _ParallelPass:
    """The replicas' forward passes of one step, with everything that their backward passes need."""

    def __init__(self, replicas: Replicas, inputs: Sequence[Any], threads: ReplicaThreads) -> None:
        self._threads = threads
        self._training = replicas.modules[0].training
        self._is_sequential = False
        rows = zip(replicas.modules, replicas.leaves, inputs, strict=True)
        self._replicas = [_Replica(*row) for row in rows]
        self.input_tensors = [tensor for replica in self._replicas for tensor, _ in replica.inputs]
        self._structures: list[OutputStructure] = []
        self._num_outputs: list[int] = []

    def forward(self) -> tuple[list[Tensor], list[Tensor]]:
        """Run all forward passes; return all output tensors, and a list of those that get no gradient."""
        jobs = [replica.forward for replica in self._replicas]
        results, self._is_sequential = self._threads.run_forwards(jobs, training=self._training)
        self._structures = [replica.structure for replica in self._replicas]
        self._num_outputs = [len(tensors) for tensors, _ in results]
        outputs = [output for tensors, _ in results for output in tensors]
        return outputs, [output for _, constant in results for output in constant]

    def _split_by_replica(self, flat: Sequence[T]) -> Iterator[Sequence[T]]:
        start = 0
        for num in self._num_outputs:
            yield flat[start : start + num]
            start += num

    def unflatten(self, flat: Sequence[Tensor]) -> list[Any]:
        pairs = zip(self._structures, self._split_by_replica(flat), strict=True)
        return [shell.unflatten(tensors) for shell, tensors in pairs]

    def backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run all replicas' backward passes; return the gradients of their parameters, in the order of
        `flat_parameters`, then those of the inputs."""
        # Emptied, so that a second backward pass is detected.
        replicas, self._replicas = self._replicas, []
        if not replicas:
            raise TrainingError(
                phrase("The backward pass ran twice through the same replicas."),
                advice=phrase(
                    "Run one backward pass per forward pass; retain_graph has no effect across replicas."
                ),
            )
        for replica, output_grads in zip(replicas, self._split_by_replica(grads), strict=True):
            replica.set_output_gradients(output_grads)
        self._threads.end_lead_phase()
        run = self._threads.run_sequentially if self._is_sequential else self._threads.run
        run([replica.backward for replica in replicas], "backward")
        self._threads.start_lead_phase("reduce")
        parameters = [leaf for replica in replicas for leaf in replica.parameters]
        ledger = self._threads.devices.ledger
        if ledger.is_tracking:
            ledger.relabel([leaf.grad for leaf in parameters if leaf.grad is not None], "gradients")
        leaves = [*parameters, *(leaf for replica in replicas for _, leaf in replica.inputs)]
        computed = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        return computed


class _SeedFunction(torch.autograd.Function):
    """Start of a replica's backward pass: a scalar whose gradient is replaced by the outputs' gradients.

    The function takes the outputs' gradients out of the list `grads`, so that each is freed as soon as it is
    used. If they were passed to torch.autograd.backward instead, all of them would live until the end of that
    call, and take memory that a run on GPUs does not need.
    """

    @staticmethod
    def forward(ctx: Any, grads: list[Tensor | None], *outputs: Tensor) -> Tensor:
        ctx.grads = grads
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        grads = tuple(ctx.grads)
        ctx.grads.clear()
        return None, *grads


def _take_ownership(grad: Tensor | None) -> Tensor | None:
    """Return a detached tensor that takes over the gradient's storage.

    Autograd references `grad` until the backward pass ends. If `gather` has marked `grad` as a gradient that
    only its receiver reads, `grad` is emptied here.
    """
    if grad is None:
        return None
    owned = grad.detach()
    if getattr(grad, SOLE_OWNER_ATTRIBUTE, False):
        grad.data = torch.empty(0, dtype=grad.dtype)
    return owned


class _ParallelApply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _ParallelPass, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.work = work
        # Outputs that the loss does not use get None: zeros would take memory.
        ctx.set_materialize_grads(False)
        outputs, constant = work.forward()
        ctx.mark_non_differentiable(*constant)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None, *ctx.work.backward(grads)
