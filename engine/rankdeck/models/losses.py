"""Losses as a SUM and a count, never as a mean.

A mean of means is wrong as soon as ranks hold different numbers of targets (4e-3 on masked text); sums add up
whatever the cut is. The loop divides once, by the count of the whole global batch. Source: the sum form is
what Megatron-LM and torchtitan use for the same reason. Read training/step.py next.
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
    """What is minimised. `function(outputs, targets)` gives (sum, count); count is an int or a 0-dim tensor.

    `nominal_count(targets)` is the count that a batch without masked targets has; None where only the forward
    can tell. `correct(outputs, targets)` counts right answers; None where there are no classes.
    """

    name: str
    function: LossFunction
    nominal_count: Callable[[Any], int | None]
    count_correct: Callable[[Any, Any], Tensor] | None = None
    is_in_model: bool = False
    """Whether the model computes it in its forward, from the batch that it is given."""
    mismatch: Callable[[], Phrase | None] = lambda: None
    """Why parts of a batch do not add up to the whole, as far as was seen by now; None where they do."""


def _align_classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
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
    return total, (targets != IGNORE_INDEX).sum()


def _sum_unmasked_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """As above, where no target is masked: they are counted without looking at them."""
    logits, classes = _align_classes(outputs, targets)
    return F.cross_entropy(logits, classes, ignore_index=IGNORE_INDEX, reduction="sum"), targets.numel()


def _count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    logits, classes = _align_classes(outputs, targets)
    return ((logits.argmax(-1) == classes) & (classes != IGNORE_INDEX)).sum()


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


def _get_field(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _model_loss(counts: MeanCounter, outputs: Any, targets: Any) -> tuple[Tensor, Any]:
    """The model's `.loss`, a mean over `.count` targets; without a count, over as many as `counts` finds."""
    loss = _get_field(outputs, "loss")
    if not isinstance(loss, Tensor):
        raise ModelError(
            phrase('loss.use = "model", but the model\'s output has no loss.'),
            path="loss.use",
            advice=phrase(
                "Return an object or a dict with `loss` (a mean) and, where it can differ, `count`."
            ),
        )
    count = _get_field(outputs, "count")
    if count is None:
        count = counts.find_count(loss, targets)
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
    return Loss("cross_entropy", function, _numel, _count_correct)


def mse() -> Loss:
    """The squared difference of outputs and targets, over all of their elements."""
    return Loss("mse", _sum_squares, _numel)


def model_loss() -> Loss:
    """What the model itself computes in its forward; only then it is known how many targets count."""
    counts = MeanCounter()
    function = functools.partial(_model_loss, counts)
    return Loss("model", function, lambda targets: None, is_in_model=True, mismatch=lambda: counts.mismatch)


def user_loss(name: str, function: Any) -> Loss:
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


# What a model's own loss is a mean of, read from the graph behind it.
#
#     nll_loss over 57 targets + 0.02 x balance of a router       the loss that a model returns
#     a mean over 57           + what is no mean                  its terms
#
# Neither labels nor names of classes tell it: some models shift their labels inside, others do not, and
# masks and weights count as the model likes. Every mean in the graph knows by how much it divides. Without
# a graph, in an evaluation or behind torch.compile, batches are counted as it agreed with the graphs of the
# first steps.

Count = Tensor | int | float
_CountRule = Callable[[Any], Count]
_MAX_GRAPH_CHECKS = 4
"""Batches whose graph is compared with what is in them; later ones cost nothing more."""
_LINEAR_OPS = {"Add", "Sub", "Rsub", "Neg", "Mul", "Div", "ToCopy", "Clone", "Alias", "Stack", "Cat"}
_LINEAR_OPS |= {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"}
"""What is done to numbers: a mean times a weight, plus another mean, is made of these."""

NOT_ONLY_MEANS = phrase(
    "The model's own loss holds what is no mean over targets, like the balance of a router. Parts of a "
    "batch, each with its own, do not add up to the loss of the whole: the run ends with other weights than "
    "one device that takes the batch at once."
)
UNEQUAL_COUNTS = phrase(
    "The model's own loss adds up means over different numbers of targets. Parts of a batch, each with its "
    "own, do not add up to the loss of the whole: the run ends with other weights than one device that "
    "takes the batch at once."
)


@dataclass(frozen=True)
class MeanTerm:
    """A term that is divided by `count`; targets of the value `ignore_index`, if any, were left out."""

    count: Count
    ignore_index: int | None = None


def loss_terms(loss: Tensor) -> list[MeanTerm | None]:
    """What a loss without dims adds up: None is what is no mean, or not known to be one. Nothing where there
    is no graph to look at."""
    if loss.grad_fn is None or loss.grad_fn.name().startswith("CompiledFunction"):
        return []
    return list(_iter_terms((loss.grad_fn, 0), None))


def _iter_terms(edge: tuple[Any, int], divisor: Count | None) -> Iterator[MeanTerm | None]:
    """Of an operation's output by its number. Where all is divided by `divisor`, a sum is a mean."""
    node, output = edge
    kind, _, _ = node.name().partition("Backward")
    above = [one for one in node.next_functions if one[0] is not None]
    if kind == "_DDPSink":  # DistributedDataParallel hands outputs on, each for itself
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
        for one in above:
            yield from _iter_terms(one, within)
    else:
        yield None


def _multiply(other: Tensor, divisor: Count | None) -> Count:
    """Of what is divided by in turn. A number of Python's comes as a tensor that no dispatch mode can take:
    it becomes a number again, without a copy, as every count does that a CPU holds."""
    is_at_hand = type(other) is Tensor and other.device.type == "cpu" and not other.ndim
    count: Any = other.tolist() if is_at_hand else other
    product: Count = count if divisor is None else count * divisor
    return product


def _reduces_scalars(reduction: Any, source: Any) -> bool:
    """Whether what is reduced are numbers that were put together, or a single one: not targets."""
    num = math.prod(sizes := reduction._saved_self_sym_sizes)
    is_joined = source.name().startswith(("Stack", "Cat")) and num == len(source.next_functions)
    return not sizes or is_joined or (num == 1 and source.name().startswith("Unsqueeze"))


def _loss_function_mean(node: Any, divisor: Count | None) -> MeanTerm | None:
    """Of torch's own losses, which say how they reduce: 1 is a mean, 2 a sum."""
    ignored = getattr(node, "_saved_ignore_index", None)
    if ignored is not None and ignored >= 2**63:  # shown without its sign
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
    """How many targets a model's own loss is a mean of, batch by batch. `mismatch` says why parts of a batch
    do not add up to the whole; None where nothing speaks against it."""

    def __init__(self) -> None:
        self.mismatch: Phrase | None = None
        self._rules: list[_CountRule] | None = None
        self._shares: list[float] = []
        self._num_graph_checks = 0

    def find_count(self, loss: Tensor, batch: Any) -> Count | None:
        """None where neither the graph nor the batch tells."""
        found = loss_terms(loss)
        means = [term for term in found if term is not None]
        if len(means) < len(found):
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
        """Keep the rules that count this batch as its graph does."""
        self._num_graph_checks += 1
        count = float(means[0].count)
        rules = _make_rules(batch, means[0], count) if self._rules is None else self._rules
        self._rules = [rule for rule in rules if float(rule(batch)) == count]
        shares = [float(mean.count) / count for mean in means if count]
        if self._shares and shares and shares != self._shares:
            self.mismatch = UNEQUAL_COUNTS
        self._shares = shares or self._shares


def _make_rules(batch: Any, mean: MeanTerm, count: float) -> list[_CountRule]:
    """Ways to count a batch, likelier ones first."""
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
    """How many of a tensor are not `mask`; decoders leave out what is before the `first` of a row."""
    tensor = _named_tensors(batch)[name]
    return ((tensor[..., first:] if tensor.ndim > 1 else tensor) != mask).sum()


def _named_tensors(batch: Any) -> Mapping[str, Tensor]:
    """The tensors of a batch by name. One without a name is the labels."""
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    return {"labels": batch} if isinstance(batch, Tensor) and batch.ndim else {}


def _num_samples(batch: Any) -> int:
    return max((len(tensor) for tensor in _named_tensors(batch).values()), default=0)
