"""What rows.toml names beside models.py: samples of the right shapes, a loss, and optimizers as they were.

Until torch 1.13 optimizers worked on one weight after another; since 2.0 on all together, with temporary
tensors as large as all weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Samples = torch.utils.data.Dataset[Any]


class Drawn(Samples):
    """`num_samples` pairs, each drawn from its index alone."""

    def __init__(self, num_samples: int, shape: tuple[int, ...], classes: int, *, is_text: bool) -> None:
        self.num_samples, self.shape, self.classes, self.is_text = num_samples, shape, classes, is_text

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        drawn = torch.Generator().manual_seed(index)
        if self.is_text:
            tokens = torch.randint(self.classes, self.shape, generator=drawn)
            return tokens, tokens
        return torch.rand(self.shape, generator=drawn), torch.randint(self.classes, (), generator=drawn)


class Labelled(Drawn):
    """Texts with one label each, as dicts."""

    def __getitem__(self, index: int) -> Any:
        tokens, _ = super().__getitem__(index)
        return {"input_ids": tokens, "labels": torch.tensor(index % 2)}


def pictures(*, shape: list[int], classes: int, num_samples: int = 1024) -> tuple[Samples, None]:
    return Drawn(num_samples, tuple(shape), classes, is_text=False), None


def tokens(*, vocabulary: int, length: int, num_samples: int = 1024) -> tuple[Samples, None]:
    return Drawn(num_samples, (length,), vocabulary, is_text=True), None


def labelled_tokens(*, length: int, num_samples: int = 512) -> tuple[Samples, None]:
    return Labelled(num_samples, (length,), 30000, is_text=True), None


class Kept(torch.autograd.Function):
    """A loss that keeps its outputs until its backward is over, as a loop with a variable `logits` does."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, outputs: Tensor) -> Tensor:
        ctx.outputs = outputs
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def kept_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    loss = F.cross_entropy(outputs.view(-1, outputs.shape[-1]), targets.view(-1), reduction="sum")
    return Kept.apply(loss, outputs.detach()), targets.numel()


class AdamOneByOne(torch.optim.Adam):
    """One weight after another, as until torch 1.13."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, foreach=False, **options)


class AdamwOneByOne(torch.optim.AdamW):
    """One weight after another, as until torch 1.13."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, foreach=False, **options)


class SgdOneByOne(torch.optim.SGD):
    """One weight after another, as until torch 1.13."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, foreach=False, **options)


class AdamOf2023(torch.optim.Adam):
    """torch 2.0's on all weights together: the denominator is another tensor than the root it is made of."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if not self.state[weight]:
                    zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                    self.state[weight] = {"step": torch.tensor(0.0), **zeros}
            grads = [weight.grad for weight in weights]
            averages = [self.state[weight]["exp_avg"] for weight in weights]
            squares = [self.state[weight]["exp_avg_sq"] for weight in weights]
            torch._foreach_lerp_(averages, grads, 0.1)
            torch._foreach_mul_(squares, 0.999)
            torch._foreach_addcmul_(squares, grads, grads, 0.001)
            roots = torch._foreach_sqrt(squares)
            denominators = torch._foreach_add(roots, group["eps"])
            torch._foreach_addcdiv_(weights, averages, denominators, -group["lr"])
