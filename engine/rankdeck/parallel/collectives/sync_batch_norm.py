"""Batch norm over the global batch: all ranks share statistics in the forward and the backward pass.

    forward    mean and squared deviations per channel of each rank's slice -> all ranks -> global statistics
    backward   the means of the gradient and of its product with the normalized input, over all ranks

Slices may differ in size. For C channels, each rank sends (n-1) x (2C + 1) and 2(n-1)/n x 2C numbers per
layer and step, in the middle of both passes, with no computation to overlap with. On GPUs
torch.nn.SyncBatchNorm does this, but it refuses CPU tensors; this version is for rehearsals. Source: Chan,
Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rankdeck.torch_compat.modules import BatchNorm, check_batch_norm_input


def convert_batch_norms(module: nn.Module, *, on_cpu: bool) -> nn.Module:
    """Make a module's batch norms use the statistics of all ranks, and return the converted module.

    Weight names stay the same. On CPU each batch norm stays the same object and only its class changes; on
    GPUs torch creates new modules.
    """
    if not on_cpu:
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted
    for child in module.modules():
        if isinstance(child, BatchNorm) and not isinstance(child, _SyncBatchNorm | nn.SyncBatchNorm):
            # The object stays the same, so its hooks, its weights and references to it stay valid.
            child.__class__ = _sync_class(type(child))  # type: ignore[assignment, arg-type]  # classes hash
    return module


class _SyncBatchNorm(nn.Module):
    """Mixin placed before a batch norm's own class in the MRO; it changes only the forward pass in
    training."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalize `inputs`: (B, C, ...) -> (B, C, ...)."""
        norm: Any = self
        if not norm.training:
            out: Tensor = super().forward(inputs)
            return out
        check_batch_norm_input(norm, inputs)
        # 16 bits are too few for sums over a batch.
        values = inputs.float() if inputs.dtype in (torch.float16, torch.bfloat16) else inputs
        normalised, mean, variance, count = _Normalise.apply(values, norm.eps)
        update_running_statistics(norm, mean, variance, count)
        if norm.affine:
            shape = _channel_shape(values)
            weight, bias = norm.weight.to(values.dtype), norm.bias.to(values.dtype)
            normalised = normalised * weight.view(shape) + bias.view(shape)
        scaled: Tensor = normalised.to(inputs.dtype)
        return scaled


@functools.cache
def _sync_class(norm_class: type[nn.Module]) -> type[nn.Module]:
    return type(f"Sync{norm_class.__name__}", (_SyncBatchNorm, norm_class), {})


class _Normalise(torch.autograd.Function):
    """Autograd function for (x - mean) / std over the batches of all ranks; it also returns the statistics
    for running averages."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims, shape = _reduction_dims(inputs), _channel_shape(inputs)
        own_count = inputs.numel() // inputs.shape[1]
        own_mean = inputs.mean(dims)
        own_squares = (inputs - own_mean.view(shape)).square_().sum(dims)
        mean, variance, count = _global_statistics(own_mean, own_squares, own_count)
        inverse_std = torch.rsqrt(variance + eps)
        normalised = (inputs - mean.view(shape)).mul_(inverse_std.view(shape))
        ctx.save_for_backward(normalised, inverse_std, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return normalised, mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0]
        normalised, inverse_std, count = ctx.saved_tensors
        dims, shape = _reduction_dims(grad), _channel_shape(grad)
        sums = torch.stack([grad.sum(dims), (grad * normalised).sum(dims)])
        dist.all_reduce(sums)
        mean_grad, mean_product = (sums / count).unbind(0)
        # The mean and the variance depend on every input, so the gradient through both is subtracted.
        centred = grad - mean_grad.view(shape) - normalised * mean_product.view(shape)
        return centred * inverse_std.view(shape), None


def _global_statistics(mean: Tensor, squares: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Combine this rank's mean, sum of squared deviations and count with those of all other ranks; return
    the global mean (C,), biased variance (C,) and count ()."""
    local_row = torch.cat([mean, squares, mean.new_tensor([count])])
    gathered = [torch.empty_like(local_row) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, local_row)
    table = torch.stack(gathered)
    channels = len(mean)
    means, all_squares, counts = table[:, :channels], table[:, channels:-1], table[:, -1:]
    total = counts.sum()
    joint = (means * counts).sum(0) / total
    variance = (all_squares.sum(0) + ((means - joint).square() * counts).sum(0)) / total
    return joint, variance, total


def update_running_statistics(norm: Any, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Update running statistics as nn.BatchNorm does.

    The update uses the unbiased variance and the momentum; without momentum, all batches count equally.
    """
    if not norm.track_running_stats or norm.running_mean is None:
        return
    with torch.no_grad():
        share = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if share is None:
                share = 1.0 / float(norm.num_batches_tracked)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share or 0.0)
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share or 0.0)


def _reduction_dims(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.ndim) if dim != 1]


def _channel_shape(tensor: Tensor) -> list[int]:
    """Return the shape in which values (C,) broadcast against `tensor`, which is (B, C, ...)."""
    return [1, -1, *[1] * (tensor.ndim - 2)]
