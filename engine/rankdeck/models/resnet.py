"""Residual networks of depth 18, 34, 50 and 101: convolutions whose output is added to their input.

images (B, in_channels, H, W) -> conv1, bn1, relu, maxpool -> layer1..4, of which layer2..4 each halve the
height and width -> avgpool, flatten -> fc (B, classes). Modules have torchvision's names (layer2.0.conv1,
fc), so torchvision's weights for the same depth fit. Read base.py first. Source: He et al., "Deep Residual
Learning for Image Recognition" (2015).
"""

from __future__ import annotations

from torch import Tensor, nn

from rankdeck.base.errors import ModelError, format_choices
from rankdeck.base.phrases import phrase
from rankdeck.models.base import HasUnits, require_positive

LAYERS = ("layer1", "layer2", "layer3", "layer4")
WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions: (B, inputs, H, W) -> (B, width, H/stride, W/stride)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(inputs, width * self.expansion, stride)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(pictures)))
        hidden = self.bn2(self.conv2(hidden))
        out: Tensor = self.relu(hidden + self.downsample(pictures))
        return out


class Bottleneck(nn.Module):
    """A 1x1 convolution that reduces the channels, a 3x3 convolution, and a 1x1 convolution that expands the
    channels fourfold: (B, inputs, H, W) -> (B, 4 width, H/stride, W/stride)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(inputs, width * self.expansion, stride)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(pictures)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        out: Tensor = self.relu(hidden + self.downsample(pictures))
        return out


DEPTHS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


class Resnet(HasUnits):
    """Residual network: logits (B, classes) for images (B, in_channels, H, W).

    `stem` is "imagenet" (a 7x7 convolution with stride 2, then max-pooling; together they quarter height and
    width) or "small" (a 3x3 convolution that keeps the size) for small images. No ReLU is in-place: a
    pipeline stage may start with a ReLU and must not write to the tensor that it received.
    """

    unit_names = ("conv1", "bn1", "relu", "maxpool", *LAYERS, "avgpool", "flatten", "fc")

    def __init__(self, depth: int, classes: int, stem: str = "imagenet", in_channels: int = 3) -> None:
        super().__init__()
        block, counts = DEPTHS[depth]
        self.conv1, self.maxpool = _stem(stem, in_channels)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU()
        channels = WIDTHS[0]
        for layer, width, count in zip(LAYERS, WIDTHS, counts, strict=True):
            blocks = []
            for index in range(count):
                stride = 2 if layer != LAYERS[0] and index == 0 else 1
                blocks.append(block(channels, width, stride))
                channels = width * block.expansion
            # The usual names, so that published weights load.
            self.add_module(layer, nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = pictures
        for _, unit in self.pipeline_units():
            hidden = unit(hidden)
        return hidden


def build(*, classes: int, depth: int = 18, stem: str = "imagenet", in_channels: int = 3) -> Resnet:
    """Build the catalogue's `resnet`. `classes` and `in_channels` are derived from the data.

    Raises:
        ModelError: the depth or stem is unknown, or a count is below 1.
    """
    require_positive(classes=classes, in_channels=in_channels)
    if depth not in DEPTHS:
        raise ModelError(
            phrase("model.args.depth = {given} is not a ResNet depth.", given=repr(depth)),
            path="model.args.depth",
            advice=phrase("Use {known}.", known=format_choices(str(supported) for supported in DEPTHS)),
        )
    if stem not in ("imagenet", "small"):
        raise ModelError(
            phrase("model.args.stem = {given} is unknown.", given=repr(stem)),
            path="model.args.stem",
            advice=phrase('Use "imagenet" for large images, or "small" for images below 64 pixels.'),
        )
    return Resnet(depth, classes, stem, in_channels)


def _stem(stem: str, in_channels: int) -> tuple[nn.Conv2d, nn.Module]:
    if stem == "small":
        return nn.Conv2d(in_channels, WIDTHS[0], 3, padding=1, bias=False), nn.Identity()
    conv = nn.Conv2d(in_channels, WIDTHS[0], 7, stride=2, padding=3, bias=False)
    return conv, nn.MaxPool2d(3, stride=2, padding=1)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the residual shortcut: identity, or a 1x1 convolution if the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
