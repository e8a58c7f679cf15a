"""What training batches of ranks and of passes have in common: whether ranks train on the same samples, and
whether a pass over the data has the order of the one before. Read loaders.py before.

Of a loader's first batches a few numbers are read, on the host only; after that nothing is looked at but the
end of a pass.
"""

from __future__ import annotations

import hashlib
import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "passes"
_NUM_BATCHES = 3
_MAX_NUMBERS = 32
"""Of each of the first tensors of a batch."""
_MAX_TENSORS = 2
_MIN_DISTINCT = 4
"""Batches of fewer different numbers (all zeros) may well be the same on every rank."""
_MAX_DEPTH = 3


class EpochTracker:
    """Of all loaders that are trained on; the first of them is the one whose batches are told."""

    def __init__(self, tensor: Any, session: RankSession) -> None:
        self._tensor, self._session = tensor, session
        self.forget()

    def forget(self) -> None:
        self._epochs: Any = weakref.WeakKeyDictionary()
        """By sampler, the epoch of its last whole pass."""
        self._num_same_order = 0
        self._has_reported = False

    def on_batch(self, begin: list[list[Any]], batch: Any, trains: bool) -> None:
        """A loader has given `batch`; `begin` is what was read of its first ones."""
        if len(begin) < _NUM_BATCHES:
            begin.append(self._numbers(batch))
        if trains and not self._has_reported and len(begin) == _NUM_BATCHES:
            self._has_reported = True
            if len({number for numbers in begin for number in numbers}) >= _MIN_DISTINCT:
                digest = hashlib.blake2b(repr(begin).encode(), digest_size=8).hexdigest()
                self._session.record_facts(first_batches=digest)

    def on_epoch_end(self, iterator: Any) -> None:
        """A whole pass over a loader that is trained on is over."""
        sampling = sys.modules.get("torch.utils.data.distributed")
        if sampling is None:
            return
        usual = sampling.DistributedSampler
        index_sampler = getattr(iterator, "_index_sampler", None)
        sampler = getattr(index_sampler, "sampler", index_sampler)
        kind: Any = type(sampler)
        if not isinstance(sampler, usual) or not sampler.shuffle:
            return
        if kind.__iter__ is not usual.__iter__ or kind.set_epoch is not usual.set_epoch:
            return  # It may have its own way to another order.
        if self._epochs.get(sampler) == sampler.epoch:
            self._num_same_order += 1
            self._session.record_facts(same_epochs=self._num_same_order)
        self._epochs[sampler] = sampler.epoch

    def _numbers(self, batch: Any) -> list[Any]:
        numbers: list[Any] = []
        for tensor in list(self._tensors(batch, _MAX_DEPTH))[:_MAX_TENSORS]:
            if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
                every = max(1, tensor.numel() // _MAX_NUMBERS)
                numbers += tensor.detach().view(-1)[::every][:_MAX_NUMBERS].tolist()
        return numbers

    def _tensors(self, batch: Any, deeper: int) -> Any:
        if isinstance(batch, self._tensor):
            yield batch
        elif deeper and hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
            for key in list(batch.keys()):
                yield from self._tensors(batch[key], deeper - 1)
        elif deeper and isinstance(batch, (list, tuple)):
            for item in batch[:8]:
                yield from self._tensors(item, deeper - 1)
