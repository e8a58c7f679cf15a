"""Models that use something past their layers, in training or in both modes. Digits (B, 1, 8, 8) -> logits
(B, 10). A start at zero hides what a cut takes away.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 16


class Row(nn.Module):
    """Layers one after another; the others below change what is around them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(64, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.leave = nn.Linear(WIDTH, 10)
        self.add()

    def add(self) -> None:
        pass

    def between(self, hidden: Tensor, index: int) -> Tensor:
        return hidden.tanh()

    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(hidden)

    def forward(self, pixels: Tensor) -> Any:
        entered = hidden = self.enter(pixels.flatten(1)).tanh()
        for index, layer in enumerate(self.layers):
            hidden = self.between(layer(hidden), index)
        return self.end(hidden, entered)


class TiedByFunction(Row):
    def add(self) -> None:
        self.leave = nn.Linear(64, 10)

    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(F.linear(hidden, self.enter.weight.t()))


class LateTemperature(Row):
    def add(self) -> None:
        self.temperature, self.bias = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(10))

    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(hidden) * self.temperature.exp() + self.bias


class Prompts(Row):
    def add(self) -> None:
        self.prompts = nn.Parameter(torch.zeros(4, WIDTH))

    def between(self, hidden: Tensor, index: int) -> Tensor:
        return (hidden + self.prompts[index]).tanh()


class GatedSkip(Row):
    def add(self) -> None:
        self.gate = nn.Parameter(torch.zeros(()))

    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(hidden + self.gate * entered)


class GatedByBuffer(Row):
    def add(self) -> None:
        self.register_buffer("gate", torch.zeros(()))

    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(hidden + self.gate * entered)


class SkipInTraining(Row):
    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(hidden + entered if self.training else hidden)


class DetachedSkip(Row):
    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(hidden + entered.detach())


class DetachedInTraining(Row):
    """What is before the second layer gets no gradient at all."""

    def between(self, hidden: Tensor, index: int) -> Tensor:
        return hidden.detach().tanh() if index == 1 and self.training else hidden.tanh()


class StraightThrough(Row):
    def between(self, hidden: Tensor, index: int) -> Tensor:
        hidden = hidden.tanh()
        return hidden + (hidden.round() - hidden).detach() if index == 1 else hidden


class Balanced(Row):
    """A term of every layer, kept in an attribute until the end."""

    def add(self) -> None:
        self.terms: list[Tensor] = []

    def between(self, hidden: Tensor, index: int) -> Tensor:
        self.terms = [*(self.terms if index else []), hidden.square().mean()]
        return hidden.tanh()

    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        return self.leave(hidden) * (1 + sum(self.terms))


class Counting(Row):
    """A count in a buffer, one in an attribute, and a running mean of what is in the middle."""

    def add(self) -> None:
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls = 0

    def between(self, hidden: Tensor, index: int) -> Tensor:
        hidden = hidden.tanh()
        if index == 2 and self.training:
            self.mean.lerp_(hidden.detach().mean(0), 0.1)
        return hidden - self.mean if index == 2 else hidden

    def forward(self, pixels: Tensor) -> Any:
        if self.training:
            self.count += 1
            self.calls += 1
        return super().forward(pixels) / (1 + 0.1 * self.count[0] + 0.1 * self.calls)


class Norms(Row):
    """Norms above the units, and one that starts from its first batch."""

    def add(self) -> None:
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(4))
        self.shift = nn.Parameter(torch.zeros(10))
        self.register_buffer("is_ready", torch.zeros((), dtype=torch.bool))

    def between(self, hidden: Tensor, index: int) -> Tensor:
        normed: Tensor = self.norms[index](hidden)
        return normed.tanh()

    def end(self, hidden: Tensor, entered: Tensor) -> Any:
        logits = self.leave(hidden)
        if self.training and not self.is_ready:
            self.shift.data.copy_(-logits.detach().mean(0))
            self.is_ready.fill_(True)
        return logits + self.shift


class Unused(Row):
    """Weights without a gradient: of the model, of a layer, and one that two layers share."""

    def add(self) -> None:
        self.never = nn.Parameter(torch.ones(3))
        self.idle = nn.Linear(WIDTH, WIDTH)
        self.layers[1].never = self.layers[3].never = nn.Parameter(torch.ones(5))


class Frozen(Row):
    def add(self) -> None:
        self.enter.requires_grad_(False)
        self.layers.requires_grad_(False)


class Branching(Row):
    """Another layer for every batch after the first ones."""

    def add(self) -> None:
        self.other, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, pixels: Tensor) -> Any:
        self.calls += self.training
        entered = hidden = self.enter(pixels.flatten(1)).tanh()
        for index, layer in enumerate(self.layers):
            hidden = (self.other if index == 2 and self.calls > 2 else layer)(hidden).tanh()
        return self.end(hidden, entered)


def _module(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


def shared_activation() -> nn.Module:
    same = nn.Tanh()
    return _module(nn.Linear(64, 16), same, nn.Linear(16, 16), same, nn.Linear(16, 10))


def in_place() -> nn.Module:
    layers = [[nn.Linear(size, 16), nn.ReLU(inplace=True)] for size in (64, 16, 16)]
    return _module(*[module for pair in layers for module in pair], nn.Linear(16, 10))


def old_spectral_norm() -> nn.Module:
    row = Row()
    for layer in row.layers:
        nn.utils.spectral_norm(layer)
    return row


tied_by_function, late_temperature, prompts, norms = TiedByFunction, LateTemperature, Prompts, Norms
gated_skip, gated_by_buffer, skip_in_training = GatedSkip, GatedByBuffer, SkipInTraining
unused, frozen, counting, branching = Unused, Frozen, Counting, Branching
detached_in_training, balanced = DetachedInTraining, Balanced
