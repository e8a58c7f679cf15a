"""Tiny Hugging Face models and data for them, as a person's own `path/to/file.py:factory`.

Batches are dicts with the labels inside, and the model's own loss is trained, as people do with these models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 64
CONTEXT = 12


def gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4,
        n_head=4,
        n_embd=32,
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **options,
    )
    return GPT2LMHeadModel(config)


def llama(**options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **options,
    )
    return LlamaForCausalLM(config)


def mixtral(**options: Any) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        hidden_size=32,
        intermediate_size=64,
        num_local_experts=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **options,
    )
    return MixtralForCausalLM(config)


class Adapted(nn.Module):
    """A frozen layer and a product of rank 4 beside it, as LoRA adds (Hu et al., 2021)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, 4, bias=False)
        self.up = nn.Linear(4, frozen.out_features, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.frozen(hidden) + self.up(self.down(hidden))
        return out


def llama_adapted() -> nn.Module:
    """Only the adapters of queries and values are trained."""
    model = llama().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj)
    return model


def bert(**options: Any) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=4,
        num_attention_heads=4,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
        **options,
    )
    return BertForMaskedLM(config)


def t5(**options: Any) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=3,
        num_decoder_layers=3,
        num_heads=4,
        d_model=32,
        d_kv=8,
        d_ff=64,
        vocab_size=VOCABULARY,
        dropout_rate=0.0,
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
        **options,
    )
    return T5ForConditionalGeneration(config)


def resnet(**options: Any) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        num_channels=3,
        num_labels=10,
        **options,
    )
    return ResNetForImageClassification(config)


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Fixed dicts; a third of the labels is masked where the model reads tokens."""

    def __init__(self, kind: str, num_samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        if kind == "pictures":
            pictures = torch.randn(num_samples, 3, 32, 32, generator=generator)
            self.columns = {
                "pixel_values": pictures,
                "labels": torch.randint(10, (num_samples,), generator=generator),
            }
            return
        tokens = torch.randint(1, VOCABULARY, (num_samples, CONTEXT), generator=generator)
        labels = tokens.clone()
        labels[torch.rand(labels.shape, generator=generator) < 0.3] = -100
        self.columns = {"input_ids": tokens, "labels": labels}

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def tokens(num_samples: int = 64) -> tuple[Samples, Samples]:
    return Samples("tokens", num_samples, 1), Samples("tokens", 10, 2)


class PaddedSamples(Samples):
    """Every second one ends in padding."""

    def __init__(self, num_samples: int, seed: int) -> None:
        super().__init__("tokens", num_samples, seed)
        self.columns["attention_mask"] = torch.ones_like(self.columns["labels"])
        self.columns["attention_mask"][1::2, CONTEXT // 2 :] = 0


def padded_tokens(num_samples: int = 64) -> tuple[Samples, Samples]:
    return PaddedSamples(num_samples, 1), PaddedSamples(10, 2)


def pictures(num_samples: int = 64) -> tuple[Samples, Samples]:
    return Samples("pictures", num_samples, 1), Samples("pictures", 10, 2)
