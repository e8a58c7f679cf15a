"""What a run has to end with: a plain loop of torch on one device that imports nothing of the engine.

The whole batch goes through the model at once, or in `accumulate` parts one after another; losses are sums,
divided by the count of the whole batch. Read registry.py before, compare.py next.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from tests.zoo.registry import SEED, Entry

IGNORE_INDEX = -100
_TORCH_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class OracleResult:
    """`initial` and `final` are parameters and buffers before and after the run, `losses` one per step."""

    initial: dict[str, Tensor]
    final: dict[str, Tensor]
    parameters: frozenset[str]
    losses: list[float] = field(default_factory=list)


def train(entry: Entry, *, nudge: float = 0.0) -> OracleResult:
    """All steps of an entry. `nudge` is a relative error put into each weight at the start: what becomes of
    it says how far two right results may differ by rounding."""
    model = _build_model(entry, nudge)
    names = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
    trained = OracleResult(_copy_state(model), {}, names)
    # Where the forward draws, the run's stream begins here.
    torch.manual_seed(SEED * 1_000_003 + 1)
    optimizer = _make_optimizer(entry, model)
    _set_optimizer_mode(optimizer, "train")
    dataset = _import_target(entry.data)()
    for indices in _step_indices(entry, len(dataset)):
        trained.losses.append(_run_step(entry, model, optimizer, dataset, indices))
    _set_optimizer_mode(optimizer, "eval")
    trained.final = _copy_state(model)
    return trained


def _build_model(entry: Entry, nudge: float) -> nn.Module:
    torch.manual_seed(SEED)
    model: nn.Module = _import_target(entry.model)()
    model = model._apply(_to_fp64).train()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters() if nudge else ():
            if weight.is_floating_point():
                weight.mul_(1 + nudge * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


def _to_fp64(tensor: Tensor) -> Tensor:
    """In the run's precision: numbers of two parts keep both."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _step_indices(entry: Entry, num_samples: int) -> list[range]:
    """The samples of each step, in the data set's own order, from its beginning again in each epoch."""
    epoch = [
        range(start, min(start + entry.batch, num_samples)) for start in range(0, num_samples, entry.batch)
    ]
    if entry.last == "drop" and len(epoch[-1]) < entry.batch:
        epoch.pop()
    return [epoch[step % len(epoch)] for step in range(entry.steps)]


def _run_step(
    entry: Entry, model: nn.Module, optimizer: Optimizer, dataset: Any, indices: Sequence[int]
) -> float:
    """The loss of the step. What goes backward is the mean over the batch, as anyone writes it; only where
    it comes in parts, its count is not known before the last one."""
    optimizer.zero_grad(set_to_none=True)
    whole = total_count = 0.0
    for part in torch.tensor(indices).tensor_split(entry.accumulate):
        if not len(part):  # the last step of an epoch may have fewer samples than parts
            continue
        inputs, targets = _read_batch(dataset, part.tolist())
        total, count = _compute_loss(entry, _call_model(model, inputs), targets)
        (total if entry.accumulate > 1 else total / (float(count) or 1.0)).backward()
        whole, total_count = whole + total.item(), total_count + float(count)
    for weight in model.parameters() if entry.accumulate > 1 else ():
        if weight.grad is not None:
            weight.grad /= total_count or 1.0
    if entry.clip:
        nn.utils.clip_grad_norm_(model.parameters(), entry.clip)
    optimizer.step()
    return whole / (total_count or 1.0)


def _read_batch(dataset: Any, indices: list[int]) -> tuple[Any, Any]:
    if hasattr(dataset, "read_batch"):
        batch = dataset.read_batch(indices)
    else:
        batch = default_collate([dataset[index] for index in indices])
    batch = _cast(batch)
    return (batch, batch.get("labels", batch)) if isinstance(batch, dict) else (batch[0], batch[1])


def _cast(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _to_fp64(value)
    if isinstance(value, dict):
        return {key: _cast(one) for key, one in value.items()}
    return [_cast(one) for one in value] if isinstance(value, list | tuple) else value


def _call_model(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, list) else model(inputs)


def _compute_loss(entry: Entry, outputs: Any, targets: Any) -> tuple[Tensor, Any]:
    if entry.loss == "cross_entropy":
        classes = outputs.shape[-1]
        total = F.cross_entropy(
            outputs.reshape(-1, classes), targets.reshape(-1), reduction="sum", ignore_index=IGNORE_INDEX
        )
        return total, (targets != IGNORE_INDEX).sum()
    if entry.loss == "mse":
        return F.mse_loss(outputs, targets, reduction="sum"), targets.numel()
    if entry.loss == "model":
        return _model_loss(outputs)
    total, count = _import_target(entry.loss)(outputs, targets)
    return total, count


def _model_loss(outputs: Any) -> tuple[Tensor, Any]:
    """A mean that the model computed. A batch without targets has none, and trains nothing."""
    known = outputs if isinstance(outputs, dict) else vars(outputs)
    count = known.get("count")
    loss: Tensor = known["loss"]
    return loss * (1 if count is None else count), 1 if count is None else count


def _make_optimizer(entry: Entry, model: nn.Module) -> Optimizer:
    options = {key: value for key, value in entry.optimizer.items() if key != "use"}
    use = entry.optimizer["use"]
    made: Optimizer = (_TORCH_OPTIMIZERS.get(use) or _import_target(use))(model.parameters(), **options)
    return made


def _set_optimizer_mode(optimizer: Optimizer, mode: str) -> None:
    """Schedule-free optimizers have other weights to train than to keep."""
    turn = getattr(optimizer, mode, None)
    if callable(turn):
        turn()


def _copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)
    }


def _import_target(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
