"""The ledger of a plan: the same as a rehearsal's, over fake tensors, with a log for the allocator.

A thread that follows it also enters fake mode, so that the replicas' threads make no real tensor. Under the
rules of a GPU storages are rounded as CUDA's allocator rounds, and what an optimizer keeps on the host (its
step counters, unless its step is fused) is left out. Read fake_pass.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rankdeck.memory.entries import kind_index
from rankdeck.memory.follower import Compute, Follower
from rankdeck.memory.ledger import Ledger
from rankdeck.torch_compat.dispatch import Kwargs, storage_key
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.torch_compat.fake_tensors import DEVICE, FakeTensor

if TYPE_CHECKING:
    from torch import Tensor

    from rankdeck.memory.entries import StorageEntry
    from rankdeck.torch_compat.fake_tensors import FakeTensorMode

CUDA_ROUNDING_BYTES = 512

Change = tuple[int, int, bool]
"""(key of a storage, bytes it has from now on, 0 when it is gone; whether it is communication)."""


class _PlanFollower(Follower):
    """Answers by itself what most calls ask for: where a fake tensor is."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        return super().__torch_dispatch__(func, types, args, kwargs)


class PlanLedger(Ledger):
    """`logs[device]` are the changes of a device's storages, in order."""

    def __init__(self, num_devices: int, fake: FakeTensorMode, compute: Compute, *, like_cuda: bool) -> None:
        super().__init__(num_devices, round_to_bytes=CUDA_ROUNDING_BYTES if like_cuda else 1)
        self.logs: list[list[Change]] = [[] for _ in range(num_devices)]
        self.fake = fake
        self._compute = compute
        self._like_cuda = like_cuda
        self._communication = kind_index("communication")
        self.counts_on_device = False
        """Whether the optimizer's kernels count steps themselves, so that its counters are on the GPU."""
        self.on_crossing: Callable[[int, int, int], None] | None = None
        """Told of each copy between two devices: from which, to which, how many bytes."""

    @contextmanager
    def _modes(self) -> Iterator[None]:
        with self.fake, _PlanFollower(self, self._threads.state, self._compute):
            yield

    def crossed(self, source: int, target: int, num_bytes: int) -> None:
        if self.on_crossing is not None:
            self.on_crossing(source, target, num_bytes)

    def adopt(self, tensors: Iterable[Tensor], device: int, kind: str) -> None:
        if self._like_cuda and kind == "optimizer" and not self.counts_on_device:
            tensors = list(tensors)
            for counter in (tensor for tensor in tensors if tensor.dim() == 0):
                self._leave_out(counter)
            tensors = [tensor for tensor in tensors if tensor.dim()]
        super().adopt(tensors, device, kind)

    def built_on_host(self) -> None:
        """A model is there: what was made and dropped on the way never came to a GPU."""
        if self._like_cuda:
            self.logs = [
                [(entry.key, entry.num_bytes, False) for entry in self.live.values() if entry.device == place]
                for place in range(self.num_devices)
            ]

    def _leave_out(self, tensor: Tensor) -> None:
        entry = self.live.get(storage_key(local_part(tensor).untyped_storage()))
        if entry is not None and entry.num_bytes:
            self._change(entry, 0)

    def _change(self, entry: StorageEntry, num_bytes: int) -> None:
        if self._like_cuda and num_bytes != entry.num_bytes:
            log = self.logs[entry.device]
            is_communication = entry.kind == self._communication
            if entry.num_bytes:
                log.append((entry.key, 0, is_communication))
            if num_bytes:
                log.append((entry.key, num_bytes, is_communication))
        super()._change(entry, num_bytes)

    def _gone(self, ref: StorageEntry) -> None:
        if self._like_cuda and ref.num_bytes and self.live.get(ref.key) is ref:
            self.logs[ref.device].append((ref.key, 0, ref.kind == self._communication))
        super()._gone(ref)
