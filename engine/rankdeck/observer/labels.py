"""Checks the class labels of training batches: labels that never vary, and data that is sorted by class.

What looks like class labels may be lengths, domains or placeholders that the script ignores. So suspicious
labels count only after the graph of a sampled step's loss has shown that a classification loss was computed
from exactly these labels. A graph is read only while labels are suspicious. The labels of shuffled data
stop being suspicious after the first batches, and from then on nothing is examined. Read loaders.py first.
"""

from __future__ import annotations

import weakref
from itertools import groupby

from .readings import has_active_modes, is_capturing
from .sampling import innermost_sampler, is_in_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "labels"
_LABEL_KEYS = ("labels", "label", "targets", "target", "y")
_MAX_LABELS = 4096
"""Maximum number of labels in a batch that is examined."""
_MIN_LABELS, _MIN_BATCHES = 64, 8
"""Minimum numbers of labels and of batches to examine before labels count as suspicious."""
_MIN_LABELS_WITHOUT_END = 50_000
"""Minimum number of equal labels to report if no pass was completed: fewer may lack rare classes."""
_MAX_PASSES = 10
"""Number of passes with only one label after which the label is reported at once. After fewer passes, it is
reported only at the end of the process, because a script may train on one class after the other."""
_MAX_LOSSES = 10
"""Number of sampled losses that are searched for the labels."""
_MIN_STEPS_PER_CLASS = 2
_MAX_NODES = 64
_LOSS_NODES = ("NllLossBackward", "BinaryCrossEntropy")
_PASSED_NODES = ("LogSoftmax", "View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Sigmoid", "Select")
_PRODUCTS = ("Addmm", "Mm", "Linear")


class LabelChecks:
    """Checks the class labels of all training loaders of the process."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self.session = torch, session
        self.forget()

    def forget(self) -> None:
        self.is_done = False
        """Whether no more labels are examined: they are shuffled or unused, or a fault was reported."""
        self.first_label: Any = None
        self.has_varied = self.is_used = False
        """Whether different labels have occurred; `is_used`: whether a loss was computed from the labels."""
        self.num_constant = 0
        """Number of complete passes that had only one label."""
        self.num_labels = self.num_batches = 0
        self.suspicious: Any = None
        """(weak reference to the labels, their values) of the last suspicious batch."""
        self._num_searched = 0

    def start_pass(self, iterator: Any) -> Any:
        """Return the check for the batches of a new pass over a loader; None if labels are no longer
        examined."""
        if self.is_done or (self.has_varied and not is_in_order(iterator)):
            return None
        return _Pass(self, iterator)

    def labels_of(self, batch: Any) -> Any:
        """Return the tensor of class labels in a batch of inputs and labels; None if there is none."""
        if isinstance(batch, (list, tuple)) and len(batch) == 2:
            inputs, labels = batch
        elif hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
            keys = [key for key in _LABEL_KEYS if key in batch]
            others = [key for key in list(batch.keys()) if key not in _LABEL_KEYS]
            if len(keys) != 1 or not others:
                return None
            inputs, labels = batch[others[0]], batch[keys[0]]
        else:
            return None
        tensor = self._torch.Tensor
        if type(labels) is not tensor or type(inputs) is not tensor or labels.device.type != "cpu":
            return None
        num = labels.numel()
        is_column = labels.dim() == 1 or (labels.dim() == 2 and labels.shape[1] == 1)
        if not is_column or not 2 <= num <= _MAX_LABELS or inputs.dim() == 0 or inputs.shape[0] != num:
            return None
        return labels

    def on_backward(self, tensors: Any) -> None:
        """Search the graph of a sampled step's loss for the labels of the last suspicious batch."""
        if self.suspicious is None or not self.session.is_step_sampled or not tensors:
            return
        (reference, values), self.suspicious = self.suspicious, None
        labels = reference()
        if labels is None or is_capturing(self._torch) or has_active_modes(self._torch):
            return
        self._num_searched += 1
        nodes = _loss_nodes([tensor.grad_fn for tensor in tensors])
        self.is_used = any(self._uses(node, labels, values, len(nodes)) for node in nodes)
        if not self.is_used and self._num_searched == _MAX_LOSSES:
            self.is_done = True

    def _uses(self, node: Any, labels: Any, values: list[Any], num_losses: int) -> bool:
        """Check whether the loss of this node was computed from `labels`, whose elements are `values`.
        `num_losses` is the number of classification losses found in the same backward call."""
        try:
            target = node._saved_target
        except RuntimeError:  # An earlier backward has freed it.
            return False
        if target.numel() != len(values):
            return False
        if target.device == labels.device and target.data_ptr() == labels.data_ptr():
            return True
        # A target that was converted or copied has the labels' values, and no other loss has a target. The
        # targets of contrastive losses and of GANs are constants of the script; the former compare
        # features with each other, the latter have two optimizers.
        if num_losses > 1 or not _has_linear_head(node) or len(self.session.optimizers) > 1:
            return False
        return bool(target.reshape(-1).tolist() == values)

    def on_tick(self) -> None:
        """Report constant labels at the end of the process."""
        if self.session.is_ending and (self.num_constant or self.num_labels >= _MIN_LABELS_WITHOUT_END):
            self.report_constant()

    def report_constant(self) -> None:
        """Report that all labels of the training batches are the same."""
        is_enough = self.num_labels >= _MIN_LABELS and self.num_batches >= _MIN_BATCHES
        if self.has_varied or self.is_done or not self.is_used or not is_enough:
            return
        self.is_done = True
        self.session.report_anomaly(
            "labels-constant",
            label=float(self.first_label),
            labels=self.num_labels,
            batches=self.num_batches,
            passes=self.num_constant,
        )


class _Pass:
    """The labels of a pass over a loader, as runs of equal labels."""

    def __init__(self, checks: LabelChecks, iterator: Any) -> None:
        self._checks, self._is_in_order = checks, is_in_order(iterator)
        self._sampler = type(innermost_sampler(iterator)).__name__
        self._is_iterable = iterator._dataset_kind == 1
        self._first_step = checks.session.num_outermost_steps
        self._runs: list[list[Any]] = []
        """[label, number of labels] of each run."""
        self._num_labels = self._num_batches = self._num_one_class = 0
        self._is_complete = True
        """Whether all batches so far were examined."""

    def on_batch(self, batch: Any) -> bool:
        """Examine a batch; return whether the next one must be examined too."""
        checks, self._is_complete = self._checks, False
        labels = None if checks.is_done else checks.labels_of(batch)
        if labels is None:
            return False
        values = labels.reshape(-1).tolist()
        if labels.is_floating_point() and any(value not in (0.0, 1.0) for value in values):
            return False
        # The first batches of shuffled data already fail here.
        is_contiguous = self._add(values)
        if not is_contiguous:
            checks.is_done = True
            return False
        if len(self._runs) > 1 and not self._is_in_order:
            return False
        is_suspicious = self._num_labels >= _MIN_LABELS and self._num_batches >= _MIN_BATCHES
        if is_suspicious and not checks.is_used:
            checks.suspicious = weakref.ref(labels), values
        self._is_complete = True
        return True

    def _add(self, values: list[Any]) -> bool:
        """Add a batch's labels; return whether the data may still be sorted by class."""
        checks, runs = self._checks, self._runs
        self._num_batches += 1
        checks.num_batches += 1
        self._num_labels += len(values)
        checks.num_labels += len(values)
        if checks.first_label is None:
            checks.first_label = values[0]
        if values.count(values[0]) == len(values):
            self._num_one_class += 1
            groups = [(values[0], len(values))]
        else:
            groups = [(label, len(list(group))) for label, group in groupby(values)]
        for label, count in groups:
            if label != checks.first_label:
                checks.has_varied = True
            if runs and runs[-1][0] == label:
                runs[-1][1] += count
            elif any(run[0] == label for run in runs):
                return False
            else:
                runs.append([label, count])
        return len(runs) <= self._num_batches + 1

    def on_pass_ended(self) -> None:
        """Handle the end of a complete pass over a loader whose batches a backward pass used."""
        checks, runs = self._checks, self._runs
        if not self._is_complete or not runs:
            return
        if len(runs) == 1:
            # A later task or loader may still have other labels, so this waits.
            checks.num_constant += 1
            if checks.num_constant >= _MAX_PASSES:
                checks.report_constant()
            return
        # If gradients are accumulated over the whole pass, its order makes no difference.
        num_steps = checks.session.num_outermost_steps - self._first_step
        is_large = self._num_labels >= _MIN_LABELS and self._num_batches >= _MIN_BATCHES
        num_long = sum(count * self._num_batches >= 2 * self._num_labels for _, count in runs)
        if (
            is_large
            and checks.is_used
            and num_long >= 2
            and 2 * self._num_one_class >= self._num_batches
            and num_steps >= _MIN_STEPS_PER_CLASS * len(runs)
        ):
            checks.is_done = True
            checks.session.report_anomaly(
                "batches-of-one-class",
                names=[self._sampler],
                step=checks.session.step,
                classes=len(runs),
                batches=self._num_batches,
                one_class=self._num_one_class,
                iterable=int(self._is_iterable),
            )


def _loss_nodes(roots: list[Any]) -> list[Any]:
    """Return the nodes of classification losses near these roots of the graph."""
    # Breadth first: scaling and summing of losses come before them, the model after them.
    found, waiting, num_nodes = [], [node for node in roots if node is not None], 0
    while waiting and num_nodes < _MAX_NODES:
        node = waiting.pop(0)
        num_nodes += 1
        if node.name().startswith(_LOSS_NODES) and hasattr(type(node), "_saved_target"):
            found.append(node)
        else:
            waiting += [following for following, _ in node.next_functions if following is not None]
    return found


def _has_linear_head(node: Any) -> bool:
    """Check whether the loss's input is the output of a linear layer, whose parameters are leaves."""
    for _ in range(_MAX_NODES):
        node = next((following for following, _ in node.next_functions if following is not None), None)
        if node is None:
            return False
        if node.name().startswith(_PRODUCTS):
            inputs = [following for following, _ in node.next_functions if following is not None]
            inputs += [following for each in inputs for following, _ in each.next_functions if following]
            return any(following.name().endswith("AccumulateGrad") for following in inputs)
        if not node.name().startswith(_PASSED_NODES):
            return False
    return False
