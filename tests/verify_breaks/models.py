"""Models for breaks that no entry of the zoo shows. Ranks import this file as a person's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.registry import ADAMW, Entry

WIDTH = 16


class CutOff(nn.Module):
    """The first layers are looked at and not trained, which no weight says: they have no gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6))
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.enter(inputs))
        for index, block in enumerate(self.blocks):
            hidden = block(hidden.detach() if index == len(self.blocks) - 1 else hidden)
        return self.leave(hidden)


def cut_off_in_the_middle() -> nn.Module:
    return CutOff()


def mlp_on_digits() -> nn.Module:
    """On data of the engine's, which says beforehand how many targets there are."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10))


USER_MODELS = {
    "own/mlp_on_digits": Entry("own", "mlp_on_digits", f"{__name__}:mlp_on_digits", "digits"),
    "own/mlp_on_others_at_each_reading": Entry(
        "own",
        "mlp_on_others_at_each_reading",
        f"{__name__}:mlp_on_digits",
        "tests.helpers.own_data:own_generator",
    ),
    "own/cut_off_in_the_middle": Entry(
        "own",
        "cut_off_in_the_middle",
        f"{__name__}:cut_off_in_the_middle",
        "tests.zoo.data:classes",
        optimizer=ADAMW,
    ),
}
