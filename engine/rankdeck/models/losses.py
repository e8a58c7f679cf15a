"""Losses as a SUM and a count, never as a mean.

A mean of means is wrong as soon as ranks hold different numbers of targets (4e-3 on masked text); sums add up
whatever the cut is. The loop divides once, by the count of the whole global batch. Source: the sum form is
what Megatron-LM and torchtitan use for the same reason. Read means.py and training/step.py next.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config.catalog import MASKED
from rankdeck.models.means import MeanCounts

LossFunction = Callable[[Any, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Loss:
    """What is minimised. `function(outputs, targets)` gives (sum, count); count is an int or a 0-dim tensor.

    `nominal_count(targets)` is the count that a batch without masked targets has; None where only the forward
    can tell. `correct(outputs, targets)` counts right answers; None where there are no classes.
    """

    name: str
    function: LossFunction
    nominal_count: Callable[[Any], int | None]
    correct: Callable[[Any, Any], Tensor] | None = None
    inside: bool = False
    """Whether the model computes it in its forward, from the batch that it is given."""
    trouble: Callable[[], Phrase | None] = lambda: None
    """Why parts of a batch do not add up to the whole, as far as was seen by now; None where they do."""


def _class_last(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits as (N, C) and targets as (N,), from (B, ..., C) or torch's own (B, C, ...).

    Raises: ModelError when the shapes do not belong together.
    """
    if not isinstance(outputs, Tensor):
        raise ModelError(
            phrase(
                "cross_entropy needs the model's output to be one tensor; it is a {kind}.",
                kind=type(outputs).__name__,
            ),
            path="loss.use",
            advice=phrase('Use loss.use = "model" or your own "module:function".'),
        )
    if outputs.ndim == 2 and targets.ndim == 1 and len(outputs) == len(targets):
        return outputs, targets
    if outputs.shape[:-1] == targets.shape:
        return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    if outputs.ndim > 2 and outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        return outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), targets.reshape(-1)
    raise ModelError(
        phrase(
            "cross_entropy cannot pair outputs {outputs} with targets {targets}.",
            outputs=tuple(outputs.shape),
            targets=tuple(targets.shape),
        ),
        path="loss.use",
        advice=phrase("Outputs need one more dim than targets, for the classes."),
    )


def _sum_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, ..., C) and class indices (B, ...); targets of -100 count nothing."""
    total, _ = _sum_unmasked_cross_entropy(outputs, targets)
    return total, (targets != MASKED).sum()


def _sum_unmasked_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """As above, where no target is masked: they are counted without looking at them."""
    logits, classes = _class_last(outputs, targets)
    return F.cross_entropy(logits, classes, ignore_index=MASKED, reduction="sum"), targets.numel()


def _correct_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    logits, classes = _class_last(outputs, targets)
    return ((logits.argmax(-1) == classes) & (classes != MASKED)).sum()


def _sum_squares(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Outputs and targets of one shape (B, ...)."""
    if not isinstance(outputs, Tensor) or outputs.shape != targets.shape:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            phrase(
                "mse cannot pair outputs {shape} with targets {targets}.",
                shape=shape,
                targets=tuple(targets.shape),
            ),
            path="loss.use",
            advice=phrase('Give targets the outputs\' shape; for classes use loss.use = "cross_entropy".'),
        )
    return F.mse_loss(outputs, targets.to(outputs.dtype), reduction="sum"), targets.numel()


def _field(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _own_loss(counts: MeanCounts, outputs: Any, targets: Any) -> tuple[Tensor, Any]:
    """The model's `.loss`, a mean over `.count` targets; without a count, over as many as `counts` finds."""
    loss = _field(outputs, "loss")
    if not isinstance(loss, Tensor):
        raise ModelError(
            phrase('loss.use = "model", but the model\'s output has no loss.'),
            path="loss.use",
            advice=phrase(
                "Return an object or a dict with `loss` (a mean) and, where it can differ, `count`."
            ),
        )
    count = _field(outputs, "count")
    if count is None:
        count = counts.of(loss, targets)
    if count is None:
        raise ModelError(
            phrase('loss.use = "model": it is not known how many targets the loss is a mean of.'),
            path="loss.use",
            advice=phrase("Give the output a `count`, or the batch `labels`."),
        )
    # An all-masked batch has a mean of NaN; its sum, and what goes backward from it, is 0.
    some = torch.as_tensor(count, device=loss.device) > 0
    return torch.where(some, loss, torch.nan_to_num(loss)) * count, count


def _numel(targets: Any) -> int | None:
    return targets.numel() if isinstance(targets, Tensor) else None


def cross_entropy(*, may_mask: bool = True) -> Loss:
    """Logits against classes, summed over targets that are not MASKED; it counts right answers too.

    Data that never masks a target (`may_mask` False) spares every step the counting.
    """
    function = _sum_cross_entropy if may_mask else _sum_unmasked_cross_entropy
    return Loss("cross_entropy", function, _numel, _correct_classes)


def mse() -> Loss:
    """The squared difference of outputs and targets, over all of their elements."""
    return Loss("mse", _sum_squares, _numel)


def model_loss() -> Loss:
    """What the model itself computes in its forward; only then it is known how many targets count."""
    counts = MeanCounts()
    function = functools.partial(_own_loss, counts)
    return Loss("model", function, lambda targets: None, inside=True, trouble=lambda: counts.trouble)


def own_loss(name: str, function: Any) -> Loss:
    """A person's `function(outputs, targets) -> (sum, count)`.

    Raises: ModelError when it cannot be called so.
    """
    if not callable(function):
        raise ModelError(
            phrase("{name} is not a function.", name=name), path="loss.use", advice=phrase("Name a function.")
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ModelError(
            phrase("{name} does not take (outputs, targets).", name=name),
            path="loss.use",
            advice=phrase("Write it as def loss(outputs, targets): ... return total, count."),
        ) from None
    except ValueError:
        pass  # a builtin without a signature: the first call tells

    def checked(outputs: Any, targets: Any) -> tuple[Tensor, Any]:
        result = function(outputs, targets)
        if not _is_sum_and_count(result):
            raise ModelError(
                phrase(
                    "{name} must return (sum, count): a tensor without dims, and a number or such a tensor.",
                    name=name,
                ),
                path="loss.use",
                advice=phrase("Return the loss summed over its targets, and how many targets there were."),
            )
        total: Tensor = result[0]
        if torch.is_grad_enabled() and not total.requires_grad:
            raise ModelError(
                phrase(
                    "The sum that {name} returned does not depend on the model: nothing can be learned from "
                    "it.",
                    name=name,
                ),
                path="loss.use",
                advice=phrase("Compute it from the outputs, without detach() or float()."),
            )
        return total, result[1]

    return Loss(name, checked, lambda targets: None)


def _is_sum_and_count(result: Any) -> bool:
    if not (isinstance(result, tuple) and len(result) == 2):
        return False
    total, count = result
    counts = count.ndim == 0 if isinstance(count, Tensor) else isinstance(count, int | float) and count >= 0
    return isinstance(total, Tensor) and total.ndim == 0 and counts
