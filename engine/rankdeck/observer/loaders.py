"""Batches of training loaders: how many samples a step had, and how long it waited for them.

A batch counts once the backward that follows it has run, so that loaders which fetch ahead count what was
trained on. Each iterator has a queue of its own and gives one batch to a backward. Validation does not count:
batches that are fetched without gradients, and iterators that run out, or are left, after several without
a backward in between.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections import deque

from .frames import leave_out
from .passes import PART, Passes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_MOST_AHEAD = 64
_DEEPEST = 3


class _Feed:
    """One iterator of a loader, and its batches that no backward has followed yet."""

    def __init__(self, iterator: Any, gone: Any) -> None:
        self.ref = weakref.ref(iterator, gone)
        self.expected = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        self.ahead: deque[int] = deque()
        self.begin: list[list[Any]] = []
        """Numbers of its first batches."""
        self.trains = self.trains_now = False
        """Whether a backward has ever followed a batch of it, and since its last pass began."""
        self.takes_all = False
        self.measure: Any = None


class Loaders:
    """All iterators that are in use."""

    def __init__(self, torch_utils: Any, session: RankSession) -> None:
        self._session = session
        self._tensor, self._grad_enabled = torch_utils
        self._passes = Passes(self._tensor, session)
        self._look_at_batch = session.guarded(PART, self._passes.fetched)
        self._end_pass = session.guarded(PART, self._passes.ended)
        self.forget()

    def forget(self) -> None:
        self._feeds: dict[int, _Feed] = {}
        self._passes.forget()

    def _feed(self, iterator: Any) -> _Feed:
        key, feeds = id(iterator), self._feeds
        feed = feeds[key] = _Feed(iterator, lambda _: feeds.pop(key, None))
        return feed

    def fetched(self, iterator: Any, batch: Any, seconds: float) -> None:
        """`iterator` has given `batch`, after so long."""
        if not self._grad_enabled():
            return
        feed = self._feeds.get(id(iterator))
        if feed is None or feed.ref() is not iterator:
            feed = self._feed(iterator)
            feed.measure = self._measure_of(batch, feed.expected)
        self._session.waited_s += seconds
        try:
            num_samples = feed.measure(batch)
        except Exception:
            feed.measure = self._measure_of(batch, feed.expected)
            num_samples = feed.measure(batch)
        self._look_at_batch(feed.begin, batch, feed.trains)
        feed.ahead.append(num_samples or 0)
        if len(feed.ahead) > _MOST_AHEAD:
            feed.takes_all = True

    def ran_out(self, iterator: Any) -> None:
        """The end of a pass; where nobody trained between its batches it was an evaluation."""
        feed = self._feeds.get(id(iterator))
        if feed is not None and feed.trains_now:
            self._end_pass(iterator)
            feed.trains_now = False  # Persistent workers keep an iterator for the next pass.
        elif feed is not None and not feed.trains and len(feed.ahead) > 1:
            feed.ahead.clear()

    def backward(self, _: Any) -> None:
        """A backward begins: one batch of each iterator was for it."""
        taken = 0
        feeds = [feed for feed in list(self._feeds.values()) if feed.ahead]
        is_known = len(feeds) > 1 and any(feed.trains for feed in feeds)
        for feed in feeds:
            if is_known and not feed.trains and len(feed.ahead) > 1:
                feed.ahead.clear()  # It was left in the midst, and another one is trained on.
            else:
                num_samples = feed.ahead.popleft()
                taken += num_samples
                feed.trains_now = True
                if not feed.trains:
                    feed.trains = True
                    self._describe(feed, num_samples)
                while feed.takes_all and feed.ahead:
                    taken += feed.ahead.popleft()
        if taken:
            self._session.samples = (self._session.samples or 0) + taken

    def _describe(self, feed: _Feed, num_samples: int) -> None:
        """The data of the first iterator that is trained on."""
        iterator = feed.ref()
        dataset = getattr(iterator, "_dataset", None)
        if dataset is None or "dataset" in self._session.seen:
            return
        try:
            length = len(dataset)
        except Exception:
            length = None
        self._session.see(
            dataset="%s:%s" % (type(dataset).__module__, type(dataset).__qualname__),
            num_samples=length,
            batch=feed.expected if isinstance(feed.expected, int) else num_samples,
            loader_workers=getattr(iterator, "_num_workers", None),
        )

    def _measure_of(self, batch: Any, expected: Any) -> Any:
        """How to tell the samples of a batch of this form: where to look in it, found out once."""
        found = list(self._lengths(batch, (), _DEEPEST))
        if not found:
            return lambda batch: None
        agreeing = [path for path, length in found if length == expected]
        path, by_length = (agreeing or [found[0][0]])[0]

        def measure(batch: Any) -> int:
            for key in path:
                batch = batch[key]
            return len(batch) if by_length else batch.size(0)

        return measure

    def _lengths(self, batch: Any, path: tuple[Any, ...], deeper: int) -> Any:
        """Pairs of (path, whether len() is asked) and how many samples that says, the likeliest first."""
        if isinstance(batch, self._tensor):
            if batch.dim():
                yield (path, False), int(batch.shape[0])
            return
        if deeper == 0:
            return
        if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
            for key in list(batch.keys()):
                yield from self._lengths(batch[key], (*path, key), deeper - 1)
        elif isinstance(batch, (list, tuple)):
            for place, item in enumerate(batch[:8]):
                yield from self._lengths(item, (*path, place), deeper - 1)
            yield (path, True), len(batch)


def install(module: Any, session: RankSession) -> None:
    """Follow the iterators of DataLoader."""
    import torch

    loaders = Loaders((torch.Tensor, torch.is_grad_enabled), session)
    session.on_backward.append(session.guarded("samples", loaders.backward))
    session.on_fork.append(loaders.forget)
    base = module._BaseDataLoaderIter
    fetch, clock = base.__next__, time.perf_counter

    @functools.wraps(fetch)
    def observed(self: Any) -> Any:
        session.beat("loading data")
        began = clock()
        if session.active_since is None:
            session.active_since = began
        try:
            batch = fetch(self)
        except BaseException as error:
            if isinstance(error, StopIteration):
                loaders.ran_out(self)
            leave_out(error)
            raise
        if "samples" not in session.parts_off:
            try:
                loaders.fetched(self, batch, clock() - began)
            except Exception as error:
                session.switch_off("samples", error)
        return batch

    base.__next__ = observed
