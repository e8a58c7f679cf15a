"""Structures of a batch keep their classes while their tensors are changed."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from rankdeck.parallel.nested import cut_batch, each_tensor, tensors_of


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    left: Tensor
    right: int


@dataclasses.dataclass
class Masked:
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
    "data class with slots": Slotted(ONES, 1),
    "data class with a field of its own": Masked(ONES),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_keeps_its_class(name: str) -> None:
    value = STRUCTURES[name]
    doubled = each_tensor(value, lambda tensor: tensor * 2)
    assert type(doubled) is type(value)
    assert len(tensors_of(doubled)) == len(tensors_of(value)) > 0
    assert tensors_of(doubled)[0].tolist() == [2.0, 2.0, 2.0]
    assert tensors_of(value)[0].tolist() == [1.0, 1.0, 1.0], "the other is left alone"


def test_parts_of_a_named_tuple_and_of_a_data_class_are_cut_alike() -> None:
    first, second = cut_batch((Pair(ONES, ONES), Masked(ONES)), 2, 3)
    assert [tensor.shape[0] for tensor in tensors_of(first)] == [2, 2, 2, 2]
    assert [tensor.shape[0] for tensor in tensors_of(second)] == [1, 1, 1, 1]
    assert first[0].left.shape == (2,) and second[1].mask.all()
