"""What stands between a layer split by columns and the one by rows behind it: elementwise or not.

A transformer's block, with something else in its feed-forward or its attention each time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import CLASSES, FEATURES, WORDS
from tests.zoo.models.language import HEADS, WIDTH, Attention, Decoder
from tests.zoo.registry import model

Between = Callable[[Tensor], Tensor]


class Inside(nn.Module):
    def __init__(self, between: Between) -> None:
        super().__init__()
        self.between = between
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(self.between(self.up_proj(hidden)))


class Block(nn.Module):
    def __init__(self, between: Between = F.gelu, attention: Callable[[], nn.Module] = Attention) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = attention(), Inside(between)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.feed_forward(self.norm2(hidden))


def _decoder(between: Between) -> nn.Module:
    return Decoder(3, block=lambda: Block(between))


@model("tokens")
def between_relu_squared() -> nn.Module:
    return _decoder(lambda up: up.relu().square())


@model("tokens")
def between_plain_norm() -> nn.Module:
    """A layer norm without weights, by its function."""
    return _decoder(lambda up: F.layer_norm(F.gelu(up), up.shape[-1:]))


@model("tokens")
def between_unit_length() -> nn.Module:
    return _decoder(lambda up: F.normalize(F.gelu(up), dim=-1) * 4)


@model("tokens")
def between_root_mean_square() -> nn.Module:
    return _decoder(lambda up: up.relu() / (up.square().mean(-1, keepdim=True) + 1e-3).sqrt())


@model("tokens")
def between_largest_half() -> nn.Module:
    return _decoder(lambda up: up * (up >= up.topk(up.shape[-1] // 2, -1).values[..., -1:]))


@model("tokens")
def between_share_of_largest() -> nn.Module:
    return _decoder(lambda up: up / (1 + up.abs().amax(-1, keepdim=True)))


@model("tokens")
def between_centred() -> nn.Module:
    return _decoder(lambda up: F.gelu(up - up.mean(-1, keepdim=True)))


@model("tokens")
def between_softmax() -> nn.Module:
    return _decoder(lambda up: up.softmax(-1) * 8)


@model("tokens")
def between_running_sum() -> nn.Module:
    return _decoder(lambda up: up.tanh().cumsum(-1) / 8)


@model("tokens")
def between_sorted() -> nn.Module:
    return _decoder(lambda up: up.sort(-1).values.tanh())


@model("tokens")
def between_halves_multiplied() -> nn.Module:
    """The first half with the second: each rank has neighbours of another kind."""

    def multiplied(up: Tensor) -> Tensor:
        left, right = up.chunk(2, -1)
        return torch.cat([left * right.sigmoid(), right * left.sigmoid()], -1)

    return _decoder(multiplied)


@model("tokens")
def between_gated_by_mean() -> nn.Module:
    return _decoder(lambda up: F.gelu(up) * up.mean(-1, keepdim=True).sigmoid())


@model("tokens")
def between_sequence_norm() -> nn.Module:
    """Over the words, feature by feature: that is the same for a slice."""
    return _decoder(lambda up: up / (1 + up.square().mean(1, keepdim=True)).sqrt())


class ByHeads(nn.Module):
    """An attention that reads its number of heads: for slopes (ALiBi), a scale, norms or mixing of heads."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.n_heads, self.head_dim = kind, HEADS, WIDTH // HEADS
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query, key, value = (layer(hidden) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if self.kind == "norm of all heads":
            query, key = F.layer_norm(query, query.shape[-1:]), F.layer_norm(key, key.shape[-1:])
        query, key, value = (
            one.view(batch, length, -1, self.head_dim).transpose(1, 2) for one in (query, key, value)
        )
        if self.kind == "norm of each head":
            query, key = F.normalize(query, dim=-1) * 2, F.normalize(key, dim=-1)
        scores = self._biased(query @ key.transpose(2, 3) / self.head_dim**0.5)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        shares = scores.masked_fill(later, float("-inf")).softmax(-1)
        if self.kind == "mean of heads":
            shares = 0.5 * shares + 0.5 * shares.mean(1, keepdim=True)
        out = (shares @ value).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(out / self.n_heads if self.kind == "divided" else out)

    def _biased(self, scores: Tensor) -> Tensor:
        if self.kind != "slopes":
            return scores
        places = torch.arange(scores.shape[-1])
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / self.n_heads) for head in range(self.n_heads)])
        return scores - slopes.to(scores)[:, None, None] * (places[:, None] - places).clamp(min=0)


def _by_heads(kind: str) -> nn.Module:
    return Decoder(3, block=lambda: Block(attention=lambda: ByHeads(kind)))


@model("tokens")
def slopes_from_number_of_heads() -> nn.Module:
    return _by_heads("slopes")


@model("tokens")
def divided_by_number_of_heads() -> nn.Module:
    return _by_heads("divided")


@model("tokens")
def norm_over_all_heads() -> nn.Module:
    return _by_heads("norm of all heads")


@model("tokens")
def norm_of_each_head() -> nn.Module:
    return _by_heads("norm of each head")


@model("tokens")
def heads_mixed() -> nn.Module:
    return _by_heads("mean of heads")


class Pair(nn.Module):
    """Two layers that a person's own plan splits."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        self.between = between
        self.enter, self.up, self.down = nn.Linear(FEATURES, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.leave = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs).tanh()
        return self.leave(hidden + self.down(self.between(self.up(hidden))))


USER_PLAN = {"up": "column", "down": "row"}


@model("classes", plan=USER_PLAN)
def own_plan() -> nn.Module:
    return Pair(F.gelu)


@model("classes", plan=USER_PLAN)
def own_plan_over_a_norm() -> nn.Module:
    return Pair(lambda up: F.layer_norm(up, up.shape[-1:]))


@model("classes", plan=USER_PLAN)
def own_plan_over_a_maximum() -> nn.Module:
    return Pair(lambda up: up - up.amax(-1, keepdim=True).detach())


@model("tokens", plan={"0": "row", "2": "column"})
def own_plan_of_words() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS))
