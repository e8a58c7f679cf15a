"""Models of the published rows, written as their authors describe them: what is allocated follows from it.

Nothing here is trained. A row of rows.toml names a function of this file in `model.use`, as a person names
their own. Source: each class names the architecture that it follows. Read samples.py next.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_ATEN = torch.ops.aten
_ATTENTION = (
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
)


class VitBlock(nn.Module):
    """A block of torchvision's vision transformers: (B, T, C) -> (B, T, C)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, stream: Tensor) -> Tensor:
        hidden = self.ln_1(stream)
        hidden, _ = self.self_attention(hidden, hidden, hidden, need_weights=False)
        hidden = hidden + stream
        out: Tensor = hidden + self.mlp(self.ln_2(hidden))
        return out


class Vit(nn.Module):
    """Pictures (B, 3, side, side) -> logits (B, classes)."""

    def __init__(self, *, layers: int, heads: int, width: int, side: int, patch: int, classes: int) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(VitBlock(width, heads, 4 * width) for _ in range(layers))
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        pictures = pictures.to(self.conv_proj.weight.dtype)
        hidden = self.conv_proj(pictures).flatten(2).permute(0, 2, 1)
        hidden = torch.cat([self.class_token.expand(len(hidden), -1, -1), hidden], dim=1)
        hidden = hidden + self.pos_embedding
        for layer in self.layers:
            hidden = layer(hidden)
        out: Tensor = self.head(self.ln(hidden)[:, 0])
        return out


def vit_l_16(*, dtype: str = "float32") -> nn.Module:
    """torchvision's vit_l_16; with dtype "bfloat16" weights, gradients and optimizer are 16 bits as well."""
    model = Vit(layers=24, heads=16, width=1024, side=224, patch=16, classes=10)
    return model.to(getattr(torch, dtype))


class SelectiveGptBlock(nn.Module):
    """A block of GPT-2 with attention written out: it keeps results of products and recomputes all else."""

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc_up, self.fc_down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        self.activation = _NewGelu()
        mask = torch.tril(torch.ones((context, context), dtype=torch.bool)).view(1, 1, context, context)
        self.register_buffer("causal_mask", mask, persistent=False)

    def forward(self, stream: Tensor) -> Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, _PRODUCTS)
        out: Tensor = checkpoint(self._forward_block, stream, use_reentrant=False, context_fn=contexts)
        return out

    def _forward_block(self, stream: Tensor) -> Tensor:
        stream = self.resid_dropout(self.c_proj(self._attended(self.ln_1(stream)))) + stream
        hidden = self.fc_down(self.activation(self.fc_up(self.ln_2(stream))))
        out: Tensor = self.resid_dropout(hidden) + stream
        return out

    def _attended(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        query, key, value = (
            tensor.reshape(batch, length, self.heads, -1).transpose(1, 2)
            for tensor in self.c_attn(hidden).split(width, dim=-1)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / (width // self.heads) ** 0.5
        scores = scores.masked_fill_(~self.causal_mask[:, :, :length, :length], float("-inf"))
        weights = self.attn_dropout(torch.softmax(scores, dim=-1))
        return torch.matmul(weights, value).transpose(1, 2).reshape(batch, length, -1)


_PRODUCTS = [_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, *_ATTENTION]


class _NewGelu(nn.Module):
    """GPT-2's GELU, written out with its intermediate tensors."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


class SelectiveGpt(nn.Module):
    """Tokens (B, T) -> logits (B, T, vocabulary), head and embedding tied."""

    def __init__(self, *, layers: int, heads: int, width: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(SelectiveGptBlock(width, heads, context, 0.1) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        hidden = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            hidden = block(hidden)
        out: Tensor = self.lm_head(self.ln_f(hidden))
        return out


def selective_gpt2() -> nn.Module:
    """GPT-2 124M."""
    return SelectiveGpt(layers=12, heads=12, width=768, context=1024, vocabulary=50257)


class C3d(nn.Sequential):
    """Clips (B, 3, 16, 112, 112) -> logits (B, classes). Source: Tran et al. 2015, as in mmaction2."""

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for index, widths in enumerate(([64], [128], [256, 256], [512, 512], [512, 512])):
            for width in widths:
                layers += [nn.Conv3d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            padding = (0, 1, 1) if index == 4 else 0
            step = (1, 2, 2) if index == 0 else (2, 2, 2)
            layers.append(nn.MaxPool3d(step, stride=step, padding=padding))
        layers += [nn.Flatten(1), nn.Linear(8192, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 4096)]
        super().__init__(*layers, nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, classes))


def c3d() -> nn.Module:
    """For UCF-101."""
    return C3d(classes=101)


class Scaled(nn.Embedding):
    """An embedding whose vectors are multiplied by the square root of their width."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.embedding_dim**0.5


class Positions(nn.Module):
    """Adds a table of sines, a buffer of 5,000 places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("pe", torch.zeros(5000, 1, width))

    def forward(self, stream: Tensor) -> Tensor:
        return stream + self.pe[: stream.shape[0]]


class PostNormBlock(nn.Module):
    """torch's TransformerEncoderLayer of 2021 with a causal mask: norms after, ReLU, no dropout."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, stream: Tensor) -> Tensor:
        mask = torch.triu(torch.full((len(stream), len(stream)), float("-inf"), device=stream.device), 1)
        attended = self.self_attn(stream, stream, stream, attn_mask=mask)[0]
        stream = self.norm1(stream + attended)
        out: Tensor = self.norm2(stream + self.linear2(F.relu(self.linear1(stream))))
        return out


def fairscale_lm(*, vocabulary: int) -> nn.Module:
    """fairscale's benchmark model, a row of modules: tokens (T, B) -> logits (T, B, vocabulary)."""
    blocks = [PostNormBlock(2048, 32, 2048) for _ in range(10)]
    return nn.Sequential(Scaled(vocabulary, 2048), Positions(2048), *blocks, nn.Linear(2048, vocabulary))


class RmsNorm(nn.Module):
    """Computed in fp32 and step by step, as torchtitan's `rmsnorm` does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class TitanBlock(nn.Module):
    """A block of torchtitan's Llama under its selective checkpointing: attention and every second product are
    kept, all else is computed again."""

    heads: ClassVar[int] = 32
    groups: ClassVar[int] = 8

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        per_head = width // self.heads
        self.wq, self.wo = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(width, self.groups * per_head, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.attention_norm, self.ffn_norm = RmsNorm(width), RmsNorm(width)

    def forward(self, stream: Tensor, angles: Tensor) -> Tensor:
        out: Tensor = checkpoint(
            self._forward_block,
            stream,
            angles,
            use_reentrant=False,
            context_fn=_every_second_product,
            preserve_rng_state=False,
        )
        return out

    def _forward_block(self, stream: Tensor, angles: Tensor) -> Tensor:
        stream = stream + self._attended(self.attention_norm(stream), angles)
        hidden = self.ffn_norm(stream)
        out: Tensor = stream + self.w2(F.silu(self.w1(hidden)) * self.w3(hidden))
        return out

    def _attended(self, hidden: Tensor, angles: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        per_head = width // self.heads
        query, key, value = (
            project(hidden).view(batch, length, -1, per_head) for project in (self.wq, self.wk, self.wv)
        )
        query, key = _turned(query, angles), _turned(key, angles)
        shape = (batch, length, self.groups, self.heads // self.groups, per_head)
        key, value = (
            tensor.unsqueeze(3).expand(shape).reshape(batch, length, self.heads, per_head)
            for tensor in (key, value)
        )
        heads = (tensor.transpose(1, 2) for tensor in (query, key, value))
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        out: Tensor = self.wo(attended.transpose(1, 2).contiguous().view(batch, length, -1))
        return out


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions by complex numbers, in fp32."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[: x.shape[1]].view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


def _every_second_product() -> Any:
    counts: dict[bool, int] = defaultdict(int)

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = operation == _ATEN.mm.default
        counts[context.is_recompute] += is_product
        is_saved = operation in _ATTENTION or (is_product and counts[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Titan(nn.Module):
    """Tokens (B, T) -> logits (B, T, vocabulary)."""

    def __init__(self, *, layers: int, width: int, hidden: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        angles = torch.outer(torch.arange(context).float(), torch.zeros(width // TitanBlock.heads // 2))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))
        self.layers = nn.ModuleList(TitanBlock(width, hidden) for _ in range(layers))
        self.norm, self.output = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.freqs_cis)
        out: Tensor = self.output(self.norm(hidden))
        return out


def titan_llama_8b() -> nn.Module:
    """Llama 3.1 8B."""
    return Titan(layers=32, width=4096, hidden=14336, vocabulary=128256, context=8192)


class SoftmaxOf2021(torch.autograd.Function):
    """Until torch 1.11 softmax kept what it was given for its backward, beside its result."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(scores, weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        scores, weights = ctx.saved_tensors
        return torch._softmax_backward_data(grads[0], weights, -1, scores.dtype)


def attention_of_2021(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's, written out: (B, heads, T, width) each -> (B, T, heads, width)."""
    scores = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
    scores = scores if mask is None else scores + mask
    weights = F.dropout(SoftmaxOf2021.apply(scores.float()), dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def bert_classifier() -> nn.Module:
    """Hugging Face's BERT-large with a head for sequences, as under torch 1.10."""
    from transformers import AttentionInterface, BertConfig, BertForSequenceClassification

    AttentionInterface.register("of-2021", attention_of_2021)
    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="of-2021",
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model
