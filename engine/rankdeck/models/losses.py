"""Computes losses as a sum and a count, never as a mean.

A mean of means is wrong if ranks have different numbers of targets (off by 4e-3 on masked text); sums add up
however the batch is split. The training loop divides once, by the count of the global batch. Megatron-LM and
torchtitan use the sum form for the same reason. Read training/step.py next.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config.catalog import IGNORE_INDEX
from rankdeck.torch_compat.fake_tensors import FakeTensor

LossFunction = Callable[[Any, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Loss:
    """The training loss. `function(outputs, targets)` returns (sum, count); count is an int or 0-dim tensor.

    `nominal_count(targets)` is the count if no target is masked; None if only a forward pass can determine
    it. `count_correct(outputs, targets)` counts correct predictions; None if there are no classes.
    """

    name: str
    function: LossFunction
    nominal_count: Callable[[Any], int | None]
    count_correct: Callable[[Any, Any], Tensor] | None = None
    is_in_model: bool = False
    """Whether the model's forward() computes the loss from the batch."""
    mismatch: Callable[[], Phrase | None] = lambda: None
    """Function that returns the reason why the losses of micro-batches do not always add up to the batch's
    loss, or None if no reason was found."""


def _align_classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits as (N, C) and targets as (N,), from (B, ..., C) or torch's own (B, C, ...).

    Raises: ModelError."""
    if not isinstance(outputs, Tensor):
        raise ModelError(
            phrase(
                "cross_entropy needs the model's output to be one tensor; it is a {kind}.",
                kind=type(outputs).__name__,
            ),
            path="loss.use",
            advice=phrase('Set loss.use = "model", or set it to your own "module:function".'),
        )
    if outputs.ndim == 2 and targets.ndim == 1 and len(outputs) == len(targets):
        return outputs, targets
    if outputs.shape[:-1] == targets.shape:
        return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    if outputs.ndim > 2 and outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        return outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), targets.reshape(-1)
    raise ModelError(
        phrase(
            "cross_entropy cannot match outputs of shape {outputs} with targets of shape {targets}.",
            outputs=tuple(outputs.shape),
            targets=tuple(targets.shape),
        ),
        path="loss.use",
        advice=phrase("Outputs need one more dimension than targets, for the classes."),
    )


def _sum_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the cross entropy of logits (B, ..., C) and classes (B, ...); targets of -100 do not count."""
    total, _ = _sum_unmasked_cross_entropy(outputs, targets)
    return total, (targets != IGNORE_INDEX).sum()


def _sum_unmasked_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Sum the cross entropy like `_sum_cross_entropy`, but for targets that are never masked: the count is
    the number of targets."""
    logits, classes = _align_classes(outputs, targets)
    return F.cross_entropy(logits, classes, ignore_index=IGNORE_INDEX, reduction="sum"), targets.numel()


def _count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    logits, classes = _align_classes(outputs, targets)
    return ((logits.argmax(-1) == classes) & (classes != IGNORE_INDEX)).sum()


def _sum_squares(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Sum the squared differences between outputs and targets of the same shape (B, ...)."""
    if not isinstance(outputs, Tensor) or outputs.shape != targets.shape:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            phrase(
                "mse cannot pair outputs {shape} with targets {targets}.",
                shape=shape,
                targets=tuple(targets.shape),
            ),
            path="loss.use",
            advice=phrase(
                'Targets must have the same shape as outputs; for classes, set loss.use = "cross_entropy".'
            ),
        )
    return F.mse_loss(outputs, targets.to(outputs.dtype), reduction="sum"), targets.numel()


def _get_field(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _model_loss(counts: MeanCounter, outputs: Any, targets: Any) -> tuple[Tensor, Any]:
    """Return (sum, count) for the `.loss` of `outputs`, which is a mean over `.count` targets. If `outputs`
    has no `.count`, `counts` finds the number of targets."""
    loss = _get_field(outputs, "loss")
    if not isinstance(loss, Tensor):
        raise ModelError(
            phrase('loss.use is "model", but the model\'s output has no loss.'),
            path="loss.use",
            advice=phrase(
                "Return an object or a dict with `loss` (a mean) and, if the number of targets "
                "varies, `count`."
            ),
        )
    count = _get_field(outputs, "count")
    if count is None:
        count = counts.find_count(loss, targets)
    if count is None:
        raise ModelError(
            phrase('loss.use is "model", but the number of targets that the loss averages over is unknown.'),
            path="loss.use",
            advice=phrase("Add `count` to the output, or `labels` to the batch."),
        )
    # The mean of an all-masked batch is NaN; its sum and gradients must be 0.
    some = torch.as_tensor(count, device=loss.device) > 0
    return torch.where(some, loss, torch.nan_to_num(loss)) * count, count


def _numel(targets: Any) -> int | None:
    return targets.numel() if isinstance(targets, Tensor) else None


def cross_entropy(*, may_mask: bool = True) -> Loss:
    """Return the loss that sums the cross entropy over targets other than IGNORE_INDEX and counts correct
    predictions. If `may_mask` is False, no target is ever masked, and the count is the number of targets."""
    function = _sum_cross_entropy if may_mask else _sum_unmasked_cross_entropy
    return Loss("cross_entropy", function, _numel, _count_correct)


def mse() -> Loss:
    """Return the loss that sums the squared errors over all elements."""
    return Loss("mse", _sum_squares, _numel)


def model_loss() -> Loss:
    """Return the loss that the model's forward() computes, over targets that the model chooses."""
    counts = MeanCounter()
    function = functools.partial(_model_loss, counts)
    return Loss("model", function, lambda targets: None, is_in_model=True, mismatch=lambda: counts.mismatch)


def user_loss(name: str, function: Any) -> Loss:
    """Return the loss for a user's `function(outputs, targets) -> (sum, count)`. Raises: ModelError."""
    if not callable(function):
        raise ModelError(
            phrase("{name} is not a function.", name=name),
            path="loss.use",
            advice=phrase("Set loss.use to the name of a function."),
        )
    try:
        # Check the signature now: the first call may come minutes later.
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ModelError(
            phrase("{name} does not accept the arguments (outputs, targets).", name=name),
            path="loss.use",
            advice=phrase("Write it as def loss(outputs, targets): ... return total, count."),
        ) from None
    except ValueError:
        pass  # a builtin without a signature: the first call will tell

    def checked(outputs: Any, targets: Any) -> tuple[Tensor, Any]:
        result = function(outputs, targets)
        if not _is_sum_and_count(result):
            raise ModelError(
                phrase(
                    "{name} must return (sum, count): a 0-dim tensor, and an int or 0-dim tensor.",
                    name=name,
                ),
                path="loss.use",
                advice=phrase("Return the loss summed over its targets, and the number of targets."),
            )
        total: Tensor = result[0]
        if torch.is_grad_enabled() and not total.requires_grad:
            raise ModelError(
                phrase(
                    "The sum that {name} returned does not depend on the model's parameters, "
                    "so it has no gradients.",
                    name=name,
                ),
                path="loss.use",
                advice=phrase("Compute the sum from the outputs, without detach() or float()."),
            )
        return total, result[1]

    return Loss(name, checked, lambda targets: None)


def _is_sum_and_count(result: Any) -> bool:
    if not (isinstance(result, tuple) and len(result) == 2):
        return False
    total, count = result
    counts = count.ndim == 0 if isinstance(count, Tensor) else isinstance(count, int | float) and count >= 0
    return isinstance(total, Tensor) and total.ndim == 0 and counts


# Finds how many targets a model's own loss is a mean of, from its autograd graph.
#
#     nll_loss over 57 targets + 0.02 x a router's balance loss   the loss that a model returns
#     a mean over 57           + a term that is not a mean        its terms
#
# Labels, class names and signatures do not tell: each was wrong for some of 22 Hugging Face models. Some
# models shift their labels inside, others do not, and masks and weights count in different ways. Every mean
# in the graph knows its divisor. Without a graph (in an evaluation or behind torch.compile), a batch is
# counted by the rule that matched the graphs of the first steps. A loss S1/N1 + S2/N2 over different counts
# has no single divisor, as all counts would be needed before the first backward pass: it is only reported.

Count = Tensor | int | float
_CountRule = Callable[[Any], Count]
_MAX_GRAPH_CHECKS = 4
"""Number of batches for which the loss's autograd graph is compared with the batch's contents."""
_LINEAR_OPS = {"Add", "Sub", "Rsub", "Neg", "Mul", "Div", "ToCopy", "Clone", "Alias", "Stack", "Cat"}
_LINEAR_OPS |= {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"}
"""Linear operations, which compute a weighted sum of their inputs, such as a loss from several means."""

NOT_ONLY_MEANS = phrase(
    "The model's own loss contains a term that is not a mean over targets, such as a router's "
    "load-balancing loss. The losses of parts of a batch do not add up to the whole batch's "
    "loss, so the weights differ from those of single-device training on whole batches."
)
UNEQUAL_COUNTS = phrase(
    "The model's own loss adds up means over different numbers of targets. The losses of parts "
    "of a batch do not add up to the whole batch's loss, so the weights differ from those of "
    "single-device training on whole batches."
)


@dataclass(frozen=True)
class MeanTerm:
    """A loss term that is a sum divided by `count`. If `ignore_index` is set, targets equal to it were not
    counted."""

    count: Count
    ignore_index: int | None = None


def loss_terms(loss: Tensor) -> list[MeanTerm | None]:
    """Return the terms that add up to `loss`, a 0-dim tensor; an empty list if there is no autograd graph to
    inspect. None stands for a term that may not be a mean."""
    if loss.grad_fn is None or loss.grad_fn.name().startswith("CompiledFunction"):
        return []
    return list(_iter_terms((loss.grad_fn, 0), None))


def _iter_terms(edge: tuple[Any, int], divisor: Count | None) -> Iterator[MeanTerm | None]:
    """Yield the terms that add up to an output of a graph node; `edge` is (node, output index). If `divisor`
    is set, that output is later divided by it, so a sum counts as a mean."""
    node, output = edge
    kind, _, _ = node.name().partition("Backward")
    above = [input_edge for input_edge in node.next_functions if input_edge[0] is not None]
    if kind == "_DDPSink":  # DistributedDataParallel passes each output through on its own
        yield from _iter_terms(node.next_functions[output], divisor)
    elif kind in ("Mean", "Sum"):
        if _reduces_scalars(node, above[0][0]):
            yield from _iter_terms(above[0], divisor)
        elif kind == "Mean":
            yield MeanTerm(math.prod(node._saved_self_sym_sizes))
        else:
            yield None if divisor is None else MeanTerm(divisor)
    elif hasattr(node, "_saved_reduction"):
        yield _loss_function_mean(node, divisor)
    elif kind in _LINEAR_OPS and (kind not in ("Mul", "Div") or len(above) == 1):
        within = _multiply(node._saved_other, divisor) if kind == "Div" else divisor
        for input_edge in above:
            yield from _iter_terms(input_edge, within)
    else:
        yield None


def _multiply(other: Tensor, divisor: Count | None) -> Count:
    """Return the total divisor of a loss that is divided by `other` and, if set, by `divisor`. Autograd
    passes a Python number as a tensor that no dispatch mode can handle, so every 0-dim CPU tensor is
    converted to a number, without a copy."""
    is_at_hand = type(other) is Tensor and other.device.type == "cpu" and not other.ndim
    count: Any = other.tolist() if is_at_hand else other
    product: Count = count if divisor is None else count * divisor
    return product


def _reduces_scalars(reduction: Any, source: Any) -> bool:
    """Check whether the reduction's input is a stack of scalars or a single number, rather than a loss per
    target."""
    num = math.prod(sizes := reduction._saved_self_sym_sizes)
    is_joined = source.name().startswith(("Stack", "Cat")) and num == len(source.next_functions)
    return not sizes or is_joined or (num == 1 and source.name().startswith("Unsqueeze"))


def _loss_function_mean(node: Any, divisor: Count | None) -> MeanTerm | None:
    """Return the term of a torch loss function, whose graph node stores the reduction (1: mean, 2: sum)."""
    ignored = getattr(node, "_saved_ignore_index", None)
    if ignored is not None and ignored >= 2**63:  # torch exposes it as unsigned
        ignored -= 2**64
    if node._saved_reduction == 2:
        return None if divisor is None else MeanTerm(divisor, ignored)
    if node._saved_reduction != 1:
        return None
    if ignored is None:
        return MeanTerm(node._saved_self.numel())
    if node._saved_weight is not None:
        return MeanTerm(node._saved_total_weight, ignored)
    return MeanTerm((node._saved_target != ignored).sum(), ignored)


class MeanCounter:
    """Counter of the targets in a batch over which the model's own loss averages. `mismatch` is the
    reason why the losses of micro-batches do not add up to the batch's loss; None if none was found."""

    def __init__(self) -> None:
        self.mismatch: Phrase | None = None
        self._rules: list[_CountRule] | None = None
        self._shares: list[float] = []
        self._num_graph_checks = 0

    def find_count(self, loss: Tensor, batch: Any) -> Count | None:
        """Return the number of targets; None if neither the loss's graph nor the batch reveals it."""
        terms = loss_terms(loss)
        means = [term for term in terms if term is not None]
        if len(means) < len(terms):
            self.mismatch = NOT_ONLY_MEANS
        if not means:
            return self._count_without_graph(batch)
        if self._num_graph_checks < _MAX_GRAPH_CHECKS and not isinstance(loss, FakeTensor):
            self._check_rules(means, batch)
        return means[0].count

    def _count_without_graph(self, batch: Any) -> Count | None:
        if self._rules is None:
            labels = _named_tensors(batch).get("labels")
            return None if labels is None else (labels != IGNORE_INDEX).sum()
        return self._rules[0](batch) if self._rules else _num_samples(batch)

    def _check_rules(self, means: list[MeanTerm], batch: Any) -> None:
        """Keep only the rules whose count for this batch matches the count in the loss's graph."""
        self._num_graph_checks += 1
        count = float(means[0].count)
        rules = _make_rules(batch, means[0], count) if self._rules is None else self._rules
        self._rules = [rule for rule in rules if float(rule(batch)) == count]
        shares = [float(mean.count) / count for mean in means if count]
        if self._shares and shares and shares != self._shares:
            self.mismatch = UNEQUAL_COUNTS
        self._shares = shares or self._shares


def _make_rules(batch: Any, mean: MeanTerm, count: float) -> list[_CountRule]:
    """Return candidate rules for counting the targets of a batch, most likely first."""
    masks = dict.fromkeys([IGNORE_INDEX if mean.ignore_index is None else mean.ignore_index, IGNORE_INDEX, 0])
    integers = [name for name, tensor in _named_tensors(batch).items() if not tensor.is_floating_point()]
    rules: list[_CountRule] = [
        partial(_count_unmasked, name=name, first=first, mask=mask)
        for name in sorted(integers, key=lambda name: name != "labels")
        for mask in masks
        for first in (0, 1)
    ]
    each = count / max(_num_samples(batch), 1)
    return [*rules, lambda batch: each * _num_samples(batch)]


def _count_unmasked(batch: Any, *, name: str, first: int, mask: int) -> Tensor:
    """Count the elements of the tensor `name` that differ from `mask`. The first `first` positions of each
    row, which decoders skip, are excluded."""
    tensor = _named_tensors(batch)[name]
    return ((tensor[..., first:] if tensor.ndim > 1 else tensor) != mask).sum()


def _named_tensors(batch: Any) -> Mapping[str, Tensor]:
    """Return the batch's tensors by name; a batch that is a single tensor is named "labels"."""
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    return {"labels": batch} if isinstance(batch, Tensor) and batch.ndim else {}


def _num_samples(batch: Any) -> int:
    return max((len(tensor) for tensor in _named_tensors(batch).values()), default=0)
