"""Checks whether all workers yield the same training batches, or all epochs have the same order.

A few numbers are read from the first batches of an epoch, and only from tensors in host memory. Batches
arrive from the workers in turn. If N workers yield the same samples, the batches in each group of N are
therefore equal. If each worker shuffles the same samples, every sample of an epoch arrives once from each
worker. Read epochs.py first.
"""

from __future__ import annotations

from .epochs import numbers_of, tensors_of
from .sampling import is_random

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "repeats"
_NUM_GROUPS, _MIN_GROUPS = 6, 3
"""Number of groups (one batch per worker) that are compared, and the minimum number in a short pass."""
_MIN_DISTINCT_PER_BATCH = 4
"""Minimum number of distinct values per distinct batch: with fewer, batches may be equal by chance."""
_MAX_WORKERS = 16
_MAX_PASSES = 8
"""Number of passes whose batches are examined."""
_MAX_BATCHES, _MAX_ROWS, _MAX_COLUMNS = 64, 64, 16
"""Maximum number of batches in a pass, and of samples in a batch, for comparing single samples; number of
values to read from each sample's tensors."""
_MIN_SAMPLES = 32
_MIN_REPEATED_SHARE = 0.95
_NUM_ORDER_BATCHES = 3
_NUM_SAME_ORDER = 2
"""Number of passes in a row that must start like the pass before them for the order to be reported."""


class RepeatChecks:
    """Checks for samples that every worker repeats, and for epochs that repeat the same order."""

    def __init__(self, tensor: Any, session: RankSession) -> None:
        self.tensor, self.session = tensor, session
        self.forget()

    def forget(self) -> None:
        self._num_passes = 0
        self._has_reported_workers = self._has_reported_order = False
        self._last_order: Any = None
        """(weak reference to the optimizer, dataset, digest) of the last pass."""
        self._num_same_order = 0

    def start_pass(self, iterator: Any) -> Any:
        """Return the check for the first batches of a new pass over a loader; None if none is needed."""
        if self._num_passes >= _MAX_PASSES:
            return None
        num_workers = getattr(iterator, "_num_workers", 0)
        has_workers = 2 <= num_workers <= _MAX_WORKERS and getattr(iterator, "_in_order", True)
        compares_workers = has_workers and not self._has_reported_workers
        compares_orders = not self._has_reported_order and is_random(iterator)
        if not compares_workers and not compares_orders:
            return None
        self._num_passes += 1
        return _Pass(self, iterator, num_workers if compares_workers else 0, compares_orders)

    def report_workers(
        self, dataset: str, is_iterable: bool, num_workers: int, *, groups: int = 0, samples: int = 0
    ) -> None:
        """Report that all workers yield the same samples, found by comparing either `groups` groups of
        batches or `samples` single samples."""
        if not self._has_reported_workers:
            self._has_reported_workers = True
            self.session.report_anomaly(
                "repeated-by-workers" if is_iterable else "equal-batches-of-workers",
                names=[dataset],
                step=self.session.step,
                workers=num_workers,
                groups=groups,
                samples=samples,
            )

    def on_order(self, dataset: str, digest: int) -> None:
        """Handle a complete pass over a shuffling loader; `digest` is the hash of the first batches."""
        stepped = self.session.last_optimizer
        optimizer = None if stepped is None else stepped()
        last, self._last_order = self._last_order, (stepped, dataset, digest)
        # Another optimizer belongs to another training run, which may well start from the same seed.
        is_same = last is not None and optimizer is not None and last[0]() is optimizer
        self._num_same_order = self._num_same_order + 1 if is_same and last[1:] == (dataset, digest) else 0
        if self._num_same_order == _NUM_SAME_ORDER:
            self._has_reported_order = True
            self.session.report_anomaly(
                "same-order-every-epoch", names=[dataset], step=self.session.step, passes=_NUM_SAME_ORDER + 1
            )


class _Pass:
    """The first batches of a pass over a loader, and the samples that each worker yielded."""

    def __init__(self, checks: RepeatChecks, iterator: Any, num_workers: int, compares_orders: bool) -> None:
        self._checks, self._num_workers, self._compares_orders = checks, num_workers, compares_orders
        self._dataset = type(iterator._dataset).__name__
        self._is_iterable = iterator._dataset_kind == 1
        self._num_compared = max(_NUM_ORDER_BATCHES, _NUM_GROUPS * num_workers)
        self._batches: list[tuple[Any, ...]] = []
        self._samples: dict[int, list[int]] | None = {} if num_workers and self._is_iterable else None
        """Workers that yielded a sample, by its digest; None if single samples are not compared."""
        self._num_batches = 0

    def on_batch(self, batch: Any) -> bool:
        """Examine a batch; return whether the next one must be examined too."""
        if len(self._batches) < self._num_compared:
            self._batches.append(tuple(numbers_of(self._checks.tensor, batch)))
            if len(self._batches) == self._num_compared:
                self._compare_groups()
        if self._samples is not None:
            self._add_samples(batch)
        self._num_batches += 1
        return self._samples is not None or len(self._batches) < self._num_compared

    def on_pass_ended(self) -> None:
        """Handle the end of a complete pass over a loader whose batches a backward pass used."""
        if len(self._batches) < self._num_compared:
            self._compare_groups()
        if self._samples is not None:
            self._compare_samples(self._samples)
        first = self._batches[:_NUM_ORDER_BATCHES]
        # The order within a batch makes no difference, and equal batches have no order.
        if self._compares_orders and len(set(first)) == _NUM_ORDER_BATCHES and _is_distinct(first):
            self._checks.on_order(self._dataset, hash(tuple(first)))

    def _compare_groups(self) -> None:
        """Compare the batches that the workers yielded at the same position."""
        num_workers, batches = self._num_workers, self._batches
        if not num_workers:
            return
        firsts = batches[: len(batches) - len(batches) % num_workers : num_workers]
        is_enough = _MIN_GROUPS <= len(firsts) == len(set(firsts)) and _is_distinct(firsts)
        if is_enough and all(
            batch == firsts[index // num_workers]
            for index, batch in enumerate(batches[: len(firsts) * num_workers])
        ):
            self._checks.report_workers(self._dataset, self._is_iterable, num_workers, groups=len(firsts))

    def _add_samples(self, batch: Any) -> None:
        """Remember which worker yielded each sample of a batch."""
        rows = _rows(self._checks.tensor, batch)
        if self._samples is None or not rows or self._num_batches >= _MAX_BATCHES:
            self._samples = None
            return
        worker = self._num_batches % self._num_workers
        for row in rows:
            self._samples.setdefault(hash(row), []).append(worker)

    def _compare_samples(self, samples: dict[int, list[int]]) -> None:
        """Report the workers if each of them yielded nearly every sample of a pass once. `samples` lists, by
        each sample's hash, the workers that yielded it."""
        # Samples that a dataset repeats on purpose come from one worker again.
        expected = list(range(self._num_workers))
        num_repeated = sum(sorted(workers) == expected for workers in samples.values())
        if len(samples) >= _MIN_SAMPLES and num_repeated >= _MIN_REPEATED_SHARE * len(samples):
            self._checks.report_workers(
                self._dataset, self._is_iterable, self._num_workers, samples=len(samples)
            )


def _is_distinct(batches: list[tuple[Any, ...]]) -> bool:
    """Check whether batches have enough distinct values not to be equal by chance."""
    return len({number for batch in batches for number in batch}) >= _MIN_DISTINCT_PER_BATCH * len(batches)


def _rows(tensor_class: Any, batch: Any) -> list[tuple[Any, ...]]:
    """Return a few values of each sample of a batch; none if the batch has no tensors of equal length, or is
    too large."""
    tensors = [
        tensor
        for tensor in tensors_of(tensor_class, batch)
        if type(tensor) is tensor_class and tensor.device.type == "cpu" and tensor.dim() and tensor.numel()
    ]
    num = tensors[0].shape[0] if tensors else 0
    if not 0 < num <= _MAX_ROWS:
        return []
    columns: list[list[Any]] = [[] for _ in range(num)]
    for tensor in tensors:
        if tensor.shape[0] == num:
            flat = tensor.detach().reshape(num, -1)
            every = max(1, flat.shape[1] // _MAX_COLUMNS)
            for row, values in zip(columns, flat[:, ::every][:, :_MAX_COLUMNS].tolist()):
                row += values
    return [tuple(row) for row in columns]
