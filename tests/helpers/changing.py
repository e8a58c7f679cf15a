"""Models whose forwards change state: digits (B, 1, 8, 8) -> logits (B, 10), in units of a Sequential."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from tests.helpers.rank_main import train_once


class CountingBuffer(nn.Module):
    """Scales by the number of forwards, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return inputs * (1 + self.steps / 10)


class CountingAttribute(nn.Module):
    """The same with an int, a tensor and a row of numbers that are plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.decay = 0, torch.ones(3)
        self.last: deque[int] = deque([0], maxlen=2)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.last.append(self.last[-1] + 1)
            self.decay *= 0.9
        return inputs * (1 + self.steps / 10) * self.decay.mean() * (1 + self.last[0] / 10)


class RunningMean(nn.Module):
    """Takes away the mean of earlier batches: an average that is linear in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.level = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs - self.mean - self.level
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
            self.level = 0.9 * self.level + 0.1 * inputs.detach().mean().item()
        return outputs


class Teacher(nn.Module):
    """A layer and its moving average, which takes part."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(64, 64), nn.Linear(64, 64)
        self.teacher.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.teacher.weight.data.lerp_(self.student.weight.data, 0.1)
        out: Tensor = self.student(inputs) + self.teacher(inputs)
        return out


class Samples(nn.Module):
    """A bank of the last samples with a pointer, and how many there have been."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(64, 64))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.num_samples = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            at, num = int(self.pointer), len(inputs)
            self.bank[at : at + num] = inputs.detach()
            self.pointer.copy_((at + num) % len(self.bank))
            self.num_samples += num
        return inputs


class Counted(nn.Module):
    """Counts samples in a buffer and in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.num_samples = 0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs * (1 + self.num_samples / 100)
        if self.training:
            self.total += len(inputs)
            self.num_samples += len(inputs)
        return outputs


class ActNorm(nn.Module):
    """Sets its weights by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.is_set = nn.Parameter(torch.zeros(64)), False

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not self.is_set:
            self.shift.data.copy_(-inputs.detach().mean(0))
            self.is_set = True
        return inputs + self.shift


class Weighted(nn.Linear):
    """A layer that scales by the number of its forwards, an attribute."""

    def __init__(self) -> None:
        super().__init__(64, 64)
        self.steps = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.steps += self.training
        return super().forward(inputs) * (1 + self.steps / 10)


class Again(nn.Module):
    """A counter in a block that is computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(CountingBuffer(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, inputs, use_reentrant=False)
        return out


UNITS: dict[str, Callable[[], nn.Module]] = {
    "counting_buffer": CountingBuffer,
    "counting_attribute": CountingAttribute,
    "running_mean": RunningMean,
    "teacher": Teacher,
    "samples": Samples,
    "counted": Counted,
    "act_norm": ActNorm,
    "again": Again,
    "weighted": Weighted,
    "spectral": lambda: spectral_norm(nn.Linear(64, 64)),
}


ALIKE = tuple(name for name in UNITS if name not in ("samples", "act_norm"))
"""Units whose state is one device's however a batch is cut."""


def model(units: Sequence[str]) -> nn.Module:
    """Each unit between layers of its own, so that a pipeline cuts between them."""
    layers = [nn.Sequential(UNITS[unit](), nn.Tanh(), nn.Linear(64, 64)) for unit in units]
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 64)), *layers, nn.Sequential(nn.Tanh(), nn.Linear(64, 10))
    )


class Row(nn.Module):
    """Units with weights in a forward that counts itself: cut by watching it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 64), nn.Linear(64, 10)
        self.layers = nn.ModuleList(
            UNITS[unit]() for unit in ("again", "spectral", "weighted", "teacher", "spectral")
        )
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += self.training
        hidden = self.enter(inputs.flatten(1)) * (1 + self.calls / 10)
        for layer in self.layers:
            hidden = layer(hidden).tanh()
        out: Tensor = self.leave(hidden)
        return out


def row() -> nn.Module:
    return Row()


def trained_without_state(toml: str, out: str) -> None:
    """A run of this rank in which nothing is found that a forward changes: a negative control."""
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    with mock.patch("rankdeck.parallel.state.forward.find_slots", lambda *_: {}):
        train_once({"toml": toml, "out": out}, rank, world_size)
