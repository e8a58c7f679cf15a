"""Structures of a batch keep their classes while their tensors are changed."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from rankdeck.parallel.pytree import map_tensors, split_batch, tensor_leaves


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclasses.dataclass(frozen=True, slots=True)
class WithSlots:
    left: Tensor
    right: int


@dataclasses.dataclass
class WithComputedField:
    left: Tensor
    mask: Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.mask = self.left > 0


ONES = torch.ones(3)
STRUCTURES = {
    "tuple": (ONES, 1),
    "list": [ONES, [ONES]],
    "dict": {"left": ONES, "right": "word"},
    "named tuple": Pair(ONES, Pair(ONES, None)),
    "ordered dict": OrderedDict(left=ONES),
    "output of Hugging Face": CausalLMOutput(logits=ONES),  # type: ignore[arg-type]
    "data class with slots": WithSlots(ONES, 1),
    "data class with a field of its own": WithComputedField(ONES),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_keeps_its_class(name: str) -> None:
    value = STRUCTURES[name]
    doubled = map_tensors(value, lambda tensor: tensor * 2)
    assert type(doubled) is type(value)
    assert len(tensor_leaves(doubled)) == len(tensor_leaves(value)) > 0
    assert tensor_leaves(doubled)[0].tolist() == [2.0, 2.0, 2.0]
    assert tensor_leaves(value)[0].tolist() == [1.0, 1.0, 1.0], "the other is left alone"


def test_named_tuples_and_dataclasses_are_split_the_same_way() -> None:
    first, second = split_batch((Pair(ONES, ONES), WithComputedField(ONES)), 2, 3)
    assert [tensor.shape[0] for tensor in tensor_leaves(first)] == [2, 2, 2, 2]
    assert [tensor.shape[0] for tensor in tensor_leaves(second)] == [1, 1, 1, 1]
    assert first[0].left.shape == (2,) and second[1].mask.all()
