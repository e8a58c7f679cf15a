"""A deep copy of a module is what `copy.deepcopy` makes of it, but for tensors that are given."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from rankdeck.torch_compat.modules import deep_copy


class UnusualModule(nn.Module):
    """Attributes of many kinds, some of them in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.again = self.first
        self.seen: dict[str, Any] = {}
        self.first.seen = self.seen
        self.history = [self.seen, {"of": self.first}]
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_forward_hook(self.note)

    def note(self, _module: nn.Module, _inputs: object, _output: object) -> None:
        self.seen["called"] = self.seen.get("called", 0) + 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs))


class Tied(nn.Module):
    """Takes a weight of another module out of its state, whoever is copied first."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.tables = [table]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.weight_of_table = self.tables[0].weight


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4)
        self.blocks = nn.Sequential(nn.ReLU(), Tied(self.table), nn.ReLU())
        self.blocks[2]._forward_hooks = self.blocks[0]._forward_hooks


class CustomDeepcopy(nn.Linear):
    """Says itself how it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> CustomDeepcopy:
        copied = CustomDeepcopy(self.in_features, self.out_features)
        copied.load_state_dict(self.state_dict())
        copied.was_copied = True
        return copied


class Stateful(nn.Linear):
    """Leaves out of its state what cannot be copied."""

    lock: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "lock"}


def make_stateful() -> nn.Module:
    module = Stateful(4, 4)
    module.lock = iter(())  # no generator can be copied
    return nn.Sequential(module, module)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "odd": UnusualModule,
    "embedded": Embedded,
    "own": lambda: nn.Sequential(
        CustomDeepcopy(4, 4), nn.ModuleDict({"inner": nn.ModuleList([CustomDeepcopy(4, 4)])})
    ),
    "stateful": make_stateful,
    "parametrized": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4))),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(4)),
    "recurrent": lambda: nn.GRU(4, 4, num_layers=2),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "scripted": lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 4))),
    "a graph": lambda: nn.Sequential(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))),
}


def describe_value(value: Any, indices: dict[int, Any] | None = None) -> Any:
    """A value as plain data: which objects are one is part of it."""
    indices = {} if indices is None else indices
    if isinstance(value, nn.Module | dict | list | set | torch.Tensor):
        if id(value) in indices:
            return ("again", indices[id(value)])
        indices[id(value)] = len(indices)
    match value:
        case torch.jit.ScriptModule():
            return type(value).__name__, [*value.state_dict()]
        case nn.Module():
            return type(value).__qualname__, describe_value(vars(value), indices)
        case dict():
            return type(value), [(name, describe_value(item, indices)) for name, item in value.items()]
        case list():
            return [describe_value(item, indices) for item in value]
        case torch.nn.parameter.UninitializedTensorMixin():
            return type(value)
        case torch.Tensor():
            return type(value), value.requires_grad, value.tolist()
        case _:
            return type(value)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_copy_equals_the_deepcopy_of_python(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    before = describe_value(model)
    assert describe_value(deep_copy(model, {})) == describe_value(copy.deepcopy(model)), name
    assert describe_value(model) == before


def test_only_given_values_are_shared() -> None:
    model = UnusualModule()
    copied = deep_copy(model, {id(model.first.weight): model.first.weight})
    assert copied.first.weight is model.first.weight is copied.second.weight
    assert copied.first.bias is not model.first.bias
    copied.register_forward_pre_hook(lambda *_: None)
    copied.first.register_buffer("own", torch.ones(1))
    assert not model._forward_pre_hooks and "own" not in dict(model.named_buffers())
    assert copied.again is copied.first and copied.seen is copied.first.seen is copied.history[0]
    copied(torch.zeros(1, 4))
    assert copied.seen == {"called": 1} and model.seen == {}
    assert isinstance(copied._forward_pre_hooks, OrderedDict)


def test_autograd_results_are_copied_detached() -> None:
    model = nn.Sequential(prune.random_unstructured(nn.Linear(4, 4), "weight", amount=0.5))
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    copied = deep_copy(model, {})
    assert copied[0].weight.is_leaf and torch.equal(copied[0].weight, model[0].weight)
