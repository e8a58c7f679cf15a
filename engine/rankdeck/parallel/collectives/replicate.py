"""Second stage of a fan-out: copy device 0's model to every device, and sum the gradients back.

Parameters are sent in buckets: device 0 sends each bucket as one flat tensor, which the receiver splits
again. The backward pass does the same with gradients in the other direction, and device 0 sums them in device
order. Read fan_out.py first.

Source: torch.nn.parallel.replicate and its Broadcast and ReduceAddCoalesced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.collectives.buckets import assign_buckets, flatten, unflatten
from rankdeck.torch_compat.modules import own_buffers as own_buffers_of
from rankdeck.torch_compat.modules import own_children, record_weight, shallow_copy
from rankdeck.torch_compat.modules import own_parameters as own_parameters_of

BUCKET_BYTES = 10 * 2**20


@dataclass
class Replicas:
    """Copies of one module, one per device, whose parameters are autograd leaves of their own.

    `flat_parameters` are the tensors that represent the parameters in the caller's autograd graph: parameter
    p of replica r is at index r * P + p, where P is the number of parameters of the module.
    """

    modules: list[nn.Module]
    leaves: list[list[Tensor]]
    flat_parameters: tuple[Tensor, ...]


def replicate(module: nn.Module, devices: VirtualDevices, num_replicas: int) -> Replicas:
    """Copy device 0's module to the first `num_replicas` devices, with the parameters in buckets of 10 MiB.

    Replica 0 works on the module's own buffers, so its writes persist; ../state/forward.py handles the other
    replicas' copies. Create new replicas in every step: devices other than 0 keep nothing between steps.
    """
    parameters = list(module.parameters())
    sent: tuple[Tensor, ...] = _Broadcast.apply(devices, num_replicas, *parameters)
    flat = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in sent]
    leaves = [flat[r * len(parameters) : (r + 1) * len(parameters)] for r in range(num_replicas)]
    with torch.no_grad():
        # `.data` gives each buffer of a bucket a version counter of its own, as on GPUs: modules write to
        # them one by one.
        copies = _broadcast([buffer.data for buffer in module.buffers()], devices, num_replicas, "buffers")
    buffers = [list(module.buffers()), *([tensor.data for tensor in tensors] for tensors in copies[1:])]
    return Replicas(_clone(module, leaves, buffers), leaves, sent)


def _clone(
    module: nn.Module, parameters: Sequence[Sequence[Tensor]], buffers: Sequence[Sequence[Tensor]]
) -> list[nn.Module]:
    """Make one shallow copy of a module tree per item of `parameters` and `buffers`; tied parameters stay
    tied."""
    tree = list(module.modules())
    module_index = {child: index for index, child in enumerate(tree)}
    parameter_place = {parameter: index for index, parameter in enumerate(module.parameters())}
    buffer_place = {buffer: index for index, buffer in enumerate(module.buffers())}
    roots = []
    for own_parameters, own_buffers in zip(parameters, buffers, strict=True):
        clones: list[Any] = [shallow_copy(child) for child in tree]
        for child, clone in zip(tree, clones, strict=True):
            for name, grandchild in own_children(child).items():
                own_children(clone)[name] = None if grandchild is None else clones[module_index[grandchild]]
            for name, parameter in own_parameters_of(child).items():
                if parameter is None:
                    own_parameters_of(clone)[name] = None
                    continue
                # Through setattr, in which RNNs update their list of weights.
                setattr(clone, name, own_parameters[parameter_place[parameter]])
                record_weight(clone, name, own_parameters[parameter_place[parameter]])
            for name, buffer in own_buffers_of(child).items():
                own_buffers_of(clone)[name] = None if buffer is None else own_buffers[buffer_place[buffer]]
        roots.append(clones[0])
    return roots


class _Broadcast(torch.autograd.Function):
    """Broadcast of parameters; the backward pass sums their gradients."""

    @staticmethod
    def forward(ctx: Any, devices: VirtualDevices, num_replicas: int, *parameters: Tensor) -> Any:
        ctx.devices, ctx.num_replicas = devices, num_replicas
        ctx.set_materialize_grads(False)
        copies = _broadcast([p.detach() for p in parameters], devices, num_replicas, "parameters")
        frozen = [
            copy
            for tensors in copies
            for copy, parameter in zip(tensors, parameters, strict=True)
            if not parameter.requires_grad
        ]
        ctx.mark_non_differentiable(*frozen)
        return tuple(copy for tensors in copies for copy in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        num_parameters = len(grads) // ctx.num_replicas
        by_replica = [
            list(grads[start : start + num_parameters]) for start in range(0, len(grads), num_parameters)
        ]
        return None, None, *reduce_to_first(by_replica, ctx.devices)


def _broadcast(
    tensors: Sequence[Tensor], devices: VirtualDevices, num_replicas: int, kind: str
) -> list[list[Tensor]]:
    """Copy device 0's tensors to each device and return the copies by device; device 0 keeps the
    originals."""
    copies = [list(tensors) for _ in range(num_replicas)]
    if num_replicas == 1:
        return copies
    for bucket in assign_buckets(tensors, BUCKET_BYTES):
        group = [tensors[index] for index in bucket]
        with devices.ledger.phase("communication"):
            flat = flatten(group)
        for device in range(1, num_replicas):
            for index, tensor in zip(
                bucket, unflatten(devices.copy(flat, 0, device, kind), group), strict=True
            ):
                # `.data` has a version counter of its own: a write to one parameter must not count for the
                # whole bucket.
                copies[device][index] = tensor.data
    return copies


def reduce_to_first(grads: Sequence[Sequence[Tensor | None]], devices: VirtualDevices) -> list[Tensor | None]:
    """Sum grads[device][p] across devices on device 0, in device order and in buckets.

    A gradient that is missing on some devices counts as zero on them; a gradient that is missing on all
    devices stays None.

    Raises:
        ModelError: a gradient is sparse.
    """
    if any(grad is not None and grad.is_sparse for device_grads in grads for grad in device_grads):
        raise ModelError(
            phrase(
                "A gradient is sparse (an embedding with sparse=True?), but dp's gradient "
                "buckets must be dense."
            ),
            advice=phrase("Build the embedding with sparse=False."),
        )
    summed: list[Tensor | None] = [None] * len(grads[0])
    present = [p for p in range(len(summed)) if any(device_grads[p] is not None for device_grads in grads)]
    likes = [next(device_grads[p] for device_grads in grads if device_grads[p] is not None) for p in present]
    for bucket in assign_buckets([like for like in likes if like is not None], BUCKET_BYTES):
        positions = [present[index] for index in bucket]
        shapes = [like for like in (likes[index] for index in bucket) if like is not None]
        total = _flatten_on_device(0, [grads[0][p] for p in positions], shapes, devices)
        for device in range(1, len(grads)):
            flat = _flatten_on_device(device, [grads[device][p] for p in positions], shapes, devices)
            moved = devices.copy(flat, device, 0, "communication")
            # Add in place only into the received copy: device 0's own gradients may be shared.
            total = moved.add_(total) if device == 1 else total.add_(moved)
            del flat, moved
        for p, gradient in zip(positions, unflatten(total, shapes), strict=True):
            summed[p] = gradient
    return summed


def _flatten_on_device(
    device: int, grads: Sequence[Tensor | None], likes: Sequence[Tensor], devices: VirtualDevices
) -> Tensor:
    with devices.ledger.on_device(device), devices.ledger.phase("communication"):
        pairs = zip(grads, likes, strict=True)
        return flatten([torch.zeros(like.shape, dtype=like.dtype) if g is None else g for g, like in pairs])
