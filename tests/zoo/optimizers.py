"""Optimizers: torch's, and own ones as people write them, by how far each looks.

elementwise    what becomes of a number follows from its own past
per tensor     norms, rows and columns, blocks, orders within one tensor
global         norms, maxima and spikes over all tensors
by mark        position, size, shape, attributes of parameters
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.zoo.registry import optimizer

Params = Iterable[nn.Parameter]


class Plain(Optimizer):
    """What all of the own ones here share: a rate, a state per parameter, `change` per parameter."""

    def __init__(self, params: Params, lr: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        self.before()
        for group in self.param_groups:
            for index, weight in enumerate(group["params"]):
                if weight.grad is not None:
                    self.change(weight, weight.grad, self.state[weight], group, index)

    def before(self) -> None:
        """What is looked at over all gradients."""

    def change(
        self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any], index: int
    ) -> None:
        weight.sub_(grad, alpha=group["lr"])

    def gradients(self) -> list[Tensor]:
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]


def mean_of(state: dict[str, Any], name: str, value: Tensor, share: float = 0.1) -> Tensor:
    """A running mean that starts at zero."""
    if name not in state:
        state[name] = torch.zeros_like(value)
    mean: Tensor = state[name]
    return mean.lerp_(value, share)


# Elementwise.


class Lion(Plain):
    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        mean = state.setdefault("mean", torch.zeros_like(grad))
        weight.mul_(1 - group["lr"] * 0.1).sub_((0.9 * mean + 0.1 * grad + 1e-3).tanh(), alpha=group["lr"])
        mean.lerp_(grad, 0.01)


class Signs(Plain):
    """Only how a gradient points."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        weight.sub_(torch.where(grad.abs() > 1e-9, grad.sign(), torch.zeros_like(grad)), alpha=group["lr"])


class Kahan(Plain):
    """What rounding lost is kept for the next step."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        lost = state.setdefault("lost", torch.zeros_like(weight))
        step = -group["lr"] * grad - lost
        new = weight + step
        lost.copy_((new - weight) - step)
        weight.copy_(new)


class ScheduleFree(Plain):
    """Gradients are of one point, what is kept is the mean of all so far; `train` and `eval` turn them."""

    def __init__(self, params: Params, lr: float = 0.1) -> None:
        super().__init__(params, lr, turned="eval")

    def train(self) -> None:
        self._turn("train")

    def eval(self) -> None:
        self._turn("eval")

    @torch.no_grad()
    def _turn(self, mode: str) -> None:
        for group in self.param_groups:
            if group["turned"] != mode:
                for weight in group["params"]:
                    other = self.state[weight].get("other")
                    if other is not None:
                        kept = weight.clone()
                        weight.copy_(other)
                        other.copy_(kept)
            group["turned"] = mode

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        base = state.setdefault("base", weight.clone())
        mean = state.setdefault("other", weight.clone())
        state["steps"] = state.get("steps", 0) + 1
        base.sub_(grad, alpha=group["lr"])
        mean.lerp_(base, 1 / state["steps"])
        weight.copy_(0.1 * base + 0.9 * mean)


class Adan(Plain):
    """Looks at how gradients changed since the last step."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        apart = grad - state.setdefault("before", grad.clone())
        state["before"] = grad.clone()
        mean, of_apart = mean_of(state, "mean", grad), mean_of(state, "apart", apart)
        size = mean_of(state, "size", (grad + 0.9 * apart).square())
        weight.sub_((mean + 0.9 * of_apart) / (size.sqrt() + 1e-2), alpha=group["lr"])


class Noisy(Plain):
    """Noise that follows from the step alone."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        state["steps"] = state.get("steps", 0) + 1
        weight.sub_(grad + 1e-2 * (weight * state["steps"] * 7).sin(), alpha=group["lr"])


# Per tensor.


class Lars(Plain):
    """Each tensor's step is as long as the tensor."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        weight.sub_(grad * (weight.norm() + 0.1) / (grad.norm() + 1e-2), alpha=group["lr"])


class Lamb(Plain):
    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        mean, size = mean_of(state, "mean", grad), mean_of(state, "size", grad.square())
        step = mean / (size.sqrt() + 1e-2) + 0.01 * weight
        weight.sub_(step * weight.norm().clamp(0.1, 10) / (step.norm() + 1e-3), alpha=group["lr"])


class Factored(Plain):
    """Second moments by row and by column (as Adafactor has it), whole for vectors."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        square = grad.square() + 1e-6
        if grad.ndim < 2:
            size = mean_of(state, "size", square)
        else:
            row, column = mean_of(state, "row", square.mean(-1)), mean_of(state, "column", square.mean(-2))
            size = row[..., :, None] * column[..., None, :] / row.mean(-1)[..., None, None]
        step = grad / size.sqrt()
        weight.sub_(step / step.square().mean().sqrt().clamp(min=1), alpha=group["lr"])


class Blockwise(Plain):
    """Moments in 8 bits, by blocks of 32 numbers in a row."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        mean = state.get("mean", torch.zeros_like(grad)).mul(0.9).add(grad, alpha=0.1)
        state["mean"] = _in_8_bits(mean)
        weight.sub_(state["mean"], alpha=group["lr"])


def _in_8_bits(value: Tensor, block: int = 32) -> Tensor:
    flat = value.reshape(-1)
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % block)]).view(-1, block)
    largest = padded.abs().amax(1, keepdim=True).clamp(min=1e-12)
    return ((padded / largest * 127 + 0.25).round() * largest / 127).view(-1)[: len(flat)].view_as(value)


class Orthogonal(Plain):
    """Matrices step by the nearest orthogonal matrix of their mean gradient, as Muon has it, in fp64."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        mean = mean_of(state, "mean", grad)
        if mean.ndim == 2:
            mean = mean / (mean.norm() + 1e-7)
            for _ in range(3):
                mean = 1.5 * mean - 0.5 * mean @ mean.T @ mean
        weight.sub_(mean, alpha=group["lr"])


class Centralised(Plain):
    """Gradients of matrices have no mean over their inputs."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        if grad.ndim > 1:
            grad = grad - grad.mean(tuple(range(1, grad.ndim)), keepdim=True)
        weight.sub_(grad, alpha=group["lr"])


class RowNorms(Plain):
    """Each row's step has the same length."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        size = grad.norm(dim=-1, keepdim=True) if grad.ndim > 1 else grad.abs()
        weight.sub_(grad / (size + 1e-2), alpha=group["lr"])


class LargestOnly(Plain):
    """Only the tenth of a tensor's numbers with the largest gradients."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        least = grad.abs().flatten().kthvalue(max(1, int(0.9 * grad.numel()))).values
        weight.sub_(grad * (grad.abs() >= least), alpha=group["lr"])


class Adaptive(Plain):
    """Clips each tensor's gradient by the tensor's norm (AGC)."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        most = 0.02 * weight.norm().clamp(min=1e-2)
        weight.sub_(grad * (most / grad.norm().clamp(min=1e-9)).clamp(max=1), alpha=group["lr"] * 20)


# Global.


class UnitNorm(Plain):
    """All gradients together have the length one."""

    def before(self) -> None:
        self.size = torch.stack([grad.square().sum() for grad in self.gradients()]).sum().sqrt()

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        weight.sub_(grad / self.size, alpha=group["lr"] * 5)


class ByLargest(Plain):
    """The largest gradient of all says how far to go."""

    def before(self) -> None:
        self.largest = max(float(grad.abs().max()) for grad in self.gradients())

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        weight.sub_(grad / self.largest, alpha=group["lr"])


class SkipsSpikes(Plain):
    """A step whose gradients are larger than before, all together, is left out."""

    largest = float("inf")

    def before(self) -> None:
        size = float(sum(grad.square().sum() for grad in self.gradients()))
        self.leaves_out, self.largest = size > 0.9 * self.largest, size

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        if not self.leaves_out:
            weight.sub_(grad, alpha=group["lr"] * 5)


class Distance(Plain):
    """The rate grows with how far all weights have come from where they started (as D-Adaptation has it)."""

    def before(self) -> None:
        total = 0.0
        for group in self.param_groups:
            for weight in group["params"]:
                start = self.state[weight].setdefault("start", weight.detach().clone())
                total += float((weight - start).square().sum())
        self.rate = 0.02 + total**0.5

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        weight.sub_(grad, alpha=self.rate * 10)


# By mark.


class ByPosition(Plain):
    """Earlier parameters learn more slowly."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        weight.sub_(grad, alpha=group["lr"] * (1 + index % 5))


class ByAttribute(Plain):
    """Parameters with a mark do not decay, and some have a rate of their own."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        if not getattr(weight, "_no_weight_decay", False):
            weight.mul_(1 - group["lr"])
        weight.sub_(grad, alpha=group["lr"] * getattr(weight, "_rate", 1.0))


class ByDims(Plain):
    """Vectors do not decay, matrices do."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        if weight.ndim > 1:
            weight.mul_(1 - group["lr"])
        weight.sub_(grad, alpha=group["lr"])


class BySize(Plain):
    """Large tensors decay and keep a mean, small ones do neither (as 8-bit optimizers leave them whole)."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        if weight.numel() >= 200:
            grad = mean_of(state, "mean", grad) * 5 + 0.1 * weight
        weight.sub_(grad, alpha=group["lr"])


class TwoGroups(Plain):
    """Makes groups of its own: matrices by Adam, the rest by plain steps."""

    def __init__(self, params: Params, lr: float = 0.02) -> None:
        params = list(params)
        groups = [
            {"params": [p for p in params if p.ndim > 1], "lr": lr, "moments": True},
            {"params": [p for p in params if p.ndim <= 1], "lr": lr * 3, "moments": False},
        ]
        super().__init__([group for group in groups if group["params"]], lr)  # type: ignore[arg-type]

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        if group["moments"]:
            grad = mean_of(state, "mean", grad) / (mean_of(state, "size", grad.square()).sqrt() + 1e-2)
        weight.sub_(grad, alpha=group["lr"])


class EveryOther(Plain):
    """Adds gradients up and steps every second time."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        state["steps"] = state.get("steps", 0) + 1
        state["sum"] = state.get("sum", 0) + grad
        if state["steps"] % 2 == 0:
            weight.sub_(state.pop("sum"), alpha=group["lr"])


class Lookahead(Plain):
    """Goes back half of the way every second step."""

    def change(self, weight: Tensor, grad: Tensor, state: Any, group: Any, index: int) -> None:
        slow = state.setdefault("slow", weight.clone())
        state["steps"] = state.get("steps", 0) + 1
        weight.sub_(grad, alpha=group["lr"] * 5)
        if state["steps"] % 2 == 0:
            weight.copy_(slow.lerp_(weight, 0.5))


for _name, _options in {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "eps": 1e-4},
    "AdamW": {"lr": 0.01, "eps": 1e-4, "amsgrad": True},
    "Adamax": {"lr": 0.01, "eps": 1e-4},
    "NAdam": {"lr": 0.01, "eps": 1e-4},
    "RAdam": {"lr": 0.5, "eps": 1e-4},
    "RMSprop": {"lr": 0.01, "eps": 1e-4, "centered": True},
    "Adagrad": {"lr": 0.05, "eps": 1e-4},
    "Adadelta": {"lr": 1.0, "eps": 1e-3},
    "ASGD": {"lr": 0.1},
    "Rprop": {"lr": 0.01},
    "Adafactor": {"lr": 0.01},
}.items():
    optimizer(f"torch_{_name.lower()}", f"torch.optim:{_name}", **_options)
optimizer("torch_adamw_foreach", "torch.optim:AdamW", lr=0.01, eps=1e-4, foreach=True)
optimizer("torch_adamw_fused", "torch.optim:AdamW", lr=0.01, eps=1e-4, fused=True)
optimizer("by_attribute_of_marked", "tests.zoo.optimizers:ByAttribute", model="marked_parameters", lr=0.05)
# Where a step is the gradient itself, it has to be a long one for differences to show.
_RATES = {
    **dict.fromkeys((Kahan, Noisy, Blockwise, Centralised, LargestOnly, ByPosition, EveryOther), 0.5),
    SkipsSpikes: 0.2,
    Lookahead: 0.2,
    ScheduleFree: 0.5,
    Adan: 0.1,
}
for _own in (
    Lion, Signs, Kahan, ScheduleFree, Adan, Noisy, Lars, Lamb, Factored, Blockwise, Orthogonal, Centralised,
    RowNorms, LargestOnly, Adaptive, UnitNorm, ByLargest, SkipsSpikes, Distance, ByPosition, ByDims, BySize,
    TwoGroups, EveryOther, Lookahead,
):  # fmt: skip
    optimizer(_own.__name__, f"tests.zoo.optimizers:{_own.__name__}", lr=_RATES.get(_own, 0.05))
