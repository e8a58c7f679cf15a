"""Bytes by module are those of the tensors that each module holds, each storage once."""

from __future__ import annotations

import torch
from torch import nn

from rankdeck.memory.by_module import count_by_module, failing_module, merge_modules, strip_wrappers
from tests.helpers.hungry import hungry

FLOAT = 4


def weights(inputs: int, outputs: int) -> int:
    return FLOAT * (inputs * outputs + outputs)


def test_each_module_has_its_weights_gradients_and_momentum() -> None:
    model = hungry()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = count_by_module(model, optimizer)
    assert before == {
        "1": {"parameters": weights(64, 32)},
        "2.inner": {"parameters": weights(32, 32)},
        "3": {"parameters": weights(32, 10)},
    }
    model(torch.randn(4, 1, 8, 8)).sum().backward()
    optimizer.step()
    after = count_by_module(model, optimizer)
    assert list(after) == ["1", "2.inner", "3"], "the largest first"
    for name, kinds in before.items():
        size = kinds["parameters"]
        assert after[name] == {"parameters": size, "gradients": size, "optimizer": size}
    assert count_by_module(model, optimizer, torch.device("meta")) == {}


def test_a_tied_weight_counts_once_and_buffers_are_listed() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False), nn.BatchNorm1d(10))
    model[1].weight = model[0].weight
    counts = count_by_module(model, None)
    assert counts["0"] == {"parameters": 160} and "1" not in counts
    assert counts["2"] == {"parameters": 80, "buffers": 80 + 8}


def test_module_names_have_no_wrappers_and_are_merged() -> None:
    assert strip_wrappers("module.blocks.3._checkpoint_wrapped_module.mlp") == "blocks.3.mlp"
    deep = {f"blocks.{block}.mlp.{layer}": {"parameters": 1} for block in range(8) for layer in range(4)}
    assert merge_modules(deep, 8) == {f"blocks.{block}.mlp": {"parameters": 4} for block in range(8)}
    assert merge_modules(deep, 3) == {"blocks": {"parameters": 32}}
    assert merge_modules({}, 3) == {}


def test_the_innermost_failing_module_is_named() -> None:
    model = hungry(at=1)
    try:
        model(torch.randn(4, 1, 8, 8))
    except RuntimeError as error:
        assert failing_module(error, model) == "2 (Hungry)"
        assert failing_module(error, nn.Linear(1, 1)) is None, "of another model"
    else:
        raise AssertionError("it had room")
