"""The third step of a fan-out: every replica computes on its slice, on its device, and back.

The replicas' graphs are cut off from the caller's. To autograd in the calling thread all replicas together
are one function: its forward runs their forwards in the devices' threads, its backward runs their backwards
there, as GPUs do. Read fan_out.py first.

Source: torch.nn.parallel.parallel_apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rankdeck.base.errors import ModelError, TrainingError
from rankdeck.parallel.collectives.replica_threads import ReplicaThreads
from rankdeck.parallel.collectives.replicate import Replicas
from rankdeck.torch_compat.dispatch import TreeSpec, tree_flatten, tree_unflatten

HANDED_OVER = "_rankdeck_handed_over"
"""Set on a gradient that nobody but its receiver will read."""


def parallel_apply(replicas: Replicas, inputs: Sequence[Any], threads: ReplicaThreads) -> list[Any]:
    """Replica i on inputs[i] (a tuple: its arguments), each in its device's thread; returns one output per
    replica.

    In the backward each replica's part runs in its thread too. A second derivative through it is refused.

    Raises:
        ReplicaError: a replica raised, in the forward or, from there, in the backward.
    """
    work = _ParallelWork(replicas, inputs, threads)
    if replicas.sent or work.input_tensors:
        flat: tuple[Tensor, ...] = _ParallelApply.apply(work, *replicas.sent, *work.input_tensors)
    else:
        flat = tuple(work.forward()[0])
    return work.structured(flat)


class _ParallelWork:
    """The replicas' forwards of one step, kept for their backwards."""

    def __init__(self, replicas: Replicas, inputs: Sequence[Any], threads: ReplicaThreads) -> None:
        self._replicas = replicas
        self._threads = threads
        self._in_turn = False
        self._with_grad = torch.is_grad_enabled()
        self.input_tensors: list[Tensor] = []
        """The inputs that want a gradient; the replicas see leaves in their place."""
        self._input_leaves: list[Tensor] = []
        self._arguments = [self._cut_off(arguments) for arguments in inputs]
        self._specs: list[TreeSpec] = []
        self._seeds: list[_Seed] = []

    def _cut_off(self, arguments: Any) -> tuple[Any, ...]:
        leaves, spec = tree_flatten(arguments if isinstance(arguments, tuple) else (arguments,))
        for index, leaf in enumerate(leaves):
            if self._with_grad and isinstance(leaf, Tensor) and leaf.requires_grad:
                self.input_tensors.append(leaf)
                leaves[index] = leaf.detach().requires_grad_()
                self._input_leaves.append(leaves[index])
        arguments = tree_unflatten(leaves, spec)
        assert isinstance(arguments, tuple)
        return arguments

    def forward(self) -> tuple[list[Tensor], list[Tensor]]:
        """All replicas' output tensors, flat and detached, and those among them that have no gradient."""
        jobs = [
            _forward_job(module, arguments, self._with_grad)
            for module, arguments in zip(self._replicas.modules, self._arguments, strict=True)
        ]
        results, self._in_turn = self._threads.run_forwards(jobs, training=self._replicas.training)
        self._specs = [result.spec for result in results]
        self._seeds = [result.seed for result in results]
        self._arguments = []
        outputs = [output for result in results for output in result.outputs]
        constant = [
            output
            for result in results
            for output, differentiable in zip(result.outputs, result.differentiable, strict=True)
            if not differentiable
        ]
        return outputs, constant

    def structured(self, flat: Sequence[Tensor]) -> list[Any]:
        outputs, start = [], 0
        for spec in self._specs:
            outputs.append(tree_unflatten(flat[start : start + spec.num_leaves], spec))
            start += spec.num_leaves
        return outputs

    def backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of all replicas' parameters, flat as `sent`, then those of the inputs."""
        if not self._seeds:
            raise TrainingError(
                "The backward ran a second time through the same replicas.",
                advice="Call backward once per forward; retain_graph has no effect across replicas.",
            )
        start = 0
        for seed, spec in zip(self._seeds, self._specs, strict=True):
            seed.grads += [_taken_over(grad) for grad in grads[start : start + spec.num_leaves]]
            start += spec.num_leaves
        jobs = [seed.backward for seed in self._seeds]
        self._threads.end_lead_phase()
        if self._in_turn:
            self._threads.run_in_turn(jobs, "backward")
        else:
            self._threads.run(jobs, "backward")
        self._threads.begin_lead_phase("reduce")
        parameters = [leaf for leaves in self._replicas.leaves for leaf in leaves]
        found = [leaf.grad for leaf in (parameters if self._replicas.sent else [])]
        self._threads.devices.relabel([grad for grad in found if grad is not None], "gradients")
        found += [leaf.grad for leaf in self._input_leaves]
        for leaf in (*parameters, *self._input_leaves):
            leaf.grad = None
        self._seeds, self._input_leaves = [], []
        self._replicas = Replicas([], [], ())
        return found


@dataclass
class _ForwardResult:
    outputs: list[Tensor]
    differentiable: list[bool]
    spec: TreeSpec
    seed: _Seed


def _forward_job(
    module: nn.Module, arguments: tuple[Any, ...], with_grad: bool
) -> Callable[[], _ForwardResult]:
    def job() -> _ForwardResult:
        # Inside an autograd function grad mode is off; the replica's own graph is made here.
        with torch.set_grad_enabled(with_grad):
            outputs, spec = tree_flatten(module(*arguments))
            for output in outputs:
                if not isinstance(output, Tensor):
                    raise ModelError(
                        f"The model returned {output!r}, which cannot be gathered from several devices.",
                        advice="Return tensors, or tuples, lists and dicts of tensors.",
                    )
            differentiable = [output.requires_grad for output in outputs]
            seed = _Seed(outputs)
        return _ForwardResult([output.detach() for output in outputs], differentiable, spec, seed)

    return job


class _Seed:
    """Where a replica's backward starts: a scalar whose gradient is defined to be what came back.

    The graph itself pops the outputs' gradients from `grads`, so that each dies as soon as it is used.
    Given to torch.autograd.backward instead, they would all live to the end, which no GPU pays for.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.grads: list[Tensor | None] = []
        self._root: Tensor = _SeedFunction.apply(self.grads, *outputs)

    def backward(self) -> None:
        if self._root.requires_grad and any(grad is not None for grad in self.grads):
            self._root.backward()


class _SeedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grads: list[Tensor | None], *outputs: Tensor) -> Tensor:
        ctx.grads = grads
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        grads = tuple(ctx.grads)
        ctx.grads.clear()
        return None, *grads


def _taken_over(grad: Tensor | None) -> Tensor | None:
    """The gradient, and nobody else's: autograd holds its arguments to the end, so gather's are left
    empty."""
    if grad is None:
        return None
    own = grad.detach()
    if getattr(grad, HANDED_OVER, False):
        grad.data = torch.empty(0, dtype=grad.dtype)
    return own


class _ParallelApply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _ParallelWork, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.work = work
        ctx.set_materialize_grads(False)
        outputs, constant = work.forward()
        ctx.mark_non_differentiable(*constant)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None, *ctx.work.backward(grads)
