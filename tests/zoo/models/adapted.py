"""Large models made to fit: low-rank changes, adapters, prompts, quantised and pruned weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.models.language import WIDTH as WORD_WIDTH
from tests.zoo.models.language import Decoder
from tests.zoo.models.plain import WIDTH, layers
from tests.zoo.registry import ADAMW, model


class LowRank(nn.Module):
    """A frozen layer with a change of rank 2, which starts at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, layer.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + inputs @ self.down.T @ self.up.T


def _replace_layers(root: nn.Module, made: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    for module in list(root.modules()):
        for name, child in list(module.named_children()):
            if name in names:
                setattr(module, name, made(child))
    return root


@model("tokens", optimizer=ADAMW)
def lora() -> nn.Module:
    return _replace_layers(Decoder().requires_grad_(False), LowRank, ("q_proj", "v_proj"))


@model("tokens")
def lora_everywhere() -> nn.Module:
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    return _replace_layers(Decoder(), LowRank, names)


class Merged(nn.Linear):
    """The change is added to the weight itself in each forward."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, layer.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight + self.up @ self.down, self.bias)


@model("tokens")
def lora_merged() -> nn.Module:
    return _replace_layers(Decoder(), Merged, ("up_proj", "down_proj"))


class Adapted(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(WORD_WIDTH, 4), nn.GELU(), nn.Linear(4, WORD_WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.layer(hidden)
        return hidden + self.adapter(hidden)


@model("tokens")
def adapters() -> nn.Module:
    return _replace_layers(Decoder(), Adapted, ("feed_forward",))


@model("tokens")
def biases_only() -> nn.Module:
    made = Decoder()
    for name, weight in made.named_parameters():
        weight.requires_grad_(name.endswith("bias"))
    return made


class Prompted(Decoder):
    """Words of its own before each sentence, all zero at the start; the rest is frozen."""

    def __init__(self) -> None:
        super().__init__(places=False)
        self.requires_grad_(False)
        self.prompt = nn.Parameter(torch.zeros(2, WORD_WIDTH))

    def forward(self, words: Tensor) -> Tensor:
        hidden = torch.cat([self.prompt.expand(len(words), -1, -1), self.embed(words)], 1)
        for block in self.blocks:
            hidden = block(hidden)
        return self.logits(self.norm(hidden))[:, 2:]


@model("tokens")
def soft_prompt() -> nn.Module:
    return Prompted()


class Rounded(nn.Linear):
    """Weights and inputs of few values in the forward, as if they were not rounded in the backward; `tracks`:
    with the largest input so far."""

    def __init__(self, inputs: int, outputs: int, *, tracks: bool = False) -> None:
        super().__init__(inputs, outputs)
        self.tracks = tracks
        if tracks:
            self.register_buffer("largest", torch.tensor(0.0))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.tracks:
            if self.training:
                self.largest.copy_(torch.maximum(self.largest, inputs.detach().abs().amax()))
            inputs = _round(inputs, self.largest / 8)
        return F.linear(inputs, _round(self.weight, self.weight.detach().abs().amax() / 8), self.bias)


def _round(value: Tensor, step: Tensor) -> Tensor:
    return value + ((value / step).round() * step - value).detach()


def _stack_rounded(*, tracks: bool) -> nn.Module:
    made: list[nn.Module] = []
    for index in range(4):
        made += [Rounded(WIDTH if index else FEATURES, WIDTH, tracks=tracks), nn.Tanh()]
    return nn.Sequential(*made, nn.Linear(WIDTH, CLASSES))


@model("classes")
def quantisation_aware() -> nn.Module:
    return _stack_rounded(tracks=False)


@model("classes")
def quantisation_aware_with_range() -> nn.Module:
    return _stack_rounded(tracks=True)


class Binary(nn.Module):
    """Signs in training, a smooth function in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            nn.Linear(FEATURES, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.three(self._sign(self.two(self._sign(self.one(inputs)))))

    def _sign(self, value: Tensor) -> Tensor:
        soft = value.tanh()
        return soft + (value.sign() - soft).detach() if self.training else soft


@model("classes")
def straight_through_signs() -> nn.Module:
    return Binary()


@model("classes")
def pruned() -> nn.Module:
    made = nn.Sequential(*layers(5))
    for index in (0, 2, 4):
        prune.l1_unstructured(made[index], "weight", 0.4)
    return made
