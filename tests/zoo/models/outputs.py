"""What a model may return: dicts, dataclasses, named and nested tuples, a loss of its own, None beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.models.plain import WIDTH, layers
from tests.zoo.registry import model


@dataclass
class Answer:
    logits: Tensor
    hidden: Tensor | None = None


@dataclass
class WithLoss:
    loss: Tensor
    count: Any = None
    logits: Tensor | None = None


class Named(NamedTuple):
    logits: Tensor
    hidden: Tensor


class Answering(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.net, self.head = nn.Sequential(*layers(4, last=WIDTH), nn.Tanh()), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.net(inputs)
        logits = self.head(hidden)
        return {
            "dict": {"logits": logits, "hidden": hidden},
            "dataclass": Answer(logits, hidden),
            "dataclass with none": Answer(logits),
            "named": Named(logits, hidden),
            "nested": {"of": [logits, (hidden, {"twice": logits * 2})]},
            "list": [logits, hidden],
            "with numbers": {"logits": logits, "num": len(inputs), "name": "answer"},
            "none": (logits, None),
        }[self.kind]


@model("classes", "of_dict")
def returns_dict() -> nn.Module:
    return Answering("dict")


@model("classes", "of_attribute")
def returns_dataclass() -> nn.Module:
    return Answering("dataclass")


@model("classes", "of_attribute")
def returns_dataclass_with_none() -> nn.Module:
    return Answering("dataclass with none")


@model("classes", "of_attribute")
def returns_named_tuple() -> nn.Module:
    return Answering("named")


@model("classes", "of_nested")
def returns_nested() -> nn.Module:
    return Answering("nested")


@model("classes", "of_first")
def returns_list() -> nn.Module:
    return Answering("list")


@model("classes", "of_dict")
def returns_numbers_too() -> nn.Module:
    return Answering("with numbers")


@model("classes", "of_first")
def returns_none_too() -> nn.Module:
    return Answering("none")


class OwnLoss(nn.Module):
    """A loss of its own from a batch's dict. `says`: whether it names its count, as a number or a tensor."""

    def __init__(self, says: str, kind: type = dict) -> None:
        super().__init__()
        self.says, self.kind = says, kind
        self.net = nn.Sequential(*layers(5))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> Any:
        logits = self.net(x)
        found = {"loss": F.cross_entropy(logits, y), "logits": logits}
        if self.says == "number":
            found["count"] = len(x)
        elif self.says == "tensor":
            found["count"] = torch.tensor(len(x))
        elif self.says == "weights":
            each = F.cross_entropy(logits, y, reduction="none")
            found["loss"], found["count"] = (each * weight).sum() / weight.sum(), weight.sum()
        elif self.says == "of the batch":
            codes = F.normalize(logits, dim=1)
            same = (y[:, None] == y).to(codes.dtype)
            found["loss"] = ((codes @ codes.T - same).square()).mean()
        elif self.says == "of the batch with count":
            centred = logits - logits.mean(0)
            found |= {
                "loss": (centred.T @ centred / len(x) - torch.eye(CLASSES)).square().mean(),
                "count": len(x),
            }
        elif self.says == "root":
            found |= {"loss": F.mse_loss(logits, F.one_hot(y, CLASSES).to(logits)).sqrt(), "count": len(x)}
        return self.kind(**found)


@model("dict_without_labels", "model")
def own_loss_with_number() -> nn.Module:
    return OwnLoss("number")


@model("dict_without_labels", "model")
def own_loss_with_tensor() -> nn.Module:
    return OwnLoss("tensor")


@model("dict_without_labels", "model")
def own_loss_in_dataclass() -> nn.Module:
    return OwnLoss("tensor", WithLoss)


@model("dict_without_labels", "model")
def own_loss_weighted() -> nn.Module:
    return OwnLoss("weights")


@model("dict_without_labels", "model")
def own_loss_without_count() -> nn.Module:
    return OwnLoss("nothing")


@model("dict_without_labels", "model")
def own_loss_over_pairs_of_the_batch() -> nn.Module:
    """It ends in a mean, over pairs of samples."""
    return OwnLoss("of the batch")


@model("dict_without_labels", "model")
def own_loss_of_batch_statistics() -> nn.Module:
    return OwnLoss("of the batch with count")


@model("dict_without_labels", "model")
def own_loss_root_of_mean() -> nn.Module:
    return OwnLoss("root")


class Optional(nn.Module):
    """Arguments that the data does not have, and one that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.more = nn.Sequential(*layers(5)), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None, **rest: Any) -> Tensor:
        return self.net(x) + (0 if mask is None else self.more(x * mask))


@model("dict_without_labels", "of_weighted_dict", optimizer={"use": "adamw", "lr": 0.01, "weight_decay": 0.1})
def optional_arguments() -> nn.Module:
    return Optional()
