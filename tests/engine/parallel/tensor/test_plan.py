"""Which layers are split: found in the families that people use, given by hand, or refused in words."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from rankdeck.base.errors import ModelError
from rankdeck.config.catalog import TensorOptions
from rankdeck.models.gpt import Gpt
from rankdeck.models.mlp import Mlp
from rankdeck.models.resnet import build as build_resnet
from rankdeck.parallel.tensor.apply import LayerSplit
from rankdeck.parallel.tensor.plan import cached_plan, find_plan, make_plan, plan_from_patterns
from rankdeck.parallel.tensor.split_plan import ModelAnalysis, SplitLayer
from tests.helpers.own_models import BareBlocks


def gpt(**changed: int | bool) -> Gpt:
    sizes: dict[str, int] = {"vocabulary": 64, "layers": 2, "heads": 4, "width": 32, "context": 16}
    return Gpt(**{**sizes, **changed})  # type: ignore[arg-type]


class _LlamaAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head_dim, self.num_key_value_groups = 8, 2
        self.q_proj, self.k_proj = nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False)
        self.v_proj, self.o_proj = nn.Linear(32, 16, bias=False), nn.Linear(32, 32, bias=False)


class _LlamaMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 88, bias=False), nn.Linear(32, 88, bias=False)
        self.down_proj, self.act_fn = nn.Linear(88, 32, bias=False), nn.SiLU()


class _LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = _LlamaAttention(), _LlamaMlp()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(32), nn.RMSNorm(32)


class LlamaLike(nn.Module):
    """Modules named and shaped as Hugging Face's Llama has them, grouped queries included."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(96, 32)
        self.model.layers = nn.ModuleList(_LlamaLayer() for _ in range(2))
        self.model.norm = nn.RMSNorm(32)
        self.lm_head = nn.Linear(32, 96, bias=False)


class _BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        attention = nn.Module()
        attention.num_attention_heads, attention.attention_head_size, attention.all_head_size = 4, 8, 32
        attention.query, attention.key, attention.value = (
            nn.Linear(32, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 32),
        )
        self.attention, self.intermediate, self.output = nn.Module(), nn.Module(), nn.Module()
        self.attention.self, self.attention.output = attention, nn.Module()
        self.attention.output.dense, self.attention.output.LayerNorm = nn.Linear(32, 32), nn.LayerNorm(32)
        self.intermediate.dense, self.intermediate.intermediate_act_fn = nn.Linear(32, 128), nn.GELU()
        self.output.dense, self.output.LayerNorm = nn.Linear(128, 32), nn.LayerNorm(32)


class BertLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(_BertLayer() for _ in range(2))
        self.classifier = nn.Linear(32, 2)


def kinds_by_layer(plan: object) -> dict[str, str]:
    return {layer.name: layer.kind for layer in plan.layers}  # type: ignore[attr-defined]


def test_gpt_is_split_in_pairs_and_by_vocabulary() -> None:
    plan = find_plan(gpt(layers=1), 4)
    assert kinds_by_layer(plan) == {
        "blocks.0.attention.query": "column",
        "blocks.0.attention.key": "column",
        "blocks.0.attention.value": "column",
        "blocks.0.attention.out": "row",
        "blocks.0.feed_forward.up": "column",
        "blocks.0.feed_forward.down": "row",
        "embed.token": "row",
        "head.output": "column",
    }
    assert plan.input_modules == ("blocks.0.attention",)
    assert (plan.blocks, plan.output) == (("blocks.0",), "head.output")


def test_a_plan_is_cached_for_equal_models() -> None:
    analysis = ModelAnalysis()
    plan = cached_plan(analysis, gpt(layers=1), 4, None)
    assert cached_plan(analysis, gpt(layers=1), 4, None) is plan
    assert cached_plan(ModelAnalysis(), gpt(layers=1), 4, None) is not plan


def test_an_indivisible_vocabulary_is_not_split() -> None:
    plan = find_plan(gpt(vocabulary=65, layers=1), 2)
    assert plan.output is None and len(plan.layers) == 6


def test_llama_is_split_with_gate_and_grouped_queries() -> None:
    plan = find_plan(LlamaLike(), 2)
    layer = "model.layers.1"
    kinds = kinds_by_layer(plan)
    assert {name for name, kind in kinds.items() if name.startswith(layer) and kind == "column"} == {
        f"{layer}.{name}"
        for name in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
        )
    }
    assert kinds[f"{layer}.self_attn.o_proj"] == kinds[f"{layer}.mlp.down_proj"] == "row"
    assert f"{layer}.mlp" in plan.input_modules and f"{layer}.self_attn" in plan.input_modules
    with pytest.raises(ModelError, match=r"query: 4, key/value: 2.*4 ranks") as refused:
        find_plan(LlamaLike(), 4)
    assert "Use 1 or 2 devices" in str(refused.value.advice)


def test_bert_is_split_and_its_head_counts_are_divided() -> None:
    plan = find_plan(BertLike(), 2)
    layer = "encoder.layer.0"
    kinds = kinds_by_layer(plan)
    assert kinds[f"{layer}.attention.output.dense"] == kinds[f"{layer}.output.dense"] == "row"
    assert kinds[f"{layer}.intermediate.dense"] == "column" and "classifier" not in kinds
    counts = {count.attribute: count.count for count in plan.heads if count.module.startswith(layer)}
    assert counts == {"num_attention_heads": 2, "all_head_size": 16}


def test_a_chain_of_linear_layers_is_split_in_pairs() -> None:
    plan = find_plan(Mlp(64, 10, [32, 32, 32]), 2)
    assert list(kinds_by_layer(plan).items()) == [
        ("blocks.0.linear", "column"),
        ("blocks.1.linear", "row"),
        ("blocks.2.linear", "column"),
        ("head", "row"),
    ]
    normed = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert kinds_by_layer(find_plan(normed, 2)) == {"2": "column", "4": "row"}


def test_layers_other_than_linear_and_embedding_are_refused() -> None:
    with pytest.raises(ModelError, match="the weights of Resnet are in other layers") as refused:
        find_plan(build_resnet(depth=18, classes=10, stem="small"), 2)
    assert "Use ddp, which works with unmodified models" in str(refused.value.advice)


def test_indivisible_models_are_advised_other_strategies() -> None:
    model = nn.Module()
    model.first, model.second = nn.Linear(64, 33), nn.Linear(33, 10)
    with pytest.raises(ModelError, match="their width must be divisible") as raised:
        make_plan(model, 2, None)
    assert "Use ddp, which works with unmodified models" in str(raised.value.advice)


def test_a_fused_layer_is_refused_by_name() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(32, 96))

    fused = nn.Sequential(Conv1D(), nn.Linear(96, 32))
    with pytest.raises(ModelError, match="0 is a fused Conv1D"):
        find_plan(fused, 2)
    with pytest.raises(ModelError, match="fuses query, key and value"):
        find_plan(nn.Sequential(nn.MultiheadAttention(32, 4)), 2)


def test_weights_between_split_layers_are_refused() -> None:
    model = gpt()
    model.blocks[0].attention.query_norm = nn.LayerNorm(8)
    with pytest.raises(ModelError, match="query_norm"):
        find_plan(model, 2)


def test_a_flat_block_is_split_by_its_forward() -> None:
    digits = torch.rand(2, 1, 8, 8)
    plan = find_plan(BareBlocks(), 2, digits)
    kinds = kinds_by_layer(plan)
    assert len(kinds) == 12 and kinds["blocks.1.o"] == kinds["blocks.1.down"] == "row"
    assert plan.input_modules == ()  # the residual needs the input as it came
    with pytest.raises(ModelError, match=r"so blocks\.0\.query_norm\.weight between them would receive"):
        find_plan(BareBlocks(query_norm=True), 2, digits)
    with pytest.raises(ModelError, match=r"does not run with the slices of its layers.*own_models\.py, line"):
        find_plan(BareBlocks(fixed=True), 2, digits)
    with pytest.raises(
        ModelError, match=r"attention in a separate module, but blocks\.0 computes it directly"
    ):
        LayerSplit(BareBlocks(), plan, cast(DeviceMesh, None), TensorOptions(sequence_parallel=True))


def test_indivisible_heads_are_refused_with_valid_counts() -> None:
    with pytest.raises(ModelError, match="4, is not divisible by the number of ranks, 3") as refused:
        find_plan(gpt(width=36), 3)
    assert "Use 1, 2 or 4 devices" in str(refused.value.advice)


def test_a_user_plan_gathers_a_column_without_a_row() -> None:
    patterns = {"blocks.*.up": "column", "blocks.*.down": "row", "head.output": "column"}
    plan = make_plan(gpt(layers=1), 2, patterns)  # type: ignore[arg-type]
    assert plan.layers == (
        SplitLayer("blocks.0.feed_forward.up", "column"),
        SplitLayer("blocks.0.feed_forward.down", "row"),
        SplitLayer("head.output", "column", gathers_output=True),
    )


def test_options_that_a_plan_does_not_support_are_refused() -> None:
    model, no_mesh = gpt(), cast(DeviceMesh, None)
    by_hand = plan_from_patterns(model, 2, {"blocks.*.up": "column", "blocks.*.down": "row"})
    with pytest.raises(ModelError, match=r"not detected when strategy.plan is set"):
        LayerSplit(model, by_hand, no_mesh, TensorOptions(sequence_parallel=True))
    with pytest.raises(ModelError, match="output layer"):
        LayerSplit(model, by_hand, no_mesh, TensorOptions(loss_parallel=True))
    chain = Mlp(64, 10, [32])
    with pytest.raises(ModelError, match="needs transformer blocks, but the model has none"):
        LayerSplit(chain, find_plan(chain, 2), no_mesh, TensorOptions(sequence_parallel=True))


def test_layers_of_other_stages_are_not_in_the_plan() -> None:
    model = gpt()
    plan = find_plan(model, 2)
    for module in model.blocks[0].modules():
        for name in list(module._parameters):
            module._parameters[name] = None
    stage_plan = plan.restrict_to_model(model)
    assert stage_plan.blocks == ("blocks.1",) and stage_plan.input_modules == ("blocks.1.attention",)
    assert (
        all(not layer.name.startswith("blocks.0") for layer in stage_plan.layers)
        and stage_plan.output == plan.output
    )


def test_an_invalid_user_plan_is_refused() -> None:
    with pytest.raises(ModelError, match="matches no linear layer") as refused:
        plan_from_patterns(gpt(), 2, {"blocks.0.feed_forward.upp": "column"})
    assert "blocks.0.feed_forward.up" in str(refused.value.advice)
    with pytest.raises(ModelError, match="not divisible by the number of ranks, 3"):
        plan_from_patterns(gpt(), 3, {"head.output": "column"})
    with pytest.raises(ModelError, match=r"splits a weight that is shared with embed\.token"):
        plan_from_patterns(gpt(tied=True), 2, {"head.output": "column"})
