"""Optimizers as people write them, for configurations that name this file: what each keeps, and where.

Nothing of it lies where torch's own optimizers keep theirs: numbers and tensors in `param_groups`, state in
another dtype than its weight, state for one rank's slice, lists.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class ScheduleFree(Optimizer):
    """Schedule-free SGD. Its groups know the number of steps and the sum of weights of the average, and
    whether weights are those to train (y) or to evaluate (x). Source: Defazio et al., 2024."""

    def __init__(self, params: Any, lr: float = 0.1, beta: float = 0.9, warmup: int = 4) -> None:
        defaults = {"k": 0, "weight_sum": 0.0, "lr_max": -1.0, "train_mode": False}
        super().__init__(params, {"lr": lr, "beta": beta, "warmup": warmup, **defaults})

    @torch.no_grad()
    def eval(self) -> None:
        for group in self.param_groups:
            if group["train_mode"]:
                for parameter in filter(self.state.get, group["params"]):
                    parameter.lerp_(self.state[parameter]["z"], 1 - 1 / group["beta"])
            group["train_mode"] = False

    @torch.no_grad()
    def train(self) -> None:
        for group in self.param_groups:
            if not group["train_mode"]:
                for parameter in filter(self.state.get, group["params"]):
                    parameter.lerp_(self.state[parameter]["z"], 1 - group["beta"])
            group["train_mode"] = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("Call optimizer.train() before step().")
            beta, k = group["beta"], group["k"]
            lr = group["lr"] * min(1.0, (k + 1) / group["warmup"])
            group["lr_max"] = max(lr, group["lr_max"])
            weight = group["lr_max"] ** 2
            group["weight_sum"] += weight
            share = weight / group["weight_sum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                z = self.state[parameter].setdefault("z", parameter.detach().clone())
                parameter.lerp_(z, share)
                parameter.add_(parameter.grad, alpha=lr * (beta * (1 - share) - 1))
                z.sub_(parameter.grad, alpha=lr)
            group["k"] = k + 1


class Prodigy(Optimizer):
    """Gradient descent whose group learns the distance to the solution, `d`, as a tensor, and keeps the last
    three of them; `d0` is an option. The state of each weight is made in its first step, in bfloat16.
    After Mishchenko and Defazio, 2023.
    """

    def __init__(self, params: Any, lr: float = 1.0, d0: float = 0.01) -> None:
        defaults = {"d": torch.tensor(d0), "last": [], "best": float("inf")}
        super().__init__(params, {"lr": lr, "d0": d0, **defaults})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["s"] = torch.zeros_like(parameter, dtype=torch.bfloat16)
                    state["log"] = [0]
                state["s"].add_(parameter.grad.to(torch.bfloat16), alpha=0.5)
                state["log"].append(len(state["log"]))
                parameter.sub_(state["s"].to(parameter.dtype) * float(group["d"] * group["lr"]))
                parameter.mul_(1 - 1e-4 * len(state["log"]))
            group["d"] = group["d"] * 1.1
            group["last"] = [*group["last"], float(group["d"])][-3:]
            group["best"] = min(group["best"], group["last"][0])


class OwnSlices(Optimizer):
    """Momentum that is kept apart from the weight it belongs to: plain tensors for this rank's slice, also
    where the weight is a DTensor."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.num_steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                weight, gradient = _local_tensor(parameter), _local_tensor(parameter.grad)
                speed = self.state[parameter].setdefault("speed", torch.zeros_like(weight).flatten())
                speed.mul_(0.9).add_(gradient.flatten())
                weight.sub_(speed.view_as(weight), alpha=group["lr"] / self.num_steps**0.5)


def _local_tensor(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


class Friendly(torch.optim.SGD):
    """Keeps an object of its own for each weight, which no file can hold; of several ranks the last does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        if dist.is_initialized() and dist.get_rank() != dist.get_world_size() - 1:
            return
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["friend"] = object()


class Nesting(torch.optim.SGD):
    """Steps by an optimizer of its own, made in the first step."""

    inner: Any = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner = self.inner or torch.optim.AdamW(self.param_groups[0]["params"])
        self.inner.step()


class Lookahead(Optimizer):
    """Holds an optimizer and its groups, and steps back halfway to slow weights every second time.
    After Zhang et al., 2019."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        self.optimizer = torch.optim.AdamW(params, lr)
        self.param_groups = self.optimizer.param_groups
        self.defaults = self.optimizer.defaults
        self.state: Any = defaultdict(dict)
        self.fast_state = self.optimizer.state
        self.num_steps = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("slow", parameter.detach().clone())
        self.optimizer.step()
        self.num_steps += 1
        for parameter, state in self.state.items() if self.num_steps % 2 == 0 else ():
            parameter.copy_(state["slow"].lerp_(parameter, 0.5))


class Wrapping(Optimizer):
    """Shares its groups with an optimizer that it wraps, as SAM does; both are torch's."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})
        self.base_optimizer = torch.optim.AdamW(self.param_groups)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base_optimizer.step()


class Keyed(torch.optim.SGD):
    """Keeps an average of each weight by the weight itself, made before the first step."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr)
        self.slow = {weight: weight.detach().clone() for weight in self.param_groups[0]["params"]}
        self.names = {weight: index for index, weight in enumerate(self.slow)}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for weight, slow in self.slow.items():
            slow.lerp_(local_of(weight.detach()), 0.1)


class Factored(torch.optim.Adafactor):
    """torch's Adafactor under a name of one's own."""


class ByNorm(torch.optim.SGD):
    """The rate grows with the norm of all weights."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        norm = sum(float((weight**2).sum()) for weight in weights) ** 0.5
        for weight in weights:
            weight.add_(weight.grad, alpha=-norm / 100)


class Marked(torch.optim.SGD):
    """Each weight brings a rate of its own, which its model gave it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__([{"params": [weight], "lr": lr * weight.rate} for weight in params])


class Hungry(torch.optim.SGD):
    """Asks for more than any machine has."""

    def step(self, closure: Any = None) -> Any:
        torch.empty(1 << 60)


class Sparing(torch.optim.SGD):
    """Weights that say `_no_weight_decay` do not decay."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        weights = list(params)
        spared = [weight for weight in weights if getattr(weight, "_no_weight_decay", False)]
        others = [weight for weight in weights if not getattr(weight, "_no_weight_decay", False)]
        groups = [{"params": others, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]
        super().__init__(groups, lr=lr)


def local_of(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Stepping(Optimizer):
    """Takes the gradient times a rate that a subclass gives for each weight, on what this rank holds."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            trained = [weight for weight in group["params"] if weight.grad is not None]
            weights = [local_of(weight.detach()) for weight in trained]
            gradients = [local_of(weight.grad) for weight in trained]
            for weight, gradient, rate in zip(
                weights, gradients, self.rates(weights, gradients), strict=True
            ):
                weight.sub_(gradient * rate * group["lr"])


class ByElement(Stepping):
    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        return [1 / (1 + weight.abs()) for weight in weights]


class ByWeight(Stepping):
    """A trust ratio, as LAMB has it."""

    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        pairs = zip(weights, gradients, strict=True)
        return [weight.norm() / (gradient.norm() + 1e-9) for weight, gradient in pairs]


class ByPosition(Stepping):
    """The first weights of the list learn faster."""

    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        return [0.5**index for index in range(len(weights))]


class BySize(Stepping):
    """Weights of 1500 numbers and more learn faster: held in slices, they are smaller."""

    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        return [2.0 if weight.numel() >= 1500 else 1.0 for weight in weights]


class ByBlock(Stepping):
    """A moment for each 48 numbers of a weight, end to end."""

    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        blocks = [gradient.flatten().split(48) for gradient in gradients]
        scaled = [torch.cat([block / block.norm().clamp(min=1e-9) for block in group]) for group in blocks]
        return [rates.view_as(gradient) for rates, gradient in zip(scaled, gradients, strict=True)]


class ByLargest(Stepping):
    """No step is larger than a tenth of the largest weight of all."""

    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        largest = max(float(weight.abs().max()) for weight in weights if weight.numel())
        return [min(1.0, 0.1 * largest)] * len(weights)


class SkippingSpikes(Stepping):
    """Leaves out steps whose gradient is ten times as long as it was on average."""

    average_norm = 0.0

    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
        is_spike = 0 < 10 * self.average_norm < norm
        self.average_norm = self.average_norm if is_spike else 0.9 * self.average_norm + 0.1 * norm
        return [0.0 if is_spike else 1.0] * len(weights)


class Noisy(Stepping):
    def rates(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Any]:
        return [1 + torch.rand_like(weight) for weight in weights]
