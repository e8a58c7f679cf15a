"""What would compute something else from slices stays whole or is refused; what is advised works."""

from __future__ import annotations

import ast
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from rankdeck.base.errors import ModelError
from rankdeck.config.catalog import TensorOptions
from rankdeck.models.checkpointing import checkpoint_blocks
from rankdeck.models.gpt import Gpt
from rankdeck.parallel.tensor import plan_check
from rankdeck.parallel.tensor.apply import LayerSplit
from rankdeck.parallel.tensor.plan import find_plan, make_plan
from rankdeck.torch_compat.fake_tensors import FakeTensorMode
from tests.helpers import split_models
from tests.helpers.own_models import BareBlocks
from tests.helpers.split_models import BETWEEN, Chain, TiedByFunction, Transformer

DIGITS, TOKENS = torch.rand(2, 1, 8, 8), torch.randint(64, (2, 8))
NOT_ELEMENTWISE = [kind for kind in BETWEEN if kind != "plain"]


def row_layers(plan: Any) -> set[str]:
    return {layer.name for layer in plan.layers if layer.kind == "row"}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("blocks_alone", [False, True])
def test_a_feed_forward_with_a_non_elementwise_op_is_not_split(
    monkeypatch: pytest.MonkeyPatch, between: str, blocks_alone: bool
) -> None:
    if blocks_alone:
        monkeypatch.setattr(plan_check, "_MAX_WORK", 0)
    plan = find_plan(Transformer(between=between), 2, DIGITS)
    assert "blocks.1.attention.out" in row_layers(plan)
    assert ("blocks.1.down" in row_layers(plan)) == (between == "plain")


@pytest.mark.parametrize("attention", ["alibi", "heads", "query"])
@pytest.mark.parametrize("blocks_alone", [False, True])
def test_an_attention_that_mixes_or_counts_heads_is_not_split(
    monkeypatch: pytest.MonkeyPatch, attention: str, blocks_alone: bool
) -> None:
    if blocks_alone:
        monkeypatch.setattr(plan_check, "_MAX_WORK", 0)
    model = Transformer(attention)
    plan = find_plan(model, 2, DIGITS)
    assert (
        row_layers(plan) == {"blocks.0.down", "blocks.1.down"} and not plan.heads and not plan.input_modules
    )
    assert plan.unsplit_attentions == ("blocks.0.attention.out", "blocks.1.attention.out")
    with pytest.raises(ModelError, match=r"blocks\.0\.attention\.out belongs to an attention"):
        LayerSplit(model, plan, cast(DeviceMesh, None), TensorOptions(sequence_parallel=True))


def test_one_unsplit_attention_disables_sequence_parallel() -> None:
    model = Transformer(blocks=3)
    nn.utils.parametrizations.weight_norm(model.blocks[1].attention.q_proj)
    plan = find_plan(model, 2, DIGITS)
    assert row_layers(plan) == {
        "blocks.0.attention.out",
        "blocks.0.down",
        "blocks.2.attention.out",
        "blocks.2.down",
    }
    with pytest.raises(ModelError, match=r"blocks\.1 belongs to an attention"):
        LayerSplit(model, plan, cast(DeviceMesh, None), TensorOptions(sequence_parallel=True))


@pytest.mark.parametrize("between", NOT_ELEMENTWISE)
def test_a_chain_with_a_non_elementwise_op_is_refused(between: str) -> None:
    messages = {
        "l2": "a norm",
        "cumsum": "a running sum",
        "deviation": "a standard deviation",
        "top-k": "slices",
    }
    with pytest.raises(ModelError, match=messages.get(between, f"a {between}")) as refused:
        find_plan(Chain(between), 2, DIGITS)
    assert (
        "first and second" in refused.value.message
        and "Use ddp, which works with unmodified models" in str(refused.value.advice)
    )
    patterns = {"first": "column", "second": "row"}
    with pytest.raises(ModelError, match="first and second") as refused:
        make_plan(Chain(between, has_units=False), 2, cast(Any, patterns), DIGITS)
    assert refused.value.problem.path == "strategy.plan"
    assert "Leave these layers out" in str(refused.value.advice)


def test_an_unsplittable_attention_is_named_with_its_reason() -> None:
    with pytest.raises(ModelError, match=r"uses blocks\.0\.attention\.n_heads"):
        find_plan(Transformer("alibi", "mean"), 2, DIGITS)


def test_a_user_plan_of_an_attention_divides_the_head_counts() -> None:
    patterns = cast(Any, {"blocks.*.attention.?_proj": "column", "blocks.*.attention.out": "row"})
    assert {count.count for count in make_plan(Transformer(), 2, patterns, DIGITS).heads} == {2}
    with pytest.raises(ModelError, match="with only one rank's heads"):
        make_plan(Transformer("alibi"), 2, patterns, DIGITS)
    with pytest.raises(ModelError, match=r"blocks\.0\.down: the model does not run with slices"):
        make_plan(Transformer(), 2, cast(Any, {"blocks.*.down": "row"}), DIGITS)


class Undeclared(nn.Module):
    """Digits -> logits; the layers that follow each other are not neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.aside, self.first = nn.Linear(32, 10), nn.Linear(10, 10), nn.Linear(64, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.aside(self.second(self.first(inputs.flatten(1)).relu()))
        return out


@pytest.mark.parametrize(
    ("model", "has_plan"),
    [
        (Chain(has_units=False), True),
        (Chain("mean", has_units=False), False),
        (Undeclared(), True),
        (Transformer(blocks=0), True),
        (split_models.weight_normed(everywhere=True), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.Linear(33, 10)), False),
    ],
)
def test_an_advised_plan_works(model: nn.Module, has_plan: bool) -> None:
    with pytest.raises(ModelError) as refused:
        find_plan(model, 2, DIGITS)
    advice = str(refused.value.advice)
    assert ("strategy.plan" in advice) == has_plan
    if has_plan:
        patterns = ast.literal_eval(advice.partition("strategy.plan = ")[2].rstrip(".").replace(" = ", ": "))
        plan = make_plan(model, 2, patterns, DIGITS)
        assert {layer.name: layer.kind for layer in plan.layers} == patterns
        find = plan_check.make_trial(model, 2, DIGITS)
        assert find.difference(plan.layers, ()) is None
    else:
        assert "Use ddp, which works with unmodified models" in advice


def test_layers_with_computed_weights_are_not_split() -> None:
    plan = find_plan(split_models.weight_normed(), 2, DIGITS)
    assert row_layers(plan) == {"blocks.0.attention.out", "blocks.1.attention.out", "blocks.1.down"}
    plan = find_plan(split_models.parametrized(), 2, DIGITS)
    assert row_layers(plan) == {"blocks.0.attention.out"}
    with pytest.raises(ModelError, match="computes its weight from other tensors"):
        find_plan(split_models.weight_normed(everywhere=True), 2, DIGITS)
    patterns = cast(Any, {"blocks.*.up": "column", "blocks.*.down": "row"})
    with pytest.raises(ModelError, match=r"blocks\.0\.up computes its weight"):
        make_plan(split_models.weight_normed(), 2, patterns, DIGITS)


@pytest.mark.parametrize("most_work", [plan_check._MAX_WORK, 0])
def test_an_embedding_used_by_a_function_is_not_split(
    monkeypatch: pytest.MonkeyPatch, most_work: int
) -> None:
    monkeypatch.setattr(plan_check, "_MAX_WORK", most_work)
    split = find_plan(TiedByFunction(used=False), 2, TOKENS)
    assert "token" in row_layers(split) and split.output == "head"
    plan = find_plan(TiedByFunction(), 2, TOKENS)
    assert "token" not in row_layers(plan) and "blocks.0.down" in row_layers(plan)
    patterns = cast(Any, {"token": "row"})
    with pytest.raises(ModelError, match=r"token\.weight: the model also uses it outside"):
        make_plan(TiedByFunction(), 2, patterns, TOKENS)


@pytest.mark.parametrize(
    ("attention", "between"),
    [("plain", "plain"), ("alibi", "plain"), ("plain", "mean"), ("plain", "maximum")],
)
def test_a_fake_model_has_the_plan_of_the_real_model(attention: str, between: str) -> None:
    real = find_plan(Transformer(attention, between), 2, DIGITS)
    with FakeTensorMode():
        assert find_plan(Transformer(attention, between), 2, torch.zeros(2, 1, 8, 8)) == real


class Recomputed(Transformer):
    """Its blocks are computed again in backward, by its own code."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs.flatten(0, 1))
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        out: Tensor = self.leave(hidden.mean(1))
        return out


def test_activation_checkpointing_does_not_change_the_plan() -> None:
    model = Transformer("alibi")
    checkpoint_blocks(model)
    assert row_layers(find_plan(model, 2, DIGITS)) == {"blocks.0.down", "blocks.1.down"}
    assert row_layers(find_plan(Recomputed("alibi"), 2, DIGITS)) == {"blocks.0.down", "blocks.1.down"}
    assert len(row_layers(find_plan(Recomputed(), 2, DIGITS))) == 4


def test_a_zero_initialized_bias_hides_no_error() -> None:
    """What is divided by the sum of its own bias, say, would be 0 = 0."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)
            nn.init.zeros_(self.second.weight)
            nn.init.zeros_(self.first.bias)
            self.pipeline_units = lambda: [("first", self.first), ("second", self.second)]

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.first(inputs.flatten(1))
            out: Tensor = self.second(hidden * hidden.amax(-1, keepdim=True))
            return out

    with pytest.raises(ModelError, match="a maximum"):
        find_plan(Gated(), 2, DIGITS)


def test_the_plan_check_leaves_the_model_unchanged() -> None:
    model = Transformer()
    model.leave = nn.Sequential(nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 10))
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    plan = find_plan(model, 2, DIGITS)
    assert len(row_layers(plan)) == 4 and not model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.blocks[0].attention.n_heads == 4 and not model.blocks[0].up._forward_hooks


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_valid_plan_splits_over_any_number_of_ranks(num_ranks: int) -> None:
    gpt = Gpt(vocabulary=64, layers=1, heads=8, width=32, context=8, dropout=0.1, tied=True)
    assert len(find_plan(gpt, num_ranks, TOKENS).layers) == 8
    if num_ranks < 8:
        assert len(row_layers(find_plan(BareBlocks(), num_ranks, DIGITS))) == 4
