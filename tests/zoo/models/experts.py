"""Mixtures of experts: who goes where, with a balance that is returned, kept in an attribute or learnt."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import IGNORE_INDEX, WORDS
from tests.zoo.models.language import WIDTH, Attention, Decoder, FeedForward
from tests.zoo.registry import ADAMW, model


class Experts(nn.Module):
    """Each word goes to the best `top` of four; `capacity` of a batch's words is what one takes at most."""

    def __init__(self, top: int, *, capacity: float = 0.0, evens_out: bool = False) -> None:
        super().__init__()
        self.top, self.capacity, self.evens_out = top, capacity, evens_out
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(FeedForward() for _ in range(4))
        self.balance: Tensor = torch.zeros(())
        if evens_out:
            self.register_buffer("leaning", torch.zeros(4))

    def forward(self, hidden: Tensor) -> Tensor:
        words = hidden.reshape(-1, WIDTH)
        chances = self.router(words).softmax(-1)
        wanted = chances + self.leaning if self.evens_out else chances
        chosen = wanted.topk(self.top, -1).indices
        goes = F.one_hot(chosen, 4).sum(1).bool()
        if self.capacity:
            goes = goes & (goes.long().cumsum(0) <= self.capacity * len(words))
        used = goes.to(chances.dtype).mean(0)
        self.balance = 4 * (used * chances.mean(0)).sum()
        if self.evens_out and self.training:
            self.leaning = self.leaning + 0.05 * (used.mean() - used).sign()
        out = torch.zeros_like(words)
        for index, expert in enumerate(self.experts):
            own = goes[:, index].nonzero()[:, 0]
            out = out.index_add(0, own, expert(words[own]) * chances[own, index, None])
        return out.view_as(hidden)


class Block(nn.Module):
    def __init__(self, **experts: object) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.experts = Experts(**experts)  # type: ignore[arg-type]

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.experts(self.norm2(hidden))


class Mixture(Decoder):
    """`balance`: whether the forward returns it beside the logits, or adds it to a loss of its own."""

    def __init__(self, balance: str = "", layers: int = 3, **experts: object) -> None:
        super().__init__(layers, block=lambda: Block(**experts))
        self.balance = balance

    def forward(self, words: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        logits = super().forward(words)
        if self.balance == "returned":
            return logits, 0.1 * sum(block.experts.balance for block in self.blocks)
        return logits


class WithLoss(nn.Module):
    """The loss is the model's own, with the balances of all blocks, which they keep in an attribute."""

    def __init__(self, **mixture: object) -> None:
        super().__init__()
        self.net = Mixture(**mixture)  # type: ignore[arg-type]

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)
        balance = sum(block.experts.balance for block in self.net.blocks)
        return {"loss": loss + 0.1 * balance, "count": (labels != IGNORE_INDEX).sum()}


@model("tokens", "sum_of_outputs_and_balance")
def experts_top1() -> nn.Module:
    return Mixture("returned", top=1)


@model("dict_with_labels", "model")
def experts_top2_balance_in_attribute() -> nn.Module:
    return WithLoss(top=2)


@model("tokens")
def experts_without_balance() -> nn.Module:
    return Mixture(top=2)


@model("tokens", optimizer=ADAMW)
def experts_top1_adamw() -> nn.Module:
    """Some experts are used by no word of some ranks."""
    return Mixture(top=1)


@model("tokens")
def experts_with_capacity() -> nn.Module:
    """Words that come late in a batch find their expert full."""
    return Mixture(top=1, capacity=0.3)


@model("tokens")
def experts_that_even_out() -> nn.Module:
    """A leaning that follows from how much each expert was used, step by step, and has no gradient."""
    return Mixture(top=2, evens_out=True)


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(FeedForward() for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        shares = self.router(hidden).softmax(-1)
        return hidden + sum(shares[..., index, None] * one(hidden) for index, one in enumerate(self.experts))


@model("tokens")
def soft_experts() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), Soft(), Soft(), Soft(), nn.Linear(WIDTH, WORDS))
