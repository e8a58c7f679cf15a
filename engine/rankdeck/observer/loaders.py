"""Counts the samples of each step, and measures how long the step waited for its batches.

A batch is counted when the next backward pass runs, so batches that a loader only prefetched are not counted.
Each iterator has its own queue and contributes one batch to a backward pass. Validation batches are not
counted either: batches fetched with gradients disabled, and batches of iterators that end, or are abandoned,
after several batches without a backward pass.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections import deque

from . import labels, padded_evaluations, repeats, sampling
from .epochs import NUM_FIRST_BATCHES, PART, EpochTracker
from .frames import drop_own_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_MAX_PREFETCHED = 64
_MAX_DEPTH = 3


class _LoaderIterator:
    """An iterator of a loader, with its batches that no backward pass has used yet."""

    def __init__(self, iterator: Any, callback: Any) -> None:
        self.ref = weakref.ref(iterator, callback)
        self.batch_size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        self.pending: deque[int] = deque()
        self.first_batches: list[list[Any]] = []
        """Numbers read from the iterator's first batches, one list per batch (see epochs.py)."""
        self.is_trained_on = self.is_trained_on_now = False
        """Whether a backward pass used a batch of any epoch; `is_trained_on_now`: of the current epoch."""
        self.takes_all_pending = False
        self.count_samples: Any = None
        self.checks: Any = None
        """(part, check) of each check of the current pass; None before its first batch."""
        self.active_checks: list[Any] = []
        """The checks that examine the next batch."""


class LoaderTracker:
    """Tracks all DataLoader iterators in use, the samples taken from them, and the time spent waiting."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._session = session
        self._tensor, self._grad_enabled = torch.Tensor, torch.is_grad_enabled
        self._padding = padding = padded_evaluations.PaddingCheck(session)
        self._on_evaluation = session.wrap_part(padded_evaluations.PART, padding.on_evaluation)
        self._sampling = sampling.SamplingChecks(session, self._on_evaluation)
        self._on_evaluation_batch = session.wrap_part(sampling.PART, self._sampling.on_evaluation_batch)
        self._on_training_iterator = session.wrap_part(sampling.PART, self._sampling.on_training_iterator)
        self._record_length = session.wrap_part(sampling.PART, self._sampling.on_epoch_end)
        self.labels = labels.LabelChecks(torch, session)
        self.repeats = repeats.RepeatChecks(self._tensor, session)
        self._start_checks = [
            (part, session.wrap_part(part, checks.start_pass))
            for part, checks in ((labels.PART, self.labels), (repeats.PART, self.repeats))
        ]
        self._epochs = EpochTracker(self._tensor, session)
        self._record_first_batch = session.wrap_part(PART, self._epochs.on_batch)
        self._on_samples = session.wrap_part(PART, self._epochs.on_backward)
        self._record_epoch_end = session.wrap_part(PART, self._epochs.on_epoch_end)
        # Looked up at each call: the part that sets `modes` may run after this one.
        self._on_batch_without_gradients = session.wrap_part(
            "modes", lambda iterator: session.modes.on_batch_without_gradients(iterator)
        )
        self._on_pass_ended = session.wrap_part(
            "modes", lambda iterator: session.modes.on_pass_ended(iterator)
        )
        self.forget()

    def forget(self) -> None:
        self._iterators: dict[int, _LoaderIterator] = {}
        for checks in (self._epochs, self._sampling, self._padding, self.labels, self.repeats):
            checks.forget()

    def _add_iterator(self, iterator: Any) -> _LoaderIterator:
        key, feeds = id(iterator), self._iterators
        feed = feeds[key] = _LoaderIterator(iterator, lambda _: feeds.pop(key, None))
        return feed

    def on_batch(self, iterator: Any, batch: Any, seconds: float) -> None:
        """Handle a batch that `iterator` returned after `seconds`."""
        if not self._grad_enabled():
            if self._session.modes is not None:
                self._on_batch_without_gradients(iterator)
            self._on_evaluation_batch(iterator)
            return
        if self._padding.is_evaluating:
            self._session.call_part(padded_evaluations.PART, self._padding.on_training)
        feed = self._iterators.get(id(iterator))
        if feed is None or feed.ref() is not iterator:
            feed = self._add_iterator(iterator)
            feed.count_samples = self._find_sample_counter(batch, feed.batch_size)
        if self._session.finite is not None:
            self._session.finite.remember_batch(batch)
        self._session.waited_s += seconds
        try:
            num_samples = feed.count_samples(batch)
        except Exception:
            feed.count_samples = self._find_sample_counter(batch, feed.batch_size)
            num_samples = feed.count_samples(batch)
        if len(feed.first_batches) < NUM_FIRST_BATCHES or not self._epochs.has_reported:
            self._record_first_batch(feed.first_batches, batch, feed.is_trained_on)
        if feed.checks is None:
            started = [(part, start(iterator)) for part, start in self._start_checks]
            feed.checks = [(part, check) for part, check in started if check is not None]
            feed.active_checks = feed.checks
        if feed.active_checks:
            self._examine(feed, batch)
        feed.pending.append(num_samples or 0)
        # More than a loader prefetches: the script uses several batches for one backward.
        if len(feed.pending) > _MAX_PREFETCHED:
            feed.takes_all_pending = True

    def _examine(self, feed: _LoaderIterator, batch: Any) -> None:
        """Pass a batch to the checks that examine it."""
        on_batch = self._session.call_part
        feed.active_checks = [
            (part, check) for part, check in feed.active_checks if on_batch(part, check.on_batch, batch)
        ]

    def on_exhausted(self, iterator: Any) -> None:
        """Handle the end of a pass over a loader; the pass was an evaluation if no backward pass used its
        batches."""
        if self._session.modes is not None:
            self._on_pass_ended(iterator)
        feed = self._iterators.get(id(iterator))
        if feed is not None and feed.is_trained_on_now:
            self._record_epoch_end(iterator)
            self._record_length(iterator)
            for part, check in feed.checks or ():
                self._session.call_part(part, check.on_pass_ended)
            feed.is_trained_on_now = False  # Persistent workers keep an iterator for the next pass.
        elif feed is not None and not feed.is_trained_on and len(feed.pending) > 1:
            feed.pending.clear()
            self._on_evaluation(iterator)
        if feed is not None:
            feed.checks, feed.active_checks = None, []

    def on_backward(self, tensors: Any) -> None:
        """Take one batch from each iterator when a backward pass starts."""
        taken = 0
        feeds = list(self._iterators.values())
        is_known = False
        if len(feeds) > 1:
            feeds = [feed for feed in feeds if feed.pending]
            is_known = len(feeds) > 1 and any(feed.is_trained_on for feed in feeds)
        for feed in feeds:
            if is_known and not feed.is_trained_on and len(feed.pending) > 1:
                feed.pending.clear()  # It was abandoned; another one is trained on.
            elif feed.pending:
                num_samples = feed.pending.popleft()
                taken += num_samples
                feed.is_trained_on_now = True
                if not feed.is_trained_on:
                    feed.is_trained_on = True
                    self._describe(feed, num_samples)
                while feed.takes_all_pending and feed.pending:
                    taken += feed.pending.popleft()
        if taken:
            if not self._epochs.has_reported:
                self._on_samples(tensors, taken)
            self._session.samples = (self._session.samples or 0) + taken

    def _describe(self, feed: _LoaderIterator, num_samples: int) -> None:
        """Record facts about the data of the first training iterator."""
        iterator = feed.ref()
        if iterator is not None:
            self._on_training_iterator(iterator)
        dataset = getattr(iterator, "_dataset", None)
        if dataset is None or "dataset" in self._session.facts:
            return
        try:
            length = len(dataset)
        except Exception:
            length = None
        self._session.record_facts(
            dataset="%s:%s" % (type(dataset).__module__, type(dataset).__qualname__),
            num_samples=length,
            batch=feed.batch_size if isinstance(feed.batch_size, int) else num_samples,
            loader_workers=getattr(iterator, "_num_workers", None),
        )

    def _find_sample_counter(self, batch: Any, expected: Any) -> Any:
        """Return a function that counts the samples of a batch with the structure of `batch`; `batch` itself
        should contain `expected` samples."""
        candidates = list(self._sample_counts(batch, (), _MAX_DEPTH))
        if not candidates:
            return lambda batch: None
        agreeing = [path for path, length in candidates if length == expected]
        path, by_length = (agreeing or [candidates[0][0]])[0]

        def measure(batch: Any) -> int:
            for key in path:
                batch = batch[key]
            return len(batch) if by_length else batch.size(0)

        return measure

    def _sample_counts(self, batch: Any, path: tuple[Any, ...], deeper: int) -> Any:
        """Yield ((path, whether to use len()), number of samples), likeliest first, for each element of
        `batch` that may show this number, down to `deeper` levels. `path` contains the keys that lead to
        `batch`."""
        if isinstance(batch, self._tensor):
            if batch.dim():
                yield (path, False), int(batch.shape[0])
            return
        if deeper == 0:
            return
        if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
            for key in list(batch.keys()):
                yield from self._sample_counts(batch[key], (*path, key), deeper - 1)
        elif isinstance(batch, (list, tuple)):
            for index, item in enumerate(batch[:8]):
                yield from self._sample_counts(item, (*path, index), deeper - 1)
            # Last, because the length of a tuple is usually its number of tensors and not of samples.
            yield (path, True), len(batch)


def install(module: Any, session: RankSession) -> None:
    """Observe the iterators of DataLoader."""
    import torch

    loaders = LoaderTracker(torch, session)
    session.on_some_backward.add(labels.PART, loaders.labels.on_backward)
    session.on_tick.add(labels.PART, loaders.labels.on_tick)
    session.on_backward.add("samples", loaders.on_backward)
    session.on_fork.add("samples", loaders.forget)
    base = module._BaseDataLoaderIter
    fetch, clock = base.__next__, time.perf_counter

    @functools.wraps(fetch)
    def observed(self: Any) -> Any:
        session.beat("loading data")
        start_s = clock()
        if session.active_since is None:
            session.active_since = start_s
        try:
            batch = fetch(self)
        except BaseException as error:
            if isinstance(error, StopIteration):
                loaders.on_exhausted(self)
            drop_own_frame(error)
            raise
        if "samples" not in session.disabled_parts:
            try:
                loaders.on_batch(self, batch, clock() - start_s)
            except Exception as error:
                session.disable_part("samples", error)
        return batch

    base.__next__ = observed
