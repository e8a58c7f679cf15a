"""Norms of all kinds, over features and over samples, with running statistics and without, frozen too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.models.plain import WIDTH, layers
from tests.zoo.registry import model


def _mlp_with_norm(norm: type[nn.Module], **options: object) -> nn.Module:
    made: list[nn.Module] = []
    for index in range(5):
        made += [nn.Linear(WIDTH if index else FEATURES, WIDTH), norm(WIDTH, **options), nn.GELU()]
    return nn.Sequential(*made, nn.Linear(WIDTH, CLASSES))


@model("classes")
def layer_norms() -> nn.Module:
    return _mlp_with_norm(nn.LayerNorm)


@model("classes")
def rms_norms() -> nn.Module:
    return _mlp_with_norm(nn.RMSNorm)


@model("classes")
def batch_norms() -> nn.Module:
    return _mlp_with_norm(nn.BatchNorm1d)


@model("classes")
def batch_norms_of_all_time() -> nn.Module:
    """Running statistics are means of all batches so far."""
    return _mlp_with_norm(nn.BatchNorm1d, momentum=None)


@model("classes")
def batch_norms_without_statistics() -> nn.Module:
    return _mlp_with_norm(nn.BatchNorm1d, track_running_stats=False)


@model("classes", accumulate=2)
def batch_norms_in_parts() -> nn.Module:
    return _mlp_with_norm(nn.BatchNorm1d)


class KeptInEval(nn.Sequential):
    """Batch norms that use the statistics of an earlier training, whatever mode the rest is in."""

    def train(self, mode: bool = True) -> KeptInEval:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


@model("classes")
def frozen_batch_norms() -> nn.Module:
    made = KeptInEval(*_mlp_with_norm(nn.BatchNorm1d))
    for module in made:
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            module.requires_grad_(False)
    return made


class OfBuffers(nn.Module):
    """A batch norm that is four buffers, as detection models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.rand(width) + 0.5)
        self.register_buffer("bias", torch.rand(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight + self.bias


@model("classes")
def norms_of_buffers() -> nn.Module:
    return _mlp_with_norm(OfBuffers)


class RowOfNorms(nn.Module):
    """A row of blocks in a list, as most people write it, with batch norms inside."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()) for _ in range(6)
        )
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.leave(hidden)


@model("classes")
def row_with_batch_norms() -> nn.Module:
    return RowOfNorms()


@model("classes")
def spectral_norms() -> nn.Module:
    """The old kind, whose iteration goes on in each forward."""
    return nn.Sequential(*(spectral_norm(one) if isinstance(one, nn.Linear) else one for one in layers(5)))


@model("classes")
def spectral_parametrization() -> nn.Module:
    return nn.Sequential(
        *(parametrizations.spectral_norm(one) if isinstance(one, nn.Linear) else one for one in layers(5))
    )


@model("classes")
def weight_norms() -> nn.Module:
    """The old kind, by a hook before each forward."""
    return nn.Sequential(*(weight_norm(one) if isinstance(one, nn.Linear) else one for one in layers(5)))


@model("classes")
def weight_norm_parametrization() -> nn.Module:
    return nn.Sequential(
        *(parametrizations.weight_norm(one) if isinstance(one, nn.Linear) else one for one in layers(5))
    )


@model("classes")
def orthogonal_parametrization() -> nn.Module:
    return nn.Sequential(
        *(
            parametrizations.orthogonal(one)
            if isinstance(one, nn.Linear) and one.in_features == WIDTH == one.out_features
            else one
            for one in layers(5)
        )
    )


class Centred(nn.Module):
    """Subtracts the mean of the batch, with a running one for later."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.net = nn.Linear(FEATURES, WIDTH), nn.Sequential(*layers(4, first=WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        if self.training:
            now = hidden.mean(0)
            self.mean = (0.9 * self.mean + 0.1 * now).detach()
            hidden = hidden - now
        else:
            hidden = hidden - self.mean
        return self.net(hidden)


@model("classes")
def centred_by_the_batch() -> nn.Module:
    return Centred()


class Whitened(nn.Module):
    """Features of a batch are made unlike each other: no module says that it looks over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.net = nn.Linear(FEATURES, 6), nn.Sequential(*layers(4, first=6))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        hidden = hidden - hidden.mean(0)
        spread = hidden.T @ hidden / len(hidden) + torch.eye(6, dtype=hidden.dtype)
        return self.net(torch.linalg.solve(spread, hidden.T).T)


@model("classes")
def whitened_by_the_batch() -> nn.Module:
    return Whitened()


@model("images")
def group_norm_conv() -> nn.Module:
    return _conv_with_norm(lambda: nn.GroupNorm(4, 8))


@model("images")
def instance_norm_conv() -> nn.Module:
    return _conv_with_norm(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True))


@model("images")
def batch_norm_conv() -> nn.Module:
    return _conv_with_norm(lambda: nn.BatchNorm2d(8))


def _conv_with_norm(norm: object) -> nn.Module:
    made: list[nn.Module] = []
    for index in range(4):
        made += [nn.Conv2d(8 if index else 2, 8, 3, padding=1, bias=False), norm(), nn.ReLU()]  # type: ignore[operator]
    return nn.Sequential(*made, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))


class Standardised(nn.Linear):
    """Weights of mean 0 and variance 1, made anew in each forward."""

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(inputs, weight / (weight.std(1, keepdim=True) + 1e-5), self.bias)


@model("classes")
def weight_standardisation() -> nn.Module:
    rows: list[nn.Module] = [nn.Linear(FEATURES, WIDTH), nn.ReLU()]
    for _ in range(3):
        rows += [Standardised(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*rows, nn.Linear(WIDTH, CLASSES))
