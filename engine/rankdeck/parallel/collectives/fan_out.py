"""DataParallel's transfers in every step: from device 0 to all devices, and back to device 0.

    forward:   scatter the batch -> replicate the model -> parallel_apply -> gather the outputs on device 0
    backward:  gather sends each device its slice of the gradient
               -> each replica runs its backward pass on its own device
               -> replicate sums the gradients of all replicas on device 0

Each stage above is one autograd function, so the backward pass mirrors the forward pass. Device 0 holds the
gathered outputs of the whole batch, and everything that the loss computes from them. In a training step,
device 0 sends (n - 1) x parameters and gets as many gradients back; (n - 1) / n of the outputs are sent to
device 0, and as many output gradients back. Read strategies/data_parallel.py next.

Source: torch.nn.parallel (replicate, parallel_apply, scatter_gather), which needs CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.collectives.outputs import common_structure, flatten_output
from rankdeck.parallel.collectives.parallel_apply import SOLE_OWNER_ATTRIBUTE, parallel_apply
from rankdeck.parallel.collectives.replica_threads import ReplicaThreads
from rankdeck.parallel.collectives.replicate import replicate
from rankdeck.torch_compat.dispatch import tree_flatten, tree_unflatten


def data_parallel(
    module: nn.Module,
    inputs: tuple[Any, ...],
    threads: ReplicaThreads,
    on_replicas: Callable[[Sequence[nn.Module], Sequence[Any]], None] = lambda replicas, slices: None,
) -> Any:
    """Run `module(*inputs)` on all devices, each with its slice of the batch; gather the outputs on device 0.

    `on_replicas(replicas, slices)` is called before the replicas' forward passes.

    Raises:
        ModelError: inputs cannot be cut, or outputs cannot be joined, along their first dim.
        ReplicaError: a replica raised an error.
    """
    with threads.transfer_phase("scatter"):
        slices = scatter(inputs, threads.devices)
    with threads.transfer_phase("replicate"):
        replicas = replicate(module, threads.devices, len(slices))
        on_replicas(replicas.modules, slices)
    outputs = parallel_apply(replicas, slices, threads)
    with threads.transfer_phase("gather"):
        return gather(outputs, threads.devices)


def scatter(inputs: Any, devices: VirtualDevices) -> list[Any]:
    """Cut `inputs`, a batch on the host, along dim 0; return each device's slice, with tensors (B / n, ...).

    Tensors may be inside tuples, lists and dicts. Other values and 0-dim tensors go to every device. As with
    torch.chunk, a batch with fewer samples than there are devices reaches only some of them.

    Raises:
        ModelError: the tensors disagree on the batch size.
    """
    leaves, spec = tree_flatten(inputs)
    cut = [_chunks(leaf, devices) for leaf in leaves]
    counts = {len(chunks) for chunks in cut if chunks is not None}
    if len(counts) > 1:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))
        raise ModelError(
            phrase(
                "The batch's tensors have different first dims and cannot be scattered together: {shapes}.",
                shapes=shapes,
            ),
            advice=phrase("Give every tensor of a batch the same first dim."),
        )
    num_slices = counts.pop() if counts else 1
    return [
        tree_unflatten(
            [
                _copy_to_device(leaf, chunks, device, devices)
                for leaf, chunks in zip(leaves, cut, strict=True)
            ],
            spec,
        )
        for device in range(num_slices)
    ]


def _chunks(leaf: Any, devices: VirtualDevices) -> tuple[Tensor, ...] | None:
    return leaf.chunk(devices.num_devices) if isinstance(leaf, Tensor) and leaf.dim() else None


def _copy_to_device(
    leaf: Any, chunks: tuple[Tensor, ...] | None, device: int, devices: VirtualDevices
) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    chunk = leaf if chunks is None else chunks[device]
    if chunk.requires_grad and torch.is_grad_enabled():
        return devices.transfer(chunk, 0, device, "inputs")
    return devices.copy(chunk, None, device, "inputs")


def gather(outputs: Sequence[Any], devices: VirtualDevices) -> Any:
    """Join the replicas' outputs on device 0: (B / n, ...) become (B, ...), n scalars become (n,).

    The ledger counts the joined tensors as "gathered". The outputs of all replicas must have the same
    structure, which outputs.py must be able to flatten. When gradients have passed back through this
    function, the ledger's phase "gathered" ends in the calling thread: later allocations belong to the
    replicas.

    Raises:
        ModelError: the replicas returned different structures or shapes.
    """
    # A batch smaller than the number of devices may have reached a single one.
    if len(outputs) == 1:
        return outputs[0]
    apart = [flatten_output(output) for output in outputs]
    shell = common_structure([structure for _, structure in apart])
    groups = list(zip(*(tensors for tensors, _ in apart), strict=True))
    for group in groups:
        if len({(leaf.dtype, leaf.shape[1:]) for leaf in group}) > 1:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in group)
            raise ModelError(
                phrase(
                    "The replicas returned outputs that cannot be concatenated along their "
                    "first dim: {shapes}.",
                    shapes=shapes,
                ),
                advice=phrase(
                    "Pad the outputs to a fixed length, or set strategy.parallel_loss = true to compute "
                    "the loss on each replica."
                ),
            )
    leaves = [leaf for group in groups for leaf in group]
    # Evaluation takes this path too: without gradients Function.apply builds no graph.
    return shell.unflatten(_Gather.apply(devices, len(outputs), *leaves))


def _concatenate(group: Sequence[Tensor], devices: VirtualDevices) -> Tensor:
    for device, tensor in enumerate(group):
        devices.count_transfer(device, 0, tensor.numel() * tensor.element_size())
    with devices.ledger.transfer_to(0, "gathered"):
        return torch.cat([tensor if tensor.dim() else tensor.unsqueeze(0) for tensor in group])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, devices: VirtualDevices, num_parts: int, *leaves: Tensor) -> Any:
        ctx.devices = devices
        ctx.set_materialize_grads(False)
        groups = [leaves[start : start + num_parts] for start in range(0, len(leaves), num_parts)]
        ctx.shapes = [[leaf.shape for leaf in group] for group in groups]
        joined = [_concatenate(group, devices) for group in groups]
        pairs = zip(joined, groups, strict=True)
        ctx.mark_non_differentiable(*[out for out, group in pairs if not any(p.requires_grad for p in group)])
        return tuple(joined)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        devices: VirtualDevices = ctx.devices
        leaf_grads: list[Tensor | None] = []
        for grad, shapes in zip(grads, ctx.shapes, strict=True):
            if grad is None:
                leaf_grads += [None] * len(shapes)
                continue
            # A scalar was joined as a row of its own.
            pieces = grad.split([shape[0] if shape else 1 for shape in shapes])
            for device, (piece, shape) in enumerate(zip(pieces, shapes, strict=True)):
                leaf_grad = devices.copy(piece.view(shape), 0, device, "temporary")
                setattr(leaf_grad, SOLE_OWNER_ATTRIBUTE, True)
                leaf_grads.append(leaf_grad)
        devices.ledger.end_phase("gathered")
        return None, None, *leaf_grads
