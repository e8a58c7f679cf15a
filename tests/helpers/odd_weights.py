"""Models over digits (B, 1, 8, 8) -> logits (B, 10) whose weights are unlike others: of another dtype, used
by some samples only, marked, hooked, or read outside of the block that owns them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Chain(nn.Module):
    """Two blocks between an entry and a head; `own` adds what a case is about."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 16), nn.Linear(16, 10)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2))

    def between(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(1))
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.leave(self.between(hidden))
        return out


def never_used() -> nn.Module:
    """Holds weights that no step uses: one in a block, one at the root."""
    model = Chain()
    model.blocks[0].register_parameter("spare", nn.Parameter(torch.ones(16, 3)))
    model.spare = nn.Linear(4, 4)
    return model


class Experts(Chain):
    """One expert per batch, by what the batch holds: ranks use different ones, and none uses the last. They
    are of one size, so that nothing but the values shows a mistake."""

    def __init__(self, has_scales: bool = False) -> None:
        super().__init__()
        self.experts = nn.Module()
        for index in range(4):
            self.experts.add_module(str(index), nn.Linear(16, 16))
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(1.5)) for _ in range(4 if has_scales else 0))

    def between(self, hidden: Tensor) -> Tensor:
        outputs = []
        for sample in hidden:  # each by its own, so that one device does the same
            index = int(sample.detach().abs().sum() * 64) % 3
            chosen = sample + self.experts.get_submodule(str(index))(sample)
            outputs.append(chosen * self.scales[index] if len(self.scales) else chosen)
        return torch.stack(outputs)


def experts(has_scales: bool = False) -> nn.Module:
    return Experts(has_scales)


class SkippingBlocks(Chain):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(1))
        first = int(inputs.detach().sum() * 16) % 2
        out: Tensor = self.leave(self.blocks[first](hidden))
        return out


def skipping_blocks() -> nn.Module:
    """Each batch passes one block of two."""
    return SkippingBlocks()


class Mixing(Chain):
    """Some weights are complex, some fp64, some lie in memory in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.rotation = nn.Parameter(torch.polar(torch.ones(16), torch.linspace(0, 1, 16)))
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 16, dtype=torch.float64))
        self.enter.weight = nn.Parameter(self.enter.weight.detach().t().contiguous().t())
        for block in self.blocks:
            block.register_parameter("gain", nn.Parameter(torch.ones(16, dtype=torch.float64)))

    def between(self, hidden: Tensor) -> Tensor:
        rotated = torch.view_as_real(hidden * self.rotation).sum(-1)
        for block in self.blocks:
            rotated = rotated * block.gain.float() if isinstance(block.gain, nn.Parameter) else rotated
        return rotated * self.gain.float()


def mixing() -> nn.Module:
    return Mixing()


class Reaching(Chain):
    """Reads weights of blocks outside of their forwards, and calls a block by another method."""

    def between(self, hidden: Tensor) -> Tensor:
        tied = nn.functional.linear(hidden, self.blocks[0][0].weight)
        out: Tensor = tied + self.blocks[1][0].weight.t().mean(1)
        return out


def reaching() -> nn.Module:
    return Reaching()


def old_weight_norm() -> nn.Module:
    model = Chain()
    norm: Callable[..., Any] = nn.utils.weight_norm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for layer in (model.enter, *(block[0] for block in model.blocks)):
            norm(layer)
    return model


def marked() -> nn.Module:
    """Says by attributes which weights are not to decay, and reads one of them in its forward."""
    model = MarkedChain()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight._no_weight_decay = True  # type: ignore[attr-defined]
    model.blocks[0][0].weight.gain = 2.0
    return model


class MarkedChain(Chain):
    def between(self, hidden: Tensor) -> Tensor:
        gain: Any = getattr(self.blocks[0][0].weight, "gain", 1.0)
        return hidden * gain


def hooked(kind: str = "mask") -> nn.Module:
    """Its gradients are changed by hooks."""
    model = Chain()
    mask = (torch.arange(16)[:, None] % 3 > 0).double().expand(16, 16).contiguous()
    for block in model.blocks:
        weight = block[0].weight
        if kind == "mask":
            weight.register_hook(lambda gradient: gradient * mask.to(gradient.dtype))
        elif kind == "halved-after":
            weight.register_post_accumulate_grad_hook(_halve)
        elif kind == "clamp":
            weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        elif kind == "stepping":
            weight.register_post_accumulate_grad_hook(_step)
    return model


def _halve(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad.mul_(0.5)


def _step(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.data.sub_(weight.grad, alpha=0.01)
    weight.grad = None
