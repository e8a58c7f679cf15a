"""Decoders and encoders of words in many dialects: ties, places, heads, gates, biases, masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import IGNORE_INDEX, WORDS
from tests.zoo.registry import ADAMW, model

WIDTH, HEADS, LENGTH = 16, 4, 8


class Attention(nn.Module):
    """Causal; `bias` is added to the scores, `num_keys` heads have keys and values of their own."""

    def __init__(self, num_keys: int = HEADS, *, rotary: bool = False) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.rotary = HEADS, num_keys, rotary
        self.head_dim = WIDTH // HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, num_keys * self.head_dim, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        batch, length, _ = hidden.shape
        heads = [
            layer(hidden).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        ]
        query, key, value = heads
        if self.rotary:
            query, key = _rotate(query), _rotate(key)
        if key.shape[1] < query.shape[1]:
            times = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        scores = query @ key.transpose(2, 3) / self.head_dim**0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores if bias is None else scores + bias
        out = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


def _rotate(hidden: Tensor) -> Tensor:
    """Rotary places."""
    half = hidden.shape[-1] // 2
    angles = torch.arange(hidden.shape[2])[:, None] / 10 ** torch.arange(half)
    cosine, sine = angles.cos().to(hidden), angles.sin().to(hidden)
    left, right = hidden[..., :half], hidden[..., half:]
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], -1)


class FeedForward(nn.Module):
    def __init__(self, *, gated: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 2 * WIDTH) if gated else None
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        up = self.up_proj(hidden)
        up = F.gelu(up) if self.gate_proj is None else F.silu(self.gate_proj(hidden)) * up
        return self.down_proj(up)


class Block(nn.Module):
    """`order`: norms before, behind, or one for attention and feed-forward side by side."""

    def __init__(self, order: str = "pre", *, gated: bool = False, **attention: Any) -> None:
        super().__init__()
        self.order = order
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = Attention(**attention), FeedForward(gated=gated)

    def forward(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.order == "post":
            hidden = self.norm1(hidden + self.attention(hidden, bias))
            return self.norm2(hidden + self.feed_forward(hidden))
        if self.order == "parallel":
            normed = self.norm1(hidden)
            return hidden + self.attention(normed, bias) + self.feed_forward(normed)
        hidden = hidden + self.attention(self.norm1(hidden), bias)
        return hidden + self.feed_forward(self.norm2(hidden))


class Decoder(nn.Module):
    """`tie`: "parameter" shares the table with the last layer, "functional" multiplies with the table itself,
    "transposed" with its transpose."""

    def __init__(
        self, layers: int = 4, *, tie: str = "", places: bool = True, block: Callable[[], nn.Module] = Block
    ):
        super().__init__()
        self.tie = tie
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH) if places else None
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if tie in ("", "parameter") else None
        if tie == "parameter":
            self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words)
        if self.places is not None:
            hidden = hidden + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.logits(self.norm(hidden))

    def logits(self, hidden: Tensor) -> Tensor:
        if self.tie == "functional":
            return F.linear(hidden, self.embed.weight)
        if self.tie == "transposed":
            return hidden @ self.embed.weight.t()
        return self.head(hidden)


@model("tokens")
def lm_small() -> nn.Module:
    return Decoder(3)


@model("tokens", optimizer=ADAMW, clip=0.5)
def lm_deep() -> nn.Module:
    return Decoder(8)


@model("ragged")
def lm_ragged() -> nn.Module:
    return Decoder()


@model("ragged_batches", accumulate=2)
def lm_ragged_in_parts() -> nn.Module:
    return Decoder()


@model("tokens")
def lm_tied() -> nn.Module:
    return Decoder(tie="parameter")


@model("tokens")
def lm_functional_tie() -> nn.Module:
    return Decoder(tie="functional")


@model("tokens")
def lm_transposed_tie() -> nn.Module:
    return Decoder(tie="transposed")


@model("tokens")
def lm_post_norm() -> nn.Module:
    return Decoder(block=lambda: Block("post"))


@model("tokens")
def lm_parallel_blocks() -> nn.Module:
    return Decoder(block=lambda: Block("parallel"))


@model("tokens")
def lm_gated_rotary() -> nn.Module:
    return Decoder(places=False, block=lambda: Block(gated=True, rotary=True))


@model("tokens")
def lm_grouped_keys() -> nn.Module:
    return Decoder(block=lambda: Block(num_keys=2))


class Biased(Decoder):
    """A bias of the distance for each head, from one table for all blocks, or from each head's slope."""

    def __init__(self, kind: str) -> None:
        super().__init__(places=False)
        self.kind = kind
        self.table = nn.Embedding(LENGTH, HEADS) if kind == "table" else None
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, HEADS + 1))

    def forward(self, words: Tensor) -> Tensor:
        hidden, places = self.embed(words), torch.arange(words.shape[1])
        apart = (places[:, None] - places).clamp(min=0)
        if self.table is not None:
            bias = self.table(apart).movedim(2, 0)
        else:
            bias = -self.slopes[:, None, None] * apart
        for block in self.blocks:
            hidden = block(hidden, bias)
        return self.logits(self.norm(hidden))


@model("tokens")
def lm_relative_places() -> nn.Module:
    return Biased("table")


@model("tokens")
def lm_slopes_buffer() -> nn.Module:
    return Biased("slopes")


class CutPlaces(Decoder):
    """Places are a parameter of the root, of which each batch takes its own length."""

    def __init__(self) -> None:
        super().__init__(places=False)
        self.where = nn.Parameter(torch.randn(1, LENGTH, WIDTH) * 0.1)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words) + self.where[:, : words.size(1)]
        for block in self.blocks:
            hidden = block(hidden)
        return self.logits(self.norm(hidden)) / words.shape[1] ** 0.5


@model("ragged_batches")
def lm_length_from_shape() -> nn.Module:
    return CutPlaces()


class Masked(nn.Module):
    """A dict's arguments; the loss is its own, a mean over what is not masked."""

    def __init__(self, *, says_count: bool) -> None:
        super().__init__()
        self.says_count = says_count
        self.net = Decoder()

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(ids * mask)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)
        found = {"loss": loss, "logits": logits}
        return found | {"count": (labels != IGNORE_INDEX).sum()} if self.says_count else found


@model("dict_with_labels", "model")
def lm_masked() -> nn.Module:
    return Masked(says_count=True)


@model("dict_with_labels", "model")
def lm_own_loss_without_count() -> nn.Module:
    return Masked(says_count=False)


class Packed(Decoder):
    """Sentences behind each other: who belongs together follows from the places."""

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        sentence = (places == 0).cumsum(0)
        apart = torch.where(sentence[:, None] == sentence, 0.0, -1e9).to(self.embed.weight.dtype)
        hidden = (self.embed(words) + self.places(places))[None]
        for block in self.blocks:
            hidden = block(hidden, apart)
        return self.logits(self.norm(hidden))[0]


@model("packed_sentences")
def packed_lm() -> nn.Module:
    return Packed()


class Encoder(nn.Module):
    """torch's own layers, with a mask of what was filled up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        filled = words == 0
        filled = filled & ~filled.all(1, keepdim=True)
        return self.head(self.encoder(self.embed(words), src_key_padding_mask=filled))


@model("ragged")
def torch_encoder() -> nn.Module:
    return Encoder()


class Universal(Decoder):
    """One block for all depths, with how deep it is added."""

    def __init__(self) -> None:
        super().__init__(1)
        self.depths = nn.Embedding(4, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words)
        for depth in range(4):
            hidden = self.blocks[0](hidden + self.depths.weight[depth])
        return self.logits(self.norm(hidden))


@model("tokens")
def lm_one_block_for_all() -> nn.Module:
    return Universal()
