"""What a model's own loss is a mean of, read from the graph behind it.

    nll_loss over 57 targets + 0.02 x balance of a router       the loss that a model returns
    a mean over 57           + what is no mean                  its terms

Neither labels nor names of classes tell it: some models shift their labels inside, others do not, and masks
and weights count as the model likes. Every mean in the graph knows by how much it divides. Without a graph,
in an evaluation or behind torch.compile, batches are counted as it agreed with the graphs of the first steps.
Read losses.py before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config.catalog import MASKED
from rankdeck.torch_compat.fake_tensors import FakeTensor

Count = Tensor | int | float
_Rule = Callable[[Any], Count]
_NUM_LOOKS = 4
"""Batches whose graph is compared with what is in them; later ones cost nothing more."""
_LINEAR = {"Add", "Sub", "Rsub", "Neg", "Mul", "Div", "ToCopy", "Clone", "Alias", "Stack", "Cat"}
_LINEAR |= {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"}
"""What is done to numbers: a mean times a weight, plus another mean, is made of these."""

HOLDS_MORE = phrase(
    "The model's own loss holds what is no mean over targets, like the balance of a router. Parts of a "
    "batch, each with its own, do not add up to the loss of the whole: the run ends with other weights than "
    "one device that takes the batch at once."
)
HOLDS_SEVERAL = phrase(
    "The model's own loss adds up means over different numbers of targets. Parts of a batch, each with its "
    "own, do not add up to the loss of the whole: the run ends with other weights than one device that "
    "takes the batch at once."
)


@dataclass(frozen=True)
class Mean:
    """A term that is divided by `count`; targets of the value `ignored`, if any, were left out."""

    count: Count
    ignored: int | None = None


def terms(loss: Tensor) -> list[Mean | None]:
    """What a loss without dims adds up: None is what is no mean, or not known to be one. Nothing where there
    is no graph to look at."""
    if loss.grad_fn is None or loss.grad_fn.name().startswith("CompiledFunction"):
        return []
    return list(_terms((loss.grad_fn, 0), None))


def _terms(edge: tuple[Any, int], divisor: Count | None) -> Iterator[Mean | None]:
    """Of an operation's output by its number. Where all is divided by `divisor`, a sum is a mean."""
    node, output = edge
    kind, _, _ = node.name().partition("Backward")
    above = [one for one in node.next_functions if one[0] is not None]
    if kind == "_DDPSink":  # DistributedDataParallel hands outputs on, each for itself
        yield from _terms(node.next_functions[output], divisor)
    elif kind in ("Mean", "Sum"):
        if _is_of_numbers(node, above[0][0]):
            yield from _terms(above[0], divisor)
        elif kind == "Mean":
            yield Mean(math.prod(node._saved_self_sym_sizes))
        else:
            yield None if divisor is None else Mean(divisor)
    elif hasattr(node, "_saved_reduction"):
        yield _of_loss_function(node, divisor)
    elif kind in _LINEAR and (kind not in ("Mul", "Div") or len(above) == 1):
        within = _product(node._saved_other, divisor) if kind == "Div" else divisor
        for one in above:
            yield from _terms(one, within)
    else:
        yield None


def _product(other: Tensor, divisor: Count | None) -> Count:
    """Of what is divided by in turn. A number of Python's comes as a tensor that no dispatch mode can take:
    it becomes a number again, without a copy, as every count does that a CPU holds."""
    is_at_hand = type(other) is Tensor and other.device.type == "cpu" and not other.ndim
    count: Any = other.tolist() if is_at_hand else other
    product: Count = count if divisor is None else count * divisor
    return product


def _is_of_numbers(reduction: Any, source: Any) -> bool:
    """Whether what is reduced are numbers that were put together, or a single one: not targets."""
    num = math.prod(sizes := reduction._saved_self_sym_sizes)
    is_joined = source.name().startswith(("Stack", "Cat")) and num == len(source.next_functions)
    return not sizes or is_joined or (num == 1 and source.name().startswith("Unsqueeze"))


def _of_loss_function(node: Any, divisor: Count | None) -> Mean | None:
    """Of torch's own losses, which say how they reduce: 1 is a mean, 2 a sum."""
    ignored = getattr(node, "_saved_ignore_index", None)
    if ignored is not None and ignored >= 2**63:  # shown without its sign
        ignored -= 2**64
    if node._saved_reduction == 2:
        return None if divisor is None else Mean(divisor, ignored)
    if node._saved_reduction != 1:
        return None
    if ignored is None:
        return Mean(node._saved_self.numel())
    if node._saved_weight is not None:
        return Mean(node._saved_total_weight, ignored)
    return Mean((node._saved_target != ignored).sum(), ignored)


class MeanCounts:
    """How many targets a model's own loss is a mean of, batch by batch. `trouble` says why parts of a batch
    do not add up to the whole; None where nothing speaks against it."""

    def __init__(self) -> None:
        self.trouble: Phrase | None = None
        self._rules: list[_Rule] | None = None
        self._shares: list[float] = []
        self._num_looks = 0

    def of(self, loss: Tensor, batch: Any) -> Count | None:
        """None where neither the graph nor the batch tells."""
        found = terms(loss)
        means = [term for term in found if term is not None]
        if len(means) < len(found):
            self.trouble = HOLDS_MORE
        if not means:
            return self._without_graph(batch)
        if self._num_looks < _NUM_LOOKS and not isinstance(loss, FakeTensor):
            self._look(means, batch)
        return means[0].count

    def _without_graph(self, batch: Any) -> Count | None:
        if self._rules is None:
            labels = _labelled(batch).get("labels")
            return None if labels is None else (labels != MASKED).sum()
        return self._rules[0](batch) if self._rules else _num_samples(batch)

    def _look(self, means: list[Mean], batch: Any) -> None:
        """Keep the rules that count this batch as its graph does."""
        self._num_looks += 1
        count = float(means[0].count)
        rules = _rules(batch, means[0], count) if self._rules is None else self._rules
        self._rules = [rule for rule in rules if float(rule(batch)) == count]
        shares = [float(mean.count) / count for mean in means if count]
        if self._shares and shares and shares != self._shares:
            self.trouble = HOLDS_SEVERAL
        self._shares = shares or self._shares


def _rules(batch: Any, mean: Mean, count: float) -> list[_Rule]:
    """Ways to count a batch, likelier ones first."""
    masks = dict.fromkeys([MASKED if mean.ignored is None else mean.ignored, MASKED, 0])
    integers = [name for name, tensor in _labelled(batch).items() if not tensor.is_floating_point()]
    rules: list[_Rule] = [
        partial(_unmasked, name=name, first=first, mask=mask)
        for name in sorted(integers, key=lambda name: name != "labels")
        for mask in masks
        for first in (0, 1)
    ]
    each = count / max(_num_samples(batch), 1)
    return [*rules, lambda batch: each * _num_samples(batch)]


def _unmasked(batch: Any, *, name: str, first: int, mask: int) -> Tensor:
    """How many of a tensor are not `mask`; decoders leave out what is before the `first` of a row."""
    tensor = _labelled(batch)[name]
    return ((tensor[..., first:] if tensor.ndim > 1 else tensor) != mask).sum()


def _labelled(batch: Any) -> Mapping[str, Tensor]:
    """The tensors of a batch by name. One without a name is the labels."""
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    return {"labels": batch} if isinstance(batch, Tensor) and batch.ndim else {}


def _num_samples(batch: Any) -> int:
    return max((len(tensor) for tensor in _labelled(batch).values()), default=0)
