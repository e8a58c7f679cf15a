"""Cross entropy on logits whose classes are split across ranks.

Each rank sums over its own classes, and a few numbers per token are sent instead of the logits. Read apply.py
first. Source: torch.distributed.tensor.parallel.loss_parallel.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.models.losses import Loss


def make_loss_parallel(loss: Loss) -> Loss:
    """Return the loss for logits whose classes are split across ranks.

    In training, the caller must run the loss and its backward pass inside torch's `loss_parallel()`; in
    evaluation, the loss gathers the logits.

    Raises:
        ModelError: the loss cannot be split.
    """
    if loss.name != "cross_entropy":
        raise ModelError(
            phrase(
                "strategy.loss_parallel supports only cross entropy, but loss.use is {loss}.", loss=loss.name
            ),
            path="strategy.loss_parallel",
            advice=phrase('Leave strategy.loss_parallel out, or set loss.use = "cross_entropy".'),
        )
    correct = loss.count_correct
    assert correct is not None

    def function(outputs: Any, targets: Any) -> tuple[Tensor, Any]:
        total, count = loss.function(outputs if torch.is_grad_enabled() else _full_logits(outputs), targets)
        return total.to_local() if isinstance(total, DTensor) else total, count

    return dataclasses.replace(
        loss,
        function=function,
        count_correct=lambda outputs, targets: correct(_full_logits(outputs), targets),
    )


def _full_logits(outputs: Any) -> Any:
    return outputs.full_tensor() if isinstance(outputs, DTensor) else outputs
