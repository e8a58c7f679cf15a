"""What a run has to compute, once more: a plain loop of torch on one device that imports nothing of Rankdeck.

Parity compares strategies with our own `single`, so what all of them share (the step, the schedule, masked
counts, evaluation, the order of samples) could be wrong in all of them alike. Here it is as it is promised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

IGNORE_INDEX = -100
Samples = tuple[Tensor, Tensor]


@dataclass
class TrainingResult:
    """Lists have an entry per step, `norms` where they are bounded; evaluations are step, loss, accuracy."""

    weights: dict[str, Tensor]
    batches: Sequence[Sequence[int]]
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)


def train(
    model_of: Callable[[], nn.Module],
    optimizer_of: Callable[[Sequence[nn.Parameter]], Optimizer],
    samples: Samples,
    heldout: Samples,
    *,
    batches: Sequence[Sequence[int]],
    factors: Sequence[float],
    accumulate: int,
    clip_norm: float | None,
    evaluate_every: int,
    late: bool = False,
    seed: int = 0,
) -> TrainingResult:
    """A step for each list of samples in `batches`, whose rates are the optimizer's own times `factors`.

    `late` is what two versions of the weights give (PipeDream-2BW): a gradient is of the weights before the
    last update, but for the first one after the start and after an evaluation, where the pipe was drained.
    """
    torch.manual_seed(seed)
    model = model_of().double()
    optimizer = optimizer_of(list(model.parameters()))
    own_rates = [group["lr"] for group in optimizer.param_groups]
    inputs, targets = samples[0].double(), samples[1]
    trained = TrainingResult(model.state_dict(), batches)
    older = _weights(model)
    for step, (batch, factor) in enumerate(zip(batches, factors, strict=True), start=1):
        for group, rate in zip(optimizer.param_groups, own_rates, strict=True):
            group["lr"] = rate * factor
        newest = _weights(model)
        _set_weights(model, older if late else newest)
        optimizer.zero_grad()
        count, total = int((targets[list(batch)] != IGNORE_INDEX).sum()), 0.0
        for chunk in torch.tensor(batch).chunk(accumulate):
            loss = _sum_of_losses(model(inputs[chunk]), targets[chunk])
            (loss / max(count, 1)).backward()
            total += loss.item()
        _set_weights(model, newest)
        older = newest
        if clip_norm is not None:
            trained.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm)))
        optimizer.step()
        trained.rates.append(optimizer.param_groups[0]["lr"])
        trained.losses.append(total)
        trained.counts.append(count)
        if step % evaluate_every == 0 or step == len(batches):
            trained.evaluations.append((step, *evaluate(model, heldout)))
            older = _weights(model)
    return trained


def _weights(model: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def _set_weights(model: nn.Module, weights: list[Tensor]) -> None:
    for weight, value in zip(model.parameters(), weights, strict=True):
        weight.data.copy_(value)


def _sum_of_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, ignore_index=IGNORE_INDEX, reduction="sum")


def evaluate(model: nn.Module, heldout: Samples) -> tuple[float, float]:
    """Mean loss and share of right answers over all targets that are not masked, all samples at once."""
    model.eval()
    with torch.no_grad():
        outputs, targets = model(heldout[0].double()), heldout[1]
    model.train()
    there = targets != IGNORE_INDEX
    right = (outputs.argmax(1) == targets)[there].double().mean()
    return float(_sum_of_losses(outputs, targets) / there.sum()), float(right)


def factors(shape: str, steps: int, *, warmup: int = 0, final: float = 0.0) -> list[float]:
    """Of each step: up in `warmup` equal parts, then from 1 down to `final` in the last step."""
    way = torch.linspace(0, 1, steps - warmup, dtype=torch.float64)
    down = {"cosine": (1 + torch.cos(math.pi * way)) / 2, "linear": 1 - way, "constant": way * 0 + 1}[shape]
    return [(step + 1) / warmup for step in range(warmup)] + (final + (1 - final) * down).tolist()


def split_into_batches(
    samples: Sequence[int], num_samples: int, global_batch: int, last: str
) -> list[list[int]]:
    """What was read, cut into steps: "keep" makes one of what is left of an epoch, "drop" reads no more."""
    left = num_samples % global_batch if last == "keep" else 0
    sizes = [global_batch] * (num_samples // global_batch) + [left] * (left > 0)
    batches: list[list[int]] = []
    start = 0
    while start < len(samples):
        batches.append(list(samples[start : start + sizes[len(batches) % len(sizes)]]))
        start += len(batches[-1])
    check_order(batches, num_samples, len(sizes))
    return batches


def check_order(batches: Sequence[Sequence[int]], num_samples: int, steps_per_epoch: int) -> None:
    """An epoch sees each sample at most once, in an order of its own."""
    epochs = [batches[start : start + steps_per_epoch] for start in range(0, len(batches), steps_per_epoch)]
    orders = [[sample for batch in epoch for sample in batch] for epoch in epochs]
    assert all(
        len(batch) == len(of_first)
        for epoch in epochs
        for batch, of_first in zip(epoch, epochs[0], strict=False)
    )
    assert all(len(set(order)) == len(order) for order in orders), "a sample twice in an epoch"
    assert all(0 <= sample < num_samples for order in orders for sample in order)
    for epoch, order in enumerate(orders):
        assert order != sorted(order), f"epoch {epoch} is not shuffled"
        assert all(order != other[: len(order)] for other in orders[:epoch]), (
            "an epoch in an order of another"
        )
