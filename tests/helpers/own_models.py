"""Models as a person writes them, for configurations that name this file."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn


def tiny_conv(width: int = 8) -> nn.Module:
    """Digits (B, 1, 8, 8) -> logits (B, 10), with batch norms in a list of blocks."""
    blocks = [
        nn.Sequential(
            nn.Conv2d(1 if index == 0 else width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        for index in range(3)
    ]
    return nn.Sequential(nn.Sequential(*blocks), nn.Flatten(), nn.Linear(64 * width, 10))


def looked_up(vocabulary: int = 2000, width: int = 32) -> nn.Module:
    """Words (B, 8) -> logits (B, 4), from a table whose gradients are sparse."""
    hidden = [layer for _ in range(3) for layer in (nn.Linear(8 * width, 8 * width), nn.GELU())]
    table = nn.Embedding(vocabulary, width, sparse=True)
    return nn.Sequential(table, nn.Flatten(), *hidden, nn.Linear(8 * width, 4))


class SkippingNorms(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10): a connection over a batch norm, which only tracing can cut."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.first = nn.Linear(64, 16), nn.BatchNorm1d(16)
        self.middle, self.second = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.leave = nn.Linear(16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(self.enter(inputs.flatten(1)))
        out: Tensor = self.leave(hidden + self.second(self.middle(hidden.relu())))
        return out


def skipping_norms() -> nn.Module:
    return SkippingNorms()


class NormedRow(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10), with batch norms inside units that are found by watching."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 16), nn.Linear(16, 10)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(1))
        for layer in self.layers:
            hidden = layer(hidden).relu()
        out: Tensor = self.leave(hidden)
        return out


def normed_row() -> nn.Module:
    return NormedRow()


class Scaled(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10), with a scalar parameter, a buffer, a layer for odd steps.

    In every other forward the middle layer takes no part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.linspace(0, 1, 16), persistent=False)
        self.num_forwards = 0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(1)) + self.shift
        self.num_forwards += self.training
        if self.num_forwards % 2:
            hidden = self.middle(hidden).relu()
        out: Tensor = self.leave(hidden) * self.scale
        return out


class Positions(nn.Module):
    """Adds a plain tensor that is neither parameter nor buffer to digits (B, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.linspace(-1, 1, 64)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) + self.table


class Row(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10), by a forward that calls its modules one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 32), nn.Linear(32, 10)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(1))
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        out: Tensor = self.leave(hidden)
        return out


def row() -> nn.Module:
    """A model that does not tell its units: they are found by watching it."""
    return Row()


class BareBlock(nn.Module):
    """A pre-norm block whose attention and feed-forward lie in one module; `query_norm` stands between.

    `fixed` writes the width of all heads into the shape.
    """

    def __init__(self, query_norm: bool = False, fixed: bool = False) -> None:
        super().__init__()
        self.heads, self.fixed = 4, fixed
        self.ln1, self.ln2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.query_norm = nn.LayerNorm(32) if query_norm else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.ln1(hidden)
        layers = (self.query_norm(self.q(normed)), self.k(normed), self.v(normed))
        heads = (layer.unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in layers)
        mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2)
        hidden = hidden + self.o(mixed.reshape(*hidden.shape[:2], 32 if self.fixed else -1))
        out: Tensor = hidden + self.down(nn.functional.gelu(self.up(self.ln2(hidden))))
        return out


class BareBlocks(nn.Module):
    """Digits (B, 1, 8, 8), a row of them a token -> logits (B, 10)."""

    def __init__(self, **block: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 32), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(BareBlock(**block) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(0, 1))
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.leave(hidden.mean(1))
        return out


class ResidualOnce(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10): what enters the middle goes around it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(1))
        out: Tensor = self.leave(hidden + self.middle(hidden).relu())
        return out


def residual_once() -> nn.Module:
    return ResidualOnce()


def sparse() -> nn.Module:
    """Digits as 64 tokens of 17 kinds."""

    class Levels(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return (inputs.flatten(1) * 16).long().clamp(0, 16)

    return nn.Sequential(Levels(), nn.EmbeddingBag(17, 16, sparse=True), nn.Linear(16, 10))


def bare_blocks(**block: bool) -> nn.Module:
    return BareBlocks(**block)


def marked() -> nn.Module:
    """Its weights carry rates for an optimizer of the same author."""
    model = Row()
    for index, weight in enumerate(model.parameters()):
        weight.rate = 1 / (1 + index)  # type: ignore[attr-defined]
    return model


def tied_blocks() -> nn.Module:
    """A list of blocks of which two share a weight."""
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]
    blocks[2][0].weight = blocks[0][0].weight
    return nn.Sequential(nn.Flatten(), nn.Sequential(*blocks), nn.Linear(64, 10))


def hiding() -> nn.Module:
    """A model with weights that no state names."""
    return nn.Sequential(Positions(), nn.Linear(64, 10))


def asking() -> nn.Module:
    """A model that looks at a value while it is built."""
    layer = nn.Linear(64, 10)
    if float(layer.weight.detach().abs().max()) > 0.01:
        nn.init.normal_(layer.weight, std=0.01)
    return nn.Sequential(nn.Flatten(), layer)


def unseeded() -> nn.Module:
    """A model whose weights differ from build to build, whatever the seed."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        model[1].weight.copy_(
            torch.empty(10, 64).normal_(generator=torch.Generator().manual_seed(os.getpid()))
        )
    return model


class Shifted(nn.Module):
    """Adds a weight to the pixels, so that the first layer has a gradient to hand back as all others do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) + self.shift


def even(units: int = 8) -> nn.Module:
    """Digits (B, 1, 8, 8) -> logits (B, 64), in units of equal work: their schedule is the textbook's."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(units)]
    layers[0].insert(0, Shifted(64))
    return nn.Sequential(*layers)


def scaled() -> nn.Module:
    return Scaled()


class Scoring(nn.Module):
    """Digits and their labels -> the mean loss over them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


def scoring() -> nn.Module:
    return Scoring()


class Skipping(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10); what enters is carried past all layers, so that only a trace can
    cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 32), nn.Linear(64, 10)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        entered = self.enter(inputs.flatten(1))
        hidden = entered
        for layer in self.layers:
            hidden = layer(hidden).relu()
        out: Tensor = self.leave(torch.cat([hidden, entered], 1))
        return out


def skipping() -> nn.Module:
    return Skipping()


class Amax(nn.Module):
    """A linear layer (B, 64) -> (B, 64) over the largest output of late, which it keeps as extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.amax_state: dict[str, Any] = {"amax": torch.ones(()), "history": (), "calls": 0}

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.layer(inputs)
        if self.training:
            self.amax_state["calls"] += 1
            self.amax_state["history"] = (*self.amax_state["history"], float(outputs.detach().abs().max()))[
                -3:
            ]
            self.amax_state["amax"] = torch.tensor(max(self.amax_state["history"]))
        out: Tensor = outputs / self.amax_state["amax"]
        return out

    def get_extra_state(self) -> Any:
        return self.amax_state

    def set_extra_state(self, state: Any) -> None:
        self.amax_state = state


def amax() -> nn.Module:
    """Digits (B, 1, 8, 8) -> logits (B, 10), with two units that have extra state, in different stages."""
    units = [nn.Sequential(Amax(), nn.ReLU()) for _ in range(2)]
    return nn.Sequential(nn.Sequential(nn.Flatten(), *units), nn.Sequential(nn.Linear(64, 10)))


class Drifting(nn.Module):
    """Digits (B, 64) without their running mean, a buffer that is not persistent, nor their first scale, a
    plain tensor; a plain flag says that there is one. Every second forward is doubled, and the last but one
    sum added. `mask` never changes, and `last` is read by nobody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64), persistent=False)
        self.register_buffer("mask", torch.ones(64), persistent=False)
        self.scale, self.has_scale, self.calls = torch.ones(()), False, 0
        self.largest: deque[float] = deque(maxlen=2)
        self.last = torch.zeros(())

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            if not self.has_scale:
                self.scale, self.has_scale = inputs.max().reshape(()), True
            self.mean.lerp_(inputs.mean(0), 0.1)
            self.calls += 1
            self.largest.append(float(inputs.sum()))
        self.last = inputs.new_zeros(600, 600)  # to be looked at, and too large to be state
        return (inputs - self.mean) * self.mask / self.scale * (1 + self.calls % 2) + self.largest[0] / 1e4


def drifting() -> nn.Module:
    return nn.Sequential(nn.Flatten(), Drifting(), nn.Linear(64, 10))


def secretive() -> nn.Module:
    """A model whose extra state no file can hold."""
    model = amax()
    next(module for module in model.modules() if isinstance(module, Amax)).amax_state["who"] = object()
    return model


class Strided(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10): weights that do not lie in the order of their dims."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.layers = nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 32))
        nn.init.orthogonal_(self.layers[0].weight)  # of more columns than rows: transposed
        self.turned = nn.Parameter(torch.randn(10, 32).mul_(0.1).t())
        self.register_buffer("scale", torch.ones(1).expand(10))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layers(self.conv(inputs).relu().flatten(1)).relu()
        out: Tensor = (hidden @ self.turned) * self.scale
        return out


class Spectral(nn.Module):
    """Digits (B, 1, 8, 8) -> logits (B, 10), through a filter of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 16), nn.Linear(16, 10)
        self.filter = nn.Parameter(torch.randn(9, dtype=torch.complex64))
        self.register_buffer("phase", torch.polar(torch.ones(9), torch.linspace(0, 1, 9)))

    def forward(self, inputs: Tensor) -> Tensor:
        waves = torch.fft.rfft(self.enter(inputs.flatten(1))) * self.filter * self.phase
        out: Tensor = self.leave(torch.fft.irfft(waves, n=16).relu())
        return out
