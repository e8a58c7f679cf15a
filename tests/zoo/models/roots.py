"""Parameters that the root owns and uses late, ties in functions, and paths that only training takes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.models.plain import WIDTH, layers
from tests.zoo.registry import model


class Row(nn.Module):
    """Six blocks in a list between a first and a last layer, for whatever comes around them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))
        self.leave = nn.Linear(WIDTH, CLASSES)

    def through(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def forward(self, inputs: Tensor) -> Tensor:
        return self.leave(self.through(self.enter(inputs)))


@model("classes")
def plain_row() -> nn.Module:
    return Row()


class Temperature(Row):
    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.log_temperature.exp()


@model("classes")
def late_temperature() -> nn.Module:
    return Temperature()


class LateBias(Row):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.bias


@model("classes")
def late_zero_bias() -> nn.Module:
    return LateBias()


class LateGate(Row):
    """A path past all blocks, which is shut at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        first = self.enter(inputs)
        return self.leave(self.through(first) + self.gate * first)


@model("classes")
def late_zero_gate() -> nn.Module:
    return LateGate()


class EarlyBias(Row):
    """Used before the first block: nothing is late."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.leave(self.through(self.enter(inputs) + self.bias))


@model("classes")
def early_zero_bias() -> nn.Module:
    return EarlyBias()


class InTheMiddle(Row):
    """A vector per block, all in one parameter of the root, zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = nn.Parameter(torch.zeros(6, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for block, shift in zip(self.blocks, self.shifts, strict=True):
            hidden = block(hidden) + shift
        return self.leave(hidden)


@model("classes")
def shifts_of_all_blocks_in_one() -> nn.Module:
    return InTheMiddle()


class ReZero(Row):
    """Each block is let in by a number of its own that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(6))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for block, share in zip(self.blocks, self.shares, strict=True):
            hidden = hidden + share * block(hidden)
        return self.leave(hidden)


@model("classes")
def shares_that_start_at_zero() -> nn.Module:
    return ReZero()


class Registers(Row):
    """A learnt direction that is added twice: before the blocks and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.through(self.enter(inputs) + self.direction)
        return self.leave(hidden - self.direction)


@model("classes")
def root_parameter_used_twice() -> nn.Module:
    return Registers()


class FirstWeightAgain(Row):
    """The first layer's weight is used by its tensor at the end."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed
        self.enter = nn.Linear(CLASSES if transposed else FEATURES, WIDTH)
        self.to_classes = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.transposed:
            hidden = self.through(self.enter(self.to_classes(inputs)))
            return F.linear(hidden, self.enter.weight.t())
        hidden = self.through(self.enter(inputs))
        return self.leave(hidden) + self.to_classes(hidden @ self.enter.weight)


@model("classes")
def first_weight_used_by_the_last() -> nn.Module:
    return FirstWeightAgain(transposed=False)


@model("classes")
def first_weight_transposed_as_last() -> nn.Module:
    return FirstWeightAgain(transposed=True)


class NeighbourWeights(Row):
    """Each block's weight is also added to the next one's: by its tensor."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for index, block in enumerate(self.blocks):
            before = self.blocks[index - 1][0].weight
            hidden = (block(hidden) + 0.1 * hidden @ before).tanh()
        return self.leave(hidden)


@model("classes")
def weights_of_the_block_before() -> nn.Module:
    return NeighbourWeights()


class TrainingSkip(Row):
    """`kind`: what only training has: a skip past all blocks, a gate, a noise that is always the same."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.aux = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        first = self.enter(inputs)
        last = self.through(first)
        if not self.training:
            return self.leave(last)
        if self.kind == "skip":
            return self.leave(last + first)
        if self.kind == "gate":
            return self.leave(last * first.sigmoid())
        return self.leave(last) + self.aux(first)


@model("classes")
def skip_in_training_only() -> nn.Module:
    return TrainingSkip("skip")


@model("classes")
def gate_in_training_only() -> nn.Module:
    return TrainingSkip("gate")


@model("classes")
def aux_head_in_training_only() -> nn.Module:
    return TrainingSkip("aux")


class LayerDrop(Row):
    """In training each third block is left out: another model than in evaluation."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for index, block in enumerate(self.blocks):
            if not (self.training and index % 3 == 1):
                hidden = block(hidden)
        return self.leave(hidden)


@model("classes")
def blocks_left_out_in_training() -> nn.Module:
    return LayerDrop()


class StopsGradient(Row):
    """The value of a skip without its gradient: forward and backward are of two different models."""

    def forward(self, inputs: Tensor) -> Tensor:
        first = self.enter(inputs)
        last = self.through(first)
        return self.leave(last + (first - first.detach()) + 0.0 * last)


@model("classes")
def straight_through_past_all_blocks() -> nn.Module:
    """In the forward nothing seems to pass the blocks: only gradients do."""
    return StopsGradient()


class DetachedSkip(Row):
    def forward(self, inputs: Tensor) -> Tensor:
        first = self.enter(inputs)
        return self.leave(self.through(first) + first.detach())


@model("classes")
def skip_without_gradient() -> nn.Module:
    return DetachedSkip()


class InputAgain(Row):
    """What the model was given is used again by its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.past = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.past(inputs)


@model("classes")
def input_used_by_the_last() -> nn.Module:
    return InputAgain()


class OfLength(Row):
    """How many samples a forward has is a number in it."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.through(self.enter(inputs))
        return self.leave(hidden) * (inputs.shape[0] / 16) ** 0.5


@model("classes")
def number_of_samples_in_forward() -> nn.Module:
    return OfLength()


class ByAttribute(Row):
    """A block leaves something in an attribute, and the last layer reads it there."""

    def __init__(self) -> None:
        super().__init__()
        self.left: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for index, block in enumerate(self.blocks):
            hidden = block(hidden)
            if index == 1:
                self.left = hidden
        return self.leave(hidden + self.left)


@model("classes")
def handed_on_by_an_attribute() -> nn.Module:
    return ByAttribute()


class Penalised(Row):
    """A part of the loss is the size of the first block's weight: no sample is in it."""

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        loss = F.cross_entropy(super().forward(x), y) + 0.1 * self.blocks[0][0].weight.square().sum()
        return {"loss": loss, "count": torch.tensor(len(x))}


@model("dict_without_labels", "model")
def penalty_on_a_weight() -> nn.Module:
    return Penalised()


@model("classes")
def late_scale_in_sequential() -> nn.Module:
    """As a row of modules, with a module for what else is a root's parameter."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(CLASSES))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * (1 + self.scale)

    return nn.Sequential(*layers(5), Scale())
