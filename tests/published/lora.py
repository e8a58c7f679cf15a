"""LitGPT's Llama 2 with LoRA on queries and values: frozen weights, and logits that are computed in chunks.

Source: LitGPT of October 2023. Read models.py first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_RANK = 8
_CHUNK = 128


class LoraQkv(nn.Module):
    """(B, T, C) -> (B, T, 3C): a frozen layer, and thin ones for its queries and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 3 * width, bias=False)
        self.lora_a = nn.Parameter(torch.zeros(2 * _RANK, width))
        self.lora_b = nn.Parameter(torch.zeros(2 * width, _RANK))
        self.lora_dropout = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        base, width = self.linear(x), x.shape[-1]
        thin = F.linear(self.lora_dropout(x), self.lora_a).transpose(-2, -1)
        update = F.conv1d(thin, self.lora_b.unsqueeze(-1), groups=2).transpose(-2, -1).transpose(0, 1)
        columns = torch.arange(3 * width, device=x.device)
        columns = torch.cat([columns[:width], columns[2 * width :]])
        padded = update.new_zeros((*update.shape[:-1], 3 * width)).view(-1, 3 * width)
        padded = padded.index_copy(1, columns, update.reshape(-1, 2 * width))
        out: Tensor = base + padded.view(*update.shape[:-1], 3 * width).transpose(0, 1) * 2.0
        return out


class PlainRmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = torch.mean(x * x, dim=-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + 1e-5))


class LoraBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = PlainRmsNorm(width), PlainRmsNorm(width)
        self.attn, self.proj = LoraQkv(width), nn.Linear(width, width, bias=False)
        self.fc_1, self.fc_2 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, stream: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = stream.shape
        per_head = width // self.heads
        qkv = self.attn(self.norm_1(stream)).view(batch, length, self.heads, 3, per_head)
        query, key, value = (
            tensor.reshape(batch, -1, length, per_head)
            for tensor in qkv.permute(0, 2, 3, 1, 4).split(1, dim=2)
        )
        query, key = (
            torch.cat((_turned(tensor, cos, sin), tensor[..., per_head:]), -1) for tensor in (query, key)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        stream = stream + self.proj(attended.reshape(batch, length, width))
        hidden = self.norm_2(stream)
        out: Tensor = stream + self.down(F.silu(self.fc_1(hidden)) * self.fc_2(hidden))
        return out


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return ((x * cos) + (torch.cat((-second, first), dim=-1) * sin)).type_as(x)


class LoraLlama(nn.Module):
    """Tokens (B, T) -> logits in chunks of 128 places."""

    def __init__(self, *, layers: int, width: int, heads: int, hidden: int, length: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(32000, width)
        self.h = nn.ModuleList(LoraBlock(width, heads, hidden) for _ in range(layers))
        self.ln_f, self.lm_head = PlainRmsNorm(width), nn.Linear(width, 32000, bias=False)
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.zeros(length, width // heads), persistent=False)
        for name, weight in self.named_parameters():
            weight.requires_grad_("lora_" in name)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        hidden = self.wte(tokens)
        for block in self.h:
            hidden = block(hidden, self.cos, self.sin)
        return [self.lm_head(chunk) for chunk in self.ln_f(hidden).split(_CHUNK, dim=1)]


def llama_2_7b(*, length: int) -> nn.Module:
    model = LoraLlama(layers=32, width=4096, heads=32, hidden=11008, length=length)
    return model.to(torch.bfloat16)


def llama_2_13b(*, length: int) -> nn.Module:
    model = LoraLlama(layers=40, width=5120, heads=40, hidden=13824, length=length)
    return model.to(torch.bfloat16)


def chunked_cross_entropy(outputs: list[Tensor], targets: Tensor) -> tuple[Tensor, int]:
    """Chunk after chunk."""
    losses = [
        F.cross_entropy(chunk.reshape(-1, chunk.shape[-1]), target.reshape(-1), reduction="none")
        for chunk, target in zip(outputs, targets.split(_CHUNK, dim=1), strict=True)
    ]
    return torch.cat(losses).sum(), targets.numel()
