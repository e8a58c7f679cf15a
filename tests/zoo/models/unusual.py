"""Parameters of unusual kinds: of two parts, in another order in memory, owned by no layer, of no dims;
hooks, functions and random numbers of a model's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.models.plain import WIDTH, layers
from tests.zoo.registry import model


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Linear(8, WIDTH, dtype=torch.complex64),
            nn.Linear(WIDTH, 8, dtype=torch.complex64),
        )
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, signal: Tensor) -> Tensor:
        hidden = self.one(signal.to(self.one.weight.dtype))
        size = hidden.abs() + 1e-3
        return self.two(hidden * (self.scale * size.tanh() / size))


@model("signals", "complex_squares", optimizer={"use": "sgd", "lr": 0.1})
def complex_net() -> nn.Module:
    return Complex()


class Spectrum(nn.Module):
    """Real in and out, with a filter of complex numbers in between."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(FEATURES // 2 + 1, dtype=torch.complex64))
        self.net = nn.Sequential(*layers(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(torch.fft.irfft(torch.fft.rfft(inputs) * self.filter, FEATURES))


@model("classes", optimizer={"use": "sgd", "lr": 0.1})
def spectral_filter() -> nn.Module:
    return Spectrum()


class Owned(nn.Module):
    """Weights that no layer holds."""

    def __init__(self, *, turned: bool = False) -> None:
        super().__init__()
        one, two = torch.randn(WIDTH, FEATURES) / 4, torch.randn(CLASSES, WIDTH) / 4
        if turned:  # the same numbers, column by column in memory
            one, two = one.t().contiguous().t(), two.t().contiguous().t()
        self.one, self.two = nn.Parameter(one), nn.Parameter(two)
        self.bias, self.scale = nn.Parameter(torch.zeros(CLASSES)), nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(F.linear(inputs, self.one).tanh(), self.two, self.bias) * self.scale


@model("classes")
def weights_of_the_root() -> nn.Module:
    return Owned()


@model("classes")
def turned_weights() -> nn.Module:
    return Owned(turned=True)


@model("classes")
def turned_layers() -> nn.Module:
    made = nn.Sequential(*layers(5))
    for index in (0, 2, 4):
        weight = made[index].weight
        made[index].weight = nn.Parameter(weight.detach().t().contiguous().t())
    return made


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ParameterList(nn.Parameter(torch.randn(FEATURES, FEATURES) / 6) for _ in range(4))
        self.by_name = nn.ParameterDict({"out": nn.Parameter(torch.randn(CLASSES, FEATURES) / 4)})

    def forward(self, inputs: Tensor) -> Tensor:
        for step in self.steps:
            inputs = inputs + (inputs @ step).tanh()
        return F.linear(inputs, self.by_name["out"])


@model("classes")
def lists_of_parameters() -> nn.Module:
    return Lists()


class OfNoDims(nn.Module):
    """A number per layer, an empty parameter, one that is never trained, and one of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5))
        self.scale, self.empty = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(0))
        self.fixed = nn.Parameter(torch.tensor([2.0]), requires_grad=False)
        self.whole = nn.Parameter(torch.arange(FEATURES), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs[:, self.whole]) * self.scale * self.fixed + self.empty.sum()


@model("classes")
def parameters_of_no_dims() -> nn.Module:
    return OfNoDims()


@model("classes")
def one_row() -> nn.Module:
    """Layers of one output: fewer rows than ranks."""
    return nn.Sequential(nn.Linear(FEATURES, 1), nn.Tanh(), nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, CLASSES))


class Mixed(nn.Module):
    """One layer in fp64, in a model of fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.fine = (
            nn.Sequential(*layers(4, last=WIDTH)),
            nn.Linear(WIDTH, CLASSES, dtype=torch.float64),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fine(self.net(inputs).double())


@model("classes")
def mixed_precision_parameters() -> nn.Module:
    return Mixed()


class HalfBuffer(nn.Module):
    """A buffer in 16 bits, and one of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5))
        self.register_buffer("table", torch.linspace(-1, 1, FEATURES).half())
        self.register_buffer("marks", torch.arange(FEATURES) % 2 == 0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(torch.where(self.marks, inputs, inputs + self.table.to(inputs)))


@model("classes")
def buffers_of_other_kinds() -> nn.Module:
    return HalfBuffer()


@model("classes")
def told_units() -> nn.Module:
    """A model that says its own stages."""

    class Saying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (
                nn.Sequential(*layers(4, last=WIDTH)),
                nn.Sequential(*layers(4, first=WIDTH)),
            )

        def pipeline_units(self) -> list[tuple[str, nn.Module]]:
            return [("first", self.first), ("second", self.second)]

        def forward(self, inputs: Tensor) -> Tensor:
            return self.second(self.first(inputs))

    return Saying()


class HandWritten(torch.autograd.Function):
    """A product whose gradient is its own."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradient @ weight.T, inputs.T @ gradient


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(4, last=WIDTH))
        self.last = nn.Parameter(torch.randn(WIDTH, CLASSES) / 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return HandWritten.apply(self.net(inputs), self.last)


@model("classes")
def own_autograd_function() -> nn.Module:
    return OwnFunction()


class Reused(nn.Module):
    """Checkpoints its blocks: their forward runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for block in self.blocks:
            hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False).tanh()
        return self.leave(hidden)


@model("classes")
def own_checkpoints() -> nn.Module:
    return Reused()


class SecondOrder(nn.Module):
    """A loss with the gradient of the outputs for the inputs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(3))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        x = x.clone().requires_grad_()
        with torch.enable_grad():
            logits = self.net(x)
            each = F.cross_entropy(logits, y, reduction="none")
            (slope,) = torch.autograd.grad(each.sum(), x, create_graph=True)
        return {"loss": each.mean() + slope.square().sum(1).mean(), "count": torch.tensor(len(x))}


@model("dict_without_labels", "model")
def gradient_penalty() -> nn.Module:
    return SecondOrder()


@model("classes")
def marked_parameters() -> nn.Module:
    """Parameters with attributes for an optimizer that asks for them."""
    made = nn.Sequential(*layers(5))
    for index, weight in enumerate(made.parameters()):
        weight._no_weight_decay = weight.ndim < 2
        weight._rate = 1.0 + index % 3
    return made


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(F.dropout(inputs, 0.3, self.training))


@model("classes", draws=True)
def functional_dropout() -> nn.Module:
    return Dropping()


@model("classes", draws=True)
def dropout() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.3), *layers(4))
