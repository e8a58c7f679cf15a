"""Small transformers and chains with one operation between the layers that tensor would split, for
configurations that name this file. Digits (B, 1, 8, 8), a row of them a token -> logits (B, 10)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 32, 4


def _top(hidden: Tensor) -> Tensor:
    return hidden * (hidden >= hidden.topk(8, dim=-1).values[..., -1:])


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": F.gelu,
    "norm": lambda hidden: hidden / hidden.norm(dim=-1, keepdim=True),
    "l2": lambda hidden: F.normalize(hidden, dim=-1),
    "top-k": _top,
    "maximum": lambda hidden: hidden / hidden.amax(-1, keepdim=True).clamp(min=0.1),
    "mean": lambda hidden: hidden - hidden.mean(-1, keepdim=True),
    "softmax": lambda hidden: hidden.softmax(-1),
    "cumsum": lambda hidden: hidden.cumsum(-1) / WIDTH,
    "sort": lambda hidden: hidden.sort(dim=-1).values,
    "deviation": lambda hidden: hidden / hidden.std(-1, keepdim=True),
}
"""What stands between the columns and the row of a feed-forward."""


def _alibi(attention: Attention, scores: Tensor) -> Tensor:
    slopes = 2.0 ** (-8.0 / attention.n_heads * torch.arange(1, attention.n_heads + 1))
    distance = torch.arange(scores.shape[-1])
    distance = (distance[None, :] - distance[:, None]).abs()
    return scores - slopes.to(scores).view(-1, 1, 1) * distance.to(scores)


class Attention(nn.Module):
    """`kind`: "plain", "alibi", "heads" (scores less their mean over heads) or "query" (l2 of all heads)."""

    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        self.kind, self.n_heads = kind, HEADS
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        query = self.q_proj(hidden)
        if self.kind == "query":
            query = F.normalize(query, dim=-1) * 8
        query, key, value = (
            layer.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (query, self.k_proj(hidden), self.v_proj(hidden))
        )
        scores = query @ key.transpose(-1, -2) / 8**0.5
        if self.kind == "alibi":
            scores = _alibi(self, scores)
        if self.kind == "heads":
            scores = scores - scores.mean(1, keepdim=True)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        out: Tensor = self.out(mixed)
        return out


class Block(nn.Module):
    def __init__(self, attention: str, between: str) -> None:
        super().__init__()
        self.between = between
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(attention)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.ln1(hidden))
        out: Tensor = hidden + self.down(BETWEEN[self.between](self.up(self.ln2(hidden))))
        return out


class Transformer(nn.Module):
    def __init__(self, attention: str = "plain", between: str = "plain", blocks: int = 2) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(Block(attention, between) for _ in range(blocks))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(0, 1))
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.leave(hidden.mean(1))
        return out


class Chain(nn.Module):
    """Two linear layers that the model tells in order, and what its code does between them."""

    def __init__(self, between: str = "plain", has_units: bool = True) -> None:
        super().__init__()
        self.between = between
        self.first, self.second = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)
        if has_units:
            self.pipeline_units = lambda: [("first", self.first), ("second", self.second)]

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.second(BETWEEN[self.between](self.first(inputs.flatten(1))))
        return out


class TiedByFunction(nn.Module):
    """Tokens (B, T) -> logits (B, T, 64): the table is the output layer as well, by a function alone."""

    def __init__(self, used: bool = True) -> None:
        super().__init__()
        self.used = used
        self.token = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block("plain", "plain") for _ in range(2))
        self.head = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.token(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = (
            F.linear(hidden, self.token.weight) + self.head(hidden) if self.used else self.head(hidden)
        )
        return out


def weight_normed(everywhere: bool = False) -> nn.Module:
    """The first feed-forward, or all layers, with a weight that a hook computes before each forward."""
    model = Transformer()
    for block in list(model.blocks) if everywhere else [model.blocks[0]]:
        layers = [block.up, block.down]
        if everywhere:
            layers += [layer for layer in block.attention.children() if isinstance(layer, nn.Linear)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            for layer in layers:
                nn.utils.weight_norm(layer)
    return model


def parametrized() -> nn.Module:
    model = Transformer()
    nn.utils.parametrizations.weight_norm(model.blocks[0].up)
    nn.utils.parametrizations.orthogonal(model.blocks[1].attention.q_proj)
    return model
