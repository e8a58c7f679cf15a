"""What a forward changes beside gradients: counters, running means, teachers, banks, in buffers and in
Python's own attributes.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.models.plain import WIDTH, layers
from tests.zoo.registry import model


class Warming(nn.Module):
    """What it gives grows with how many forwards there were: a counter in a buffer, or in an attribute."""

    def __init__(self, *, in_buffer: bool) -> None:
        super().__init__()
        self.in_buffer = in_buffer
        self.enter, self.net = nn.Linear(FEATURES, WIDTH), nn.Sequential(*layers(5, first=WIDTH))
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))
        self.num_forwards = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.forwards += self.in_buffer
            self.num_forwards += not self.in_buffer
        done = self.forwards if self.in_buffer else self.num_forwards
        return self.net(self.enter(inputs)) * (done / 4)


@model("classes")
def counter_buffer() -> nn.Module:
    return Warming(in_buffer=True)


@model("classes")
def counter_attribute() -> nn.Module:
    return Warming(in_buffer=False)


@model("classes", accumulate=2)
def counter_in_parts() -> nn.Module:
    return Warming(in_buffer=True)


class Counting(nn.Module):
    """Counts how many samples it was trained with; nothing depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5))
        self.register_buffer("samples", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.samples += len(inputs)
        return self.net(inputs)


@model("classes")
def sample_counter() -> nn.Module:
    return Counting()


class RunningMean(nn.Module):
    """Subtracts a running mean of the inputs, which the forward brings up to date before it is used."""

    def __init__(self, *, in_buffer: bool) -> None:
        super().__init__()
        self.in_buffer = in_buffer
        self.net = nn.Sequential(*layers(5))
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.seen = torch.zeros(FEATURES)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.in_buffer:
            if self.training:
                self.mean.lerp_(inputs.mean(0), 0.1)
            return self.net(inputs - self.mean)
        if self.training:
            self.seen = 0.9 * self.seen.to(inputs) + 0.1 * inputs.detach().mean(0)
        return self.net(inputs - self.seen.to(inputs))


@model("classes")
def running_mean_buffer() -> nn.Module:
    return RunningMean(in_buffer=True)


@model("classes")
def running_mean_attribute() -> nn.Module:
    return RunningMean(in_buffer=False)


class InBlocks(nn.Module):
    """A row of blocks, each of which watches how large its outputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(Watching() for _ in range(5))
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.leave(hidden)


class Watching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("size", torch.ones(()))

    def forward(self, hidden: Tensor) -> Tensor:
        made = self.layer(hidden)
        if self.training:
            self.size.mul_(0.9).add_(0.1 * made.detach().square().mean())
        return hidden + made.tanh() / (self.size + 0.1).sqrt()


@model("classes")
def blocks_that_watch_their_size() -> nn.Module:
    return InBlocks()


class Teacher(nn.Module):
    """A slow copy of the net, brought up to date in each forward, whose answers are looked at too."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(4, last=8))
        self.slow = copy.deepcopy(self.net).requires_grad_(False)
        self.before = before

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and self.before:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                    slow.lerp_(fast, 0.3)
        return self.net(left), self.slow(right).detach()


@model("pairs", "contrastive_margin")
def averaged_teacher() -> nn.Module:
    return Teacher(before=True)


@model("pairs", "contrastive_margin")
def frozen_teacher() -> nn.Module:
    return Teacher(before=False)


class Averaged(nn.Module):
    """Averages of its own weights in buffers, of how they were in each forward; they are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5))
        for index, weight in enumerate(self.net.parameters()):
            self.register_buffer(f"mean{index}", weight.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for index, weight in enumerate(self.net.parameters()):
                    getattr(self, f"mean{index}").lerp_(weight, 0.2)
        return self.net(inputs)


@model("classes")
def weight_averages() -> nn.Module:
    return Averaged()


class Bank(nn.Module):
    """A queue of the codes of the last batches; each sample is compared with all of them (MoCo)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(4, last=8))
        self.register_buffer("queue", F.normalize(torch.randn(24, 8), dim=1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        query, key = F.normalize(self.net(left), dim=1), F.normalize(self.net(right), dim=1).detach()
        own = (query * key).sum(1, keepdim=True)
        scores = torch.cat([own, query @ self.queue.clone().T], 1) / 0.3
        loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
        if self.training:
            places = (self.at + torch.arange(len(key))) % len(self.queue)
            self.queue[places] = key
            self.at.copy_((self.at + len(key)) % len(self.queue))
        return {"loss": loss, "count": torch.tensor(len(scores))}


class Unlabelled(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        return self.net(x, x.flip(1))


@model("dict_without_labels", "model")
def memory_bank() -> nn.Module:
    return Unlabelled(Bank())


class Centres(nn.Module):
    """The centre of each class is a buffer, and outputs are how near they are; batches move the centres."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5, last=6))
        self.register_buffer("centres", torch.randn(CLASSES, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        code = self.net(inputs)
        near = -(code[:, None] - self.centres).square().sum(2)
        if self.training:
            with torch.no_grad():
                shares = (near.softmax(1) / near.softmax(1).sum(0)).T
                self.centres = 0.8 * self.centres + 0.2 * shares @ code
        return near


@model("classes")
def moving_centres() -> nn.Module:
    return Centres()


class FromBefore(nn.Module):
    """The mean of the last batch's outputs, kept outside of state_dict, goes into the next batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5))
        self.register_buffer("before", torch.zeros(CLASSES), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        out = self.net(inputs) + self.before
        if self.training:
            self.before = out.detach().mean(0)
        return out


@model("classes")
def last_mean_not_saved() -> nn.Module:
    return FromBefore()


class Annealed(nn.Module):
    """Only the first two forwards train the first layer: then it is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.side = nn.Sequential(*layers(4)), nn.Linear(FEATURES, CLASSES)
        self.forwards = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.forwards += self.training
        out = self.net(inputs)
        return out + self.side(inputs) if self.forwards <= 2 else out


@model("classes")
def branch_that_ends_after_two_forwards() -> nn.Module:
    return Annealed()


class Kept(nn.Module):
    """Keeps its last activations for others to look at; a part of the loss is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Sequential(*layers(4, last=WIDTH), nn.Tanh()), nn.Linear(WIDTH, CLASSES)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        self.kept = self.net(x)
        loss = F.cross_entropy(self.head(self.kept), y) + 0.1 * self.kept.square().mean()
        return {"loss": loss, "count": torch.tensor(len(x))}


@model("dict_without_labels", "model")
def activations_in_attribute() -> nn.Module:
    return Kept()


class Scaled(nn.Module):
    """Gradients pass hooks: of a weight, which halves them, and of an activation, which bounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Sequential(*layers(4, last=WIDTH), nn.Tanh()), nn.Linear(WIDTH, CLASSES)
        self.net[0].weight.register_hook(lambda gradient: gradient / 2)
        self.head.weight.register_hook(lambda gradient: gradient * 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.net(inputs))


@model("classes")
def gradient_hooks() -> nn.Module:
    return Scaled()


class Bounded(nn.Module):
    """Bounds what flows back for each sample by its own norm."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Sequential(*layers(4, last=WIDTH)), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.net(inputs)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / (1 + gradient.norm(dim=1, keepdim=True)))
        return self.head(hidden)


@model("classes")
def gradient_bounded_by_hook() -> nn.Module:
    """The size of a gradient before it is divided by the count: what it is a sum of decides."""
    return Bounded()
