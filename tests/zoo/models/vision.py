"""Pictures: convolutions with skips, gates and pools, U-Net, detection heads, patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import CLASSES
from tests.zoo.registry import model


@model("images")
def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


class OfBytes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = conv()

    def forward(self, pictures: Tensor) -> Tensor:
        return self.net(pictures.to(self.net[0].weight.dtype) / 255)


@model("byte_images")
def conv_bytes() -> nn.Module:
    return OfBytes()


class Block(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        self.one = nn.Conv2d(width // stride, width, 3, stride, 1)
        self.two = nn.Conv2d(width, width, 3, 1, 1)
        self.past = nn.Conv2d(width // stride, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.two(self.one(inputs).relu()) + self.past(inputs)).relu()


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.layer1, self.layer2 = nn.Sequential(Block(8), Block(8)), nn.Sequential(Block(16, 2), Block(16))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layer2(self.layer1(self.stem(inputs).relu()))
        return self.fc(F.adaptive_avg_pool2d(hidden, 1).flatten(1))


@model("images")
def resnet() -> nn.Module:
    return ResNet()


class UNet(nn.Module):
    """What each level made on the way down is used on the way up."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 12, 3, 2, 1)
        self.bottom = nn.Conv2d(12, 12, 3, 2, 1)
        self.up2, self.up1 = nn.ConvTranspose2d(12, 12, 2, 2), nn.ConvTranspose2d(24, 6, 2, 2)
        self.out = nn.Conv2d(12, outputs, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        first = self.down1(inputs).relu()
        second = self.down2(first).relu()
        up = torch.cat([self.up2(self.bottom(second).relu()).relu(), second], 1)
        return self.out(torch.cat([self.up1(up).relu(), first], 1))


@model("segmentation", "pixels")
def unet() -> nn.Module:
    return UNet(3)


class Detector(nn.Module):
    """Two heads on one trunk, with queries that are the model's own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.queries = nn.Parameter(torch.randn(3, 16))
        self.classes, self.boxes = nn.Linear(16, CLASSES), nn.Linear(16, 4)

    def forward(self, pictures: Tensor) -> dict[str, Tensor]:
        places = self.trunk(pictures).flatten(2).transpose(1, 2)
        looks = (self.queries @ places.transpose(1, 2)).softmax(-1) @ places
        return {"classes": self.classes(looks), "boxes": self.boxes(looks).sigmoid()}


@model("detection", "boxes_and_classes")
def detector() -> nn.Module:
    return Detector()


class Squeezed(nn.Module):
    """Channels are weighed by what the whole picture says."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 16, 3, padding=1)
        self.depth, self.point = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1)
        self.squeeze, self.excite = nn.Linear(16, 4), nn.Linear(4, 16)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.point(self.depth(self.stem(pictures).relu())).relu()
        weights = self.excite(self.squeeze(hidden.mean((2, 3))).relu()).sigmoid()
        return self.out((hidden * weights[:, :, None, None]).mean((2, 3)))


@model("images")
def squeeze_and_excite() -> nn.Module:
    return Squeezed()


@model("images")
def channels_last_conv() -> nn.Module:
    """Weights whose numbers lie in another order in memory."""
    return conv().to(memory_format=torch.channels_last)


class Patches(nn.Module):
    """A class token and places are parameters of the root, and both start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 16, 4, 4)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.zeros(1, 5, 16))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(4)
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.patch(pictures).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(hidden), -1, -1), hidden], 1) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden)[:, 0])


@model("images")
def vision_transformer() -> nn.Module:
    return Patches()


class AuxiliaryHead(nn.Module):
    """A second head in the middle, in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.aux, self.head = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        first = self.one(pictures).relu()
        out = self.head(self.two(first).relu().mean((2, 3)))
        return out + 0.3 * self.aux(first.mean((2, 3))) if self.training else out


@model("images")
def auxiliary_head() -> nn.Module:
    return AuxiliaryHead()
