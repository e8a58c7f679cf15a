"""Checks whether ranks train on the same samples, and whether epochs repeat the same sample order.

A few numbers are read from a loader's first batches, but only from tensors in host memory. After these
batches, only the end of an epoch is examined. Batches that ranks divide among themselves are not compared.
Read loaders.py first.
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
NUM_FIRST_BATCHES = 3
_MAX_NUMBERS = 32
"""Maximum number of values to read from each of the first tensors of a batch."""
_MAX_TENSORS = 2
_MIN_DISTINCT = 4
"""Minimum number of distinct values in the first batches: with fewer (such as only zeros), batches may be
equal on all ranks by chance."""
_MAX_DEPTH = 3
_MAX_NODES = 64


class EpochTracker:
    """Tracks the epochs of all training loaders, and reports the first batches of the first loader."""

    def __init__(self, tensor: Any, session: RankSession) -> None:
        self._tensor, self._session = tensor, session
        self.forget()

    def forget(self) -> None:
        self._epochs: Any = weakref.WeakKeyDictionary()
        """Sampler -> epoch of its last complete pass."""
        self._num_same_order = 0
        self.has_reported = False
        """Whether the first batches of a loader were recorded, or were not comparable."""
        self._is_divided = False
        """Whether each rank trains on its own part of its loader's batches."""

    def on_backward(self, tensors: Any, num_samples: int) -> None:
        """Record whether ranks divide the loader's batches: the loss then covers only this rank's share of
        the `num_samples` samples."""
        world_size = self._session.world_size or 1
        if self._is_divided or world_size < 2:
            return
        num_rows = _num_rows(tensors[0].grad_fn) if tensors else 0
        self._is_divided = num_rows * world_size == num_samples

    def on_batch(self, first_batches: list[list[Any]], batch: Any, trains: bool) -> None:
        """Handle a batch. `first_batches` collects the numbers read from the loader's first batches; `trains`
        is True if backward passes use the loader's batches."""
        if len(first_batches) < NUM_FIRST_BATCHES:
            first_batches.append(numbers_of(self._tensor, batch))
        if trains and not self.has_reported and len(first_batches) == NUM_FIRST_BATCHES:
            self.has_reported = True
            is_distinct = len({number for numbers in first_batches for number in numbers}) >= _MIN_DISTINCT
            if is_distinct and not self._is_divided:
                self._session.record_facts(first_batches=digest_of(first_batches))

    def on_epoch_end(self, iterator: Any) -> None:
        """Handle the end of a complete pass over a training loader."""
        sampling = sys.modules.get("torch.utils.data.distributed")
        if sampling is None:
            return
        standard_sampler = sampling.DistributedSampler
        index_sampler = getattr(iterator, "_index_sampler", None)
        sampler = getattr(index_sampler, "sampler", index_sampler)
        kind: Any = type(sampler)
        if not isinstance(sampler, standard_sampler) or not sampler.shuffle:
            return
        if kind.__iter__ is not standard_sampler.__iter__ or kind.set_epoch is not standard_sampler.set_epoch:
            return  # A subclass may change the order in its own way.
        if self._epochs.get(sampler) == sampler.epoch:
            self._num_same_order += 1
            self._session.record_facts(same_epochs=self._num_same_order)
        self._epochs[sampler] = sampler.epoch


def _num_rows(root: Any) -> int:
    """Return the size of the first dimension of the non-scalar tensor nearest to `root`, the graph node of a
    loss; 0 if none is found."""
    visited: set[Any] = set()
    waiting = [root]
    while waiting and len(visited) < _MAX_NODES:
        node = waiting.pop(0)
        if node is None or node in visited:
            continue
        visited.add(node)
        for metadata in getattr(node, "_input_metadata", None) or ():
            if len(metadata.shape):
                return int(metadata.shape[0])
        waiting.extend(following for following, _ in node.next_functions)
    return 0


def digest_of(batches: list[list[Any]]) -> str:
    """Return a digest of the numbers read from some batches; equal batches have equal digests."""
    return hashlib.blake2b(repr(batches).encode(), digest_size=8).hexdigest()


def numbers_of(tensor_class: Any, batch: Any) -> list[Any]:
    """Return a few values of a batch's first tensors, skipping tensors that are not in host memory."""
    numbers: list[Any] = []
    for tensor in list(tensors_of(tensor_class, batch, _MAX_DEPTH))[:_MAX_TENSORS]:
        # Reading a tensor on a GPU would wait for the GPU.
        if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
            every = max(1, tensor.numel() // _MAX_NUMBERS)
            numbers += tensor.detach().view(-1)[::every][:_MAX_NUMBERS].tolist()
    return numbers


def tensors_of(tensor_class: Any, batch: Any, deeper: int = _MAX_DEPTH) -> Any:
    """Yield the tensors of a batch, which may be nested up to `deeper` levels."""
    if isinstance(batch, tensor_class):
        yield batch
    elif deeper and hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        for key in list(batch.keys()):
            yield from tensors_of(tensor_class, batch[key], deeper - 1)
    elif deeper and isinstance(batch, (list, tuple)):
        for item in batch[:8]:
            yield from tensors_of(tensor_class, item, deeper - 1)
