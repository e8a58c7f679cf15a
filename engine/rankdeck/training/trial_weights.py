"""Make tensors like the run's weights, and gradients for these tensors, to test an optimizer (see
preflight_checks.py).

The tensors represent all weights of the model in the model's order, including those of other ranks. The
tensors for this rank's weights are sharded like the weights in the rank's module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.parallel.collectives.broadcast import run_on_rank_0
from rankdeck.torch_compat.dtensors import is_dtensor, local_part
from rankdeck.torch_compat.fake_tensors import active_fake_mode
from rankdeck.torch_compat.modules import parameter_names
from rankdeck.torch_compat.weight_metadata import WeightMetadata, weight_metadata

_MAX_ELEMENTS, _MAX_SIDE = 2**20, 192
"""Maximum total number of elements of the trial weights that keep their full size, and maximum side length of
all other trial weights.

Optimizers often treat matrices with sides of 128 and more differently from smaller matrices.
"""
_MAX_WEIGHTS = 64
"""Above this number of weights, only the first and the last weight of each kind are tried."""
_SPIKE_FACTOR = 30.0
"""Norm of a spike (see `draw_gradients`), as a multiple of the norm of a step's gradients."""
_TOLERANCE, _FP64_TOLERANCE = 1e-4, 1e-7
"""Tolerances relative to how far the steps move a weight: far larger than rounding errors, except those of
16-bit arithmetic."""


@dataclass(frozen=True)
class WeightInfo:
    """A weight before sharding. It has several names if it is tied."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_trained: bool
    is_sparse: bool
    metadata: WeightMetadata
    mean: float = 0.0
    std: float = 1.0

    def kind(self) -> tuple[Any, ...]:
        attributes = tuple((name, str(value)[:40]) for name, value in self.metadata.attributes.items())
        return self.shape, self.dtype, self.is_trained, self.is_sparse, attributes


@dataclass(frozen=True)
class ModelWeights:
    """The weights of a whole model, in the model's order."""

    weights: tuple[WeightInfo, ...] = ()

    @property
    def has_sparse(self) -> bool:
        return any(weight.is_sparse for weight in self.weights)

    def broadcast_statistics(self) -> ModelWeights:
        """Return a copy with rank 0's means and standard deviations; rank 0 may be the only rank whose
        weights have values. All ranks must call this."""
        shared = run_on_rank_0(lambda: [(weight.mean, weight.std) for weight in self.weights])
        pairs = zip(self.weights, shared or (), strict=True)
        return ModelWeights(tuple(replace(weight, mean=mean, std=std) for weight, (mean, std) in pairs))


def describe_weights(model: nn.Module) -> ModelWeights:
    """Describe the weights of an unsharded model."""
    sparse = {module.weight for module in model.modules() if is_sparse(module)}
    infos = []
    for weight, names in parameter_names(model).items():
        trained, size = weight.requires_grad, _mean_and_std(weight)
        info = WeightInfo(
            tuple(names),
            tuple(weight.shape),
            weight.dtype,
            trained,
            weight in sparse,
            weight_metadata(weight),
            *size,
        )
        infos.append(info)
    return ModelWeights(tuple(infos))


def is_sparse(module: nn.Module) -> bool:
    """Check whether a module is an embedding with sparse gradients.

    An embedding without its weight does not count: a pipeline stage keeps other stages' modules without
    weights.
    """
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or not module.sparse:
        return False
    weight: Tensor | None = module.weight
    return weight is not None and weight.requires_grad


def _mean_and_std(weight: Tensor) -> tuple[float, float]:
    """Return the mean and the standard deviation of a weight; 0 and 1 if it has no values."""
    if (
        weight.is_meta
        or active_fake_mode() is not None
        or not weight.is_floating_point()
        or not weight.numel()
    ):
        return 0.0, 1.0
    values = weight.detach().flatten()[:_MAX_ELEMENTS].double()
    return float(values.mean()), float(values.std(correction=0))


def make_trial_weights(
    layout: ModelWeights, module: nn.Module, dtype: torch.dtype, *, thorough: bool
) -> list[TrialWeight]:
    """Make a trial weight for each weight of the layout, sharded as in `module`.

    In a plan, with more than `_MAX_WEIGHTS` weights, or if `thorough` is False, use only the first and the
    last weight of each kind. If `dtype` is fp64, all floating-point trial weights are fp64.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    by_kind: dict[tuple[Any, ...], list[WeightInfo]] = {}
    for info in layout.weights:
        by_kind.setdefault(info.kind(), []).append(info)
    infos = list(layout.weights)
    if not thorough or len(infos) > _MAX_WEIGHTS or active_fake_mode() is not None:
        ends = [info.names for same in by_kind.values() for info in (same[0], same[-1])]
        infos = [info for info in infos if info.names in ends]
    # Keep full sizes as far as possible: Muon on shards differs by 5e-4 for tall and wide matrices of 32 rows
    # and more, but not for square ones of 8.
    left = _MAX_ELEMENTS if thorough else 0
    device = next(module.parameters()).device
    trial_weights = []
    for index, info in enumerate(infos):
        weight = next((parameters[name] for name in info.names if parameters.get(name) is not None), None)
        is_whole = math.prod(info.shape) <= left
        left -= math.prod(info.shape) if is_whole else 0
        num_shards = weight.device_mesh.size() if weight is not None and is_dtensor(weight) else 1
        max_side = num_shards * math.ceil(_MAX_SIDE / num_shards)
        shape = info.shape if is_whole else tuple(min(size, max_side) for size in info.shape)
        if dtype == torch.float64 and info.dtype.is_floating_point:
            info = replace(info, dtype=dtype)
        trial_weights.append(TrialWeight(index, info, shape, weight, device))
    return trial_weights


def draw_gradients(wholes: Sequence[TrialWeight], step: int, steps: int) -> list[Tensor | None]:
    """Draw the gradients of all weights for one step; None for a weight that is not trained.

    Every step's gradients contain rows of zeros. Two steps add a spike, a row of far larger gradients: one in
    the first row of the first weight at the middle step, the other in the last row of the last weight at the
    next-to-last step.
    """
    gradients = [
        trial_weight.draw_normal(step + 1) * trial_weight.gradient_scale if trial_weight.is_trained else None
        for trial_weight in wholes
    ]
    for gradient in gradients:
        if gradient is not None and gradient.ndim and len(gradient) > 2:
            gradient[step % 3 :: 3] = 0
    there = [gradient for gradient in gradients if gradient is not None]
    spiked = {steps // 2: (0, 0), steps - 2: (-1, -1)}.get(step)
    if spiked is not None and there:
        norm = math.sqrt(sum(float(local_part(g).abs().double().square().sum()) for g in there))
        weight, row = spiked
        target = there[weight][row] if there[weight].ndim else there[weight]
        target.fill_(_SPIKE_FACTOR * norm / math.sqrt(max(target.numel(), 1)))
    return gradients


class TrialWeight:
    """A tensor like one of the model's weights, available in full and as this rank's shard."""

    def __init__(
        self,
        index: int,
        info: WeightInfo,
        shape: tuple[int, ...],
        weight: nn.Parameter | None,
        device: torch.device,
    ) -> None:
        self.index, self._info, self._shape, self._weight = index, info, shape, weight
        self._device = device
        self.is_local, self.is_trained = weight is not None, info.is_trained
        self.gradient_scale = 10.0 ** -(2 + index % 3)
        self.initial = self.draw_normal(0) * info.std + info.mean

    @property
    def is_sharded(self) -> bool:
        return is_dtensor(self._weight)

    def draw_normal(self, seed: int) -> Tensor:
        """Draw normally distributed numbers, the same on all ranks."""
        # On the CPU in fp64, so that all ranks and devices get the same numbers.
        generator = torch.Generator().manual_seed(1000 * self.index + seed)
        dtype = torch.complex128 if self._info.dtype.is_complex else torch.float64
        return torch.randn(self._shape, generator=generator, dtype=dtype).to(self._device, self._info.dtype)

    def full_parameter(self) -> nn.Parameter:
        """Return the unsharded parameter, with the attributes that the user has set on the weight, because a
        user's optimizer may read them."""
        parameter = nn.Parameter(self.initial.clone(), requires_grad=self.is_trained)
        WeightMetadata(self._info.metadata.attributes).copy_to(parameter)
        return parameter

    def local_parameter(self) -> nn.Parameter:
        """Return this rank's shard as a parameter."""
        parameter = nn.Parameter(self._shard(self.initial).clone(), requires_grad=self.is_trained)
        if self._weight is not None:  # its own attributes, so that lost ones are noticed
            WeightMetadata(weight_metadata(self._weight).attributes).copy_to(parameter)
        return parameter

    def _shard(self, tensor: Tensor) -> Tensor:
        weight = self._weight
        if weight is None or not is_dtensor(weight):
            return tensor
        from torch.distributed.tensor import distribute_tensor

        # Every rank has the whole tensor, so that None saves the communication.
        return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)

    def gradient(self, full_gradient: Tensor | None, like: Tensor) -> Tensor | None:
        """Return `full_gradient` in this weight's form: sharded if `like` is sharded, otherwise sparse if the
        weight has sparse gradients."""
        if full_gradient is None or is_dtensor(like):
            return None if full_gradient is None else self._shard(full_gradient)
        return full_gradient.to_sparse(1) if self._info.is_sparse else full_gradient

    def local_differs(self, stepped: Tensor, expected: Tensor, path: Tensor) -> bool:
        """Check whether `stepped`, this rank's shard after the steps, differs from the same shard of the full
        weight `expected`; `path` is the distance that each element of the full weight moved."""
        cut = [local_part(self._shard(tensor)) for tensor in (expected, path, self.initial)]
        return _values_differ(local_part(stepped), *cut)

    def full_differs(self, stepped: Tensor, expected: Tensor, path: Tensor) -> bool:
        """Check whether the full weight `stepped` differs from `expected`; `path` is as in
        `local_differs`."""
        return _values_differ(stepped, expected, path, self.initial)


def _values_differ(ours: Tensor, theirs: Tensor, path: Tensor, first: Tensor) -> bool:
    """Check whether `ours` differs from `theirs`. `first` contains the initial values, `path` the distance
    that each element moved. Elements are compared one by one, so that a spike in one element does not hide a
    difference in another element. NaN equals NaN."""
    if not ours.numel():
        return False
    info = torch.finfo(ours.dtype)
    same = _FP64_TOLERANCE if info.bits == torch.finfo(torch.float64).bits else _TOLERANCE
    bound = same * path + 16 * info.eps * (first.abs() + path)
    is_same = ((ours - theirs).abs() <= bound) | (ours.isnan() & theirs.isnan()) | (ours == theirs)
    return not bool(is_same.all())
