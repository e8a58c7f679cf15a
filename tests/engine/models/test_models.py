"""Ready models: shapes, units that equal the forward, and arguments that are refused with words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.models import gpt, mlp, resnet

CASES: dict[str, tuple[Any, dict[str, Any], Tensor, tuple[int, ...]]] = {
    "mlp": (mlp.build, {"inputs": 64, "classes": 10, "hidden": [32, 16]}, torch.rand(3, 1, 8, 8), (3, 10)),
    "mlp-without-hidden": (
        mlp.build,
        {"inputs": 64, "classes": 10, "hidden": []},
        torch.rand(3, 1, 8, 8),
        (3, 10),
    ),
    "gpt": (
        gpt.build,
        {"vocabulary": 50, "layers": 2, "heads": 2, "width": 16, "context": 12},
        torch.randint(50, (3, 12)),
        (3, 12, 50),
    ),
    "gpt-tied": (
        gpt.build,
        {"vocabulary": 50, "layers": 2, "heads": 2, "width": 16, "context": 12, "tied": True},
        torch.randint(50, (3, 9)),
        (3, 9, 50),
    ),
    "resnet18-small": (
        resnet.build,
        {"classes": 7, "depth": 18, "stem": "small", "in_channels": 1},
        torch.rand(2, 1, 8, 8),
        (2, 7),
    ),
    "resnet50": (resnet.build, {"classes": 7, "depth": 50}, torch.rand(2, 3, 64, 64), (2, 7)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, tuple[int, ...]]:
    build, args, inputs, shape = CASES[request.param]
    torch.manual_seed(0)
    return build(**args), inputs, shape


def test_logits_have_one_row_per_sample(case: tuple[nn.Module, Tensor, tuple[int, ...]]) -> None:
    model, inputs, shape = case
    assert model(inputs).shape == shape


def test_units_in_order_equal_the_forward(case: tuple[nn.Module, Tensor, tuple[int, ...]]) -> None:
    model, inputs, _ = case
    model.eval()
    hidden = inputs
    for _, unit in model.pipeline_units():
        hidden = unit(hidden)
    assert torch.equal(hidden, model(inputs))


def test_units_are_named_by_their_path_and_hold_every_weight(
    case: tuple[nn.Module, Tensor, tuple[int, ...]],
) -> None:
    model, _, _ = case
    names = set()
    for name, unit in model.pipeline_units():
        assert model.get_submodule(name) is unit
        names |= {f"{name}.{weight}" for weight in unit.state_dict()}
    assert names == set(model.state_dict())
    assert all(block in list(model.modules()) for block in model.repeated_blocks())


@pytest.mark.parametrize("name", CASES)
def test_models_can_be_built_on_meta(name: str) -> None:
    build, args, _, _ = CASES[name]
    with torch.device("meta"):
        model = build(**args)
    assert all(weight.is_meta for weight in model.parameters())


def test_resnet_sizes_are_the_published_ones() -> None:
    published = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160}
    for depth, count in published.items():
        with torch.device("meta"):
            model = resnet.build(classes=1000, depth=depth)
        assert sum(weight.numel() for weight in model.parameters()) == count


def test_gpt_is_causal() -> None:
    torch.manual_seed(0)
    model = gpt.build(vocabulary=20, layers=2, heads=2, width=16, context=8).eval()
    tokens = torch.randint(20, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 20
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_gpt_starts_near_a_uniform_guess() -> None:
    torch.manual_seed(0)
    model = gpt.build(vocabulary=256)
    tokens = torch.randint(256, (4, 64))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), torch.randint(256, (4 * 64,)))
    assert abs(loss.item() - 5.545) < 0.1


def test_tied_weights_are_one_tensor_and_untied_are_two() -> None:
    args = {"vocabulary": 20, "layers": 1, "heads": 1, "width": 8, "context": 4}
    tied, untied = gpt.build(**args, tied=True), gpt.build(**args)
    assert tied.head.output.weight is tied.embed.token.weight
    assert untied.head.output.weight is not untied.embed.token.weight


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model = gpt.build(vocabulary=20, layers=1, heads=1, width=8, context=4, dropout=0.5)
    tokens = torch.randint(20, (2, 4))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("build", "args", "path", "advice"),
    [
        (
            gpt.build,
            {"vocabulary": 9, "heads": 5, "width": 64},
            "model.args.heads",
            "Set model.args.heads to one of 1, 2, 4, 8, 16, 32",
        ),
        (gpt.build, {"vocabulary": 9, "layers": 0}, "model.args.layers", "an integer such as 1, 2 or 128"),
        (gpt.build, {"vocabulary": 9, "dropout": 1.0}, "model.args.dropout", "0.1"),
        (
            mlp.build,
            {"inputs": 4, "classes": 2, "hidden": [3, -1]},
            "model.args.hidden[1]",
            "an integer such as 1, 2 or 128",
        ),
        (resnet.build, {"classes": 2, "depth": 20}, "model.args.depth", "18, 34, 50 or 101"),
        (resnet.build, {"classes": 2, "stem": "big"}, "model.args.stem", '"small"'),
    ],
)
def test_bad_arguments_are_refused_with_path_and_advice(
    build: Any, args: dict[str, Any], path: str, advice: str
) -> None:
    with pytest.raises(ModelError) as caught:
        build(**args)
    assert caught.value.problem.path == path
    assert advice in (caught.value.advice or "")


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    model = gpt.build(vocabulary=9, layers=1, heads=1, width=8, context=4)
    with pytest.raises(ModelError, match=r"longer than model.args.context = 4"):
        model(torch.zeros(1, 5, dtype=torch.long))
