"""A GPT: a decoder-only transformer that predicts the next token at every position.

tokens (B, T) -> embed (B, T, C) -> blocks (B, T, C), each x + attention(norm(x)), then x +
feed_forward(norm(x)) -> head (B, T, V). Query, key and value are three linear layers instead of one fused
layer, so that a column-wise split by heads is a plain slice of each. Read base.py first. Source: Radford et
al., "Language Models are Unsupervised Multitask Learners" (2019), for the layout and the init.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.models.base import HasUnits, require_dropout, require_positive

INIT_STD = 0.02


class Embed(nn.Module):
    """Tokens (B, T) -> sum of token and position embeddings (B, T, C)."""

    def __init__(self, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        length, context = tokens.shape[1], self.position.num_embeddings
        if length > context:
            raise ModelError(
                phrase(
                    "A sequence of {length} tokens is longer than model.args.context = {context}.",
                    length=length,
                    context=context,
                ),
                path="model.args.context",
                advice=phrase(
                    "Set model.args.context to {length} or more, or data.args.context to {context}.",
                    length=length,
                    context=context,
                ),
            )
        positions = torch.arange(length, device=tokens.device)
        out: Tensor = self.dropout(self.token(tokens) + self.position(positions))
        return out


class CausalSelfAttention(nn.Module):
    """Causal self-attention, (B, T, C) -> (B, T, C).

    The number of heads is derived from the projections' width, so a module that has only some of the heads
    works unchanged.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.head_width = width // heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        mixed: Tensor = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Feed-forward layer, C -> 4C, GELU, 4C -> C: (B, T, C) -> (B, T, C)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(hidden)))
        return out


class Block(nn.Module):
    """Pre-norm decoder layer: (B, T, C) -> (B, T, C)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, dropout)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        out: Tensor = hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))
        return out


class Head(nn.Module):
    """Norm and projection to the vocabulary: (B, T, C) -> (B, T, V)."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.output(self.norm(hidden))
        return logits


class Gpt(HasUnits):
    """GPT model: logits (B, T, V) for tokens (B, T), with T up to `context`. If `tied` is True, the output
    layer shares the token embedding's weight."""

    unit_names = ("embed", "blocks", "head")

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        heads: int,
        width: int,
        context: int,
        tied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = Embed(vocabulary, context, width, dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.head = Head(width, vocabulary)
        if tied:
            self.head.output.weight = self.embed.token.weight
        self._init_weights(layers)

    def _init_weights(self, layers: int) -> None:
        """Initialize weights from Normal(0, 0.02). For the projections into the residual stream, divide the
        standard deviation by the square root of the number of residual additions."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # Each layer adds to the residual stream twice.
        residual_std = INIT_STD / math.sqrt(2 * layers)
        for module in self.modules():
            if isinstance(module, CausalSelfAttention):
                nn.init.normal_(module.out.weight, std=residual_std)
            elif isinstance(module, FeedForward):
                nn.init.normal_(module.down.weight, std=residual_std)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def build(
    *,
    vocabulary: int,
    layers: int = 4,
    heads: int = 4,
    width: int = 128,
    context: int = 128,
    tied: bool = False,
    dropout: float = 0.0,
) -> Gpt:
    """Build the catalogue's `gpt`. `vocabulary` is derived from the data.

    Raises:
        ModelError: heads does not divide width, a count is below 1, or dropout is outside 0..1.
    """
    require_positive(vocabulary=vocabulary, layers=layers, heads=heads, width=width, context=context)
    require_dropout(dropout)
    if width % heads:
        fitting = ", ".join(str(count) for count in range(1, min(width, 32) + 1) if width % count == 0)
        raise ModelError(
            phrase(
                "model.args.heads = {heads} does not divide model.args.width = {width}.",
                heads=heads,
                width=width,
            ),
            path="model.args.heads",
            advice=phrase(
                "Set model.args.heads to one of {fitting}, or model.args.width to a multiple of {heads}.",
                fitting=fitting,
                heads=heads,
            ),
        )
    return Gpt(vocabulary, layers, heads, width, context, tied, dropout)
