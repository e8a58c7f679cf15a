"""Models whose connections skip over modules: no row of units, so that stages are cut by tracing.

Digits (B, 1, 8, 8) -> logits (B, 10).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Twice(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(channels, width, 3, padding=1),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.batch_norm, self.group_norm = nn.BatchNorm2d(width), nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.group_norm(self.second(F.relu(self.batch_norm(self.first(x))))))


class UNet(nn.Module):
    """Down to 2 x 2 and up again, once by a transposed convolution and once by repeating."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = (
            _Twice(1, width),
            _Twice(width, 2 * width),
            _Twice(2 * width, 4 * width),
        )
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up1 = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, width, 1))
        self.join2, self.join1 = _Twice(4 * width, 2 * width), _Twice(2 * width, width)
        self.head = nn.Linear(64 * width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        first = self.down1(pixels.reshape(-1, 1, 8, 8))
        second = self.down2(self.pool(first))
        x = self.up2(self.bottom(self.pool(second)))
        x = self.up1(self.join2(torch.cat([x, second], 1)))
        logits: Tensor = self.head(self.join1(torch.cat([x, first], 1)).flatten(1))
        return logits


class ResidualMlp(nn.Module):
    """Each layer adds to what came in, and the last one to what came first."""

    def __init__(self, width: int = 64, layers: int = 6) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, width), nn.Linear(width, 10)
        self.ups = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, pixels: Tensor) -> Tensor:
        first = x = self.enter(pixels.flatten(1))
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(x)))
        logits: Tensor = self.leave(x + first)
        return logits


def unet() -> nn.Module:
    return UNet()


def residual_mlp() -> nn.Module:
    return ResidualMlp()
