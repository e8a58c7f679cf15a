"""Two steps of the plain module on one device: what every strategy promises to compute.

    zero_grad -> forward, loss, backward of each part of the batch -> divide by the count -> clip -> step

No strategy and no distributed code takes part. A batch comes in `train.accumulate` parts, as a single device
takes it. The same steps over parts in slices, as devices or microbatches see them, tell causes.py whether a
difference comes of the cut. Read trial.py next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.parallel.nested import call, cast, each_tensor, tensors_of
from rankdeck.strategies.base import autocast, placed
from rankdeck.torch_compat.dispatch import tree_flatten, tree_unflatten
from rankdeck.torch_compat.modules import split_state
from rankdeck.training.verify.budget import clock_s
from rankdeck.training.verify.computed import Computed, snapshot
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.workload import Workload

Part = Sequence[tuple[Any, Any]]
"""One part of a batch: (inputs, targets) of each slice, a single one for a part that is not cut."""


def steps_on_one_device(
    workload: Workload,
    steps: Sequence[Sequence[Part]],
    device: torch.device,
    *,
    loss_by_slice: bool = True,
    prepare: Callable[[nn.Module], None] = lambda model: None,
    goes_on: Callable[[Computed], bool] = lambda computed: True,
    draws: FixedDraws,
) -> Computed:
    """Take one optimizer step over each of `steps`, each a sequence of parts, while it `goes_on`. Where a
    part is in slices, the loss is computed for each of them, or once for their outputs together.
    `prepare(model)` may change the model first.

    Raises: whatever the model, the loss or the optimizer raises.
    """
    train = workload.config.train
    model = _placed(workload, device)
    prepare(model)
    optimizer = workload.build_optimizer(model.parameters())
    turn: Any = getattr(optimizer, "train", None)
    if callable(turn):
        turn()
    computed = Computed(before=snapshot(split_state(model)[0]))
    for index, parts in enumerate(steps):
        if index and not goes_on(computed):
            break
        began_s = clock_s()
        optimizer.zero_grad(set_to_none=True)
        with draws:
            total, count = _forward_backward(model, workload, parts, device, loss_by_slice)
            _divide(model, train.global_batch / count if count > 0 else 1.0)
            if train.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
            computed.gradients[index] = _gradients(model)
            optimizer.step()
        computed.losses.append(total / count if count > 0 else total)
        computed.seconds.append(clock_s() - began_s)
        computed.after[index] = snapshot(split_state(model)[0])
    return computed


def _placed(workload: Workload, device: torch.device) -> nn.Module:
    return placed(workload.build_model(), workload.config.train.precision, device)


def _forward_backward(
    model: nn.Module, workload: Workload, parts: Sequence[Part], device: torch.device, loss_by_slice: bool
) -> tuple[float, float]:
    """Gradients of the loss's sum over all parts, divided by the global batch; the sum and its count."""
    train = workload.config.train
    total, count = 0.0, 0.0
    for part in parts:
        slices = [_on_device(piece, device, train.precision) for piece in part]
        with autocast(train.precision, device):
            for loss, num in _losses(model, workload, slices, loss_by_slice):
                (loss / train.global_batch).backward()
                total, count = total + float(loss.detach()), count + float(num)
    return total, count


def _losses(
    model: nn.Module, workload: Workload, slices: Part, loss_by_slice: bool
) -> Iterator[tuple[Tensor, Any]]:
    function = workload.loss.function
    if loss_by_slice or len(slices) == 1:
        for inputs, targets in slices:
            yield function(call(model, inputs), targets)
        return
    outputs = joined([call(model, inputs) for inputs, _ in slices])
    yield function(outputs, joined([targets for _, targets in slices]))


@torch.no_grad()
def try_slice(workload: Workload, part: Part, device: torch.device, draws: FixedDraws) -> None:
    """The loss of one slice. Raises: whatever the model and the loss raise for so few samples."""
    precision = workload.config.train.precision
    model = _placed(workload, device)
    slices = [_on_device(piece, device, precision) for piece in part]
    with draws, autocast(precision, device):
        list(_losses(model, workload, slices, loss_by_slice=True))


def joined(values: Sequence[Any]) -> Any:
    """Batches, or what a model returns for them, put together along their first dim.

    Raises: ValueError where they are of different structures or hold a tensor without dims.
    """
    leaves, specs = zip(*map(tree_flatten, values), strict=True)
    if any(spec != specs[0] for spec in specs):
        raise ValueError("slices of different structures")
    together = []
    for same in zip(*leaves, strict=True):
        if not isinstance(same[0], Tensor):
            together.append(same[0])
        elif same[0].ndim == 0 or any(tensor.shape[1:] != same[0].shape[1:] for tensor in same):
            raise ValueError("slices that cannot be put together")
        else:
            together.append(torch.cat(same))
    return tree_unflatten(together, specs[0])


def _on_device(value: Any, device: torch.device, precision: str) -> Any:
    dtype = torch.float64 if precision == "fp64" else torch.float32
    moved = each_tensor(cast(value, dtype), lambda tensor: tensor.to(device))
    assert tensors_of(moved) or not tensors_of(value)
    return moved


def _divide(model: nn.Module, factor: float) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    named = {
        name: weight
        for name, weight in model.named_parameters(remove_duplicate=False)
        if weight.dtype.is_floating_point or weight.dtype.is_complex
    }
    copies = snapshot({name: _dense(p.grad) for name, p in named.items() if p.grad is not None})
    return {name: copies.get(name) for name in named}


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
