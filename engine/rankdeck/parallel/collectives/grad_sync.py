"""How gradients meet: one function over a process group, applied after backward.

    GradientSync(group, algorithm, compress).sync(gradients)     each becomes the sum over the group, in place

It asks for nothing but a list of tensors, so it composes with whatever made them: a replica, a stage of a
pipeline, the local parts of DTensors. Gradients are sums here as losses are: nothing divides.

    algorithm         sent per rank and step, for G bytes of gradients on n ranks
    native            2(n-1)/n x G (the backend's own all-reduce)
    ring              2(n-1)/n x G
    reduce-broadcast  (n-1) x G by rank 0, G by the others
    all-to-all        (n-1) x G

Compression (compress.py) makes G smaller and works with all four. Read buckets.py and peers.py before,
ring.py for the algorithm that everybody uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.collectives.buckets import DEFAULT_BUCKET_BYTES, apply_in_buckets
from rankdeck.parallel.collectives.compress import HALF_DTYPES, PowerSgd, low_rank_shape
from rankdeck.parallel.collectives.peers import Peers
from rankdeck.parallel.collectives.ring import ring_sum
from rankdeck.torch_compat.dtensors import local_part


def _native_sum(flat: Tensor, peers: Peers) -> None:
    dist.all_reduce(flat, group=peers.group)


def _reduce_broadcast_sum(flat: Tensor, peers: Peers) -> None:
    """Every rank sends its gradients to rank 0, which adds up in the order of the ranks and sends the sum
    back. This is what a parameter server does, and why it does not grow: rank 0's link is busy for 2(n-1)
    messages while the others wait.
    """
    if peers.rank != _ROOT_RANK:
        peers.exchange(sends=[(flat, _ROOT_RANK)])
        peers.exchange(receives=[(flat, _ROOT_RANK)])
        return
    others = range(1, peers.size)
    arriving = torch.empty_like(flat)
    for source in others:
        peers.exchange(receives=[(arriving, source)])
        flat.add_(arriving)
    peers.exchange(sends=[(flat, to) for to in others])


def _all_to_all_sum(flat: Tensor, peers: Peers) -> None:
    """Every rank sends all of its gradients to every other rank, n(n-1) messages at once, and each adds up in
    the order of the ranks. One step only, so it wins where messages are small and latency is all; it needs
    room for the gradients of all ranks.
    """
    others = [rank for rank in range(peers.size) if rank != peers.rank]
    arriving = {rank: torch.empty_like(flat) for rank in others}
    peers.exchange(
        sends=[(flat, rank) for rank in others], receives=[(arriving[rank], rank) for rank in others]
    )
    in_order = [flat if rank == peers.rank else arriving[rank] for rank in range(peers.size)]
    total = in_order[0].clone()
    for part in in_order[1:]:
        total.add_(part)
    flat.copy_(total)


ALGORITHMS: Mapping[str, Callable[[Tensor, Peers], None]] = {
    "native": _native_sum,
    "reduce-broadcast": _reduce_broadcast_sum,
    "all-to-all": _all_to_all_sum,
    "ring": ring_sum,
}
"""Each makes a contiguous tensor (N,) the sum over all ranks of the group, in place, the same bits on all."""
_ROOT_RANK = 0
_MAX_NAMES = 8
"""Of parameters, in one sentence."""


@dataclass(frozen=True)
class SyncTimes:
    """One rank's sync in one step: how long it took, and how much of that backward was still computing."""

    seconds: float
    overlapped_s: float


class GradientSync:
    """Sums gradients over `group`, always the same ones in the same order."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        algorithm: str = "native",
        compress: str = "none",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        powersgd_rank: int = 4,
    ) -> None:
        self.peers = Peers(group)
        self.algorithm = algorithm
        self.compress = compress
        self.compressed_bytes = 0
        """Of the last sync's gradients, once they were compressed."""
        self.times: SyncTimes | None = None
        """Of the last sync, on CPU; None on GPUs, whose clock is not the host's."""
        self._all_reduce = ALGORITHMS[algorithm]
        self._bucket_bytes = bucket_bytes
        self._powersgd_rank = powersgd_rank
        self._powersgd = PowerSgd(powersgd_rank) if compress == "powersgd" else None

    def sync(self, gradients: Sequence[Tensor]) -> None:
        """Make each gradient the sum over the group, in place; the same bits on every rank.

        All ranks give gradients of the same shapes in the same order.
        """
        self.peers.sent_bytes = [0] * self.peers.size
        started_s = time.perf_counter()
        if self._powersgd is not None:
            self._powersgd.sync(gradients, self._all_reduce_tensors)
        else:
            self._all_reduce_tensors(gradients, HALF_DTYPES.get(self.compress))
        self.compressed_bytes = compressed_bytes(gradients, self.compress, self._powersgd_rank)
        on_cpu = all(gradient.device.type == "cpu" for gradient in gradients)
        self.times = SyncTimes(time.perf_counter() - started_s, 0.0) if on_cpu else None

    def _all_reduce_tensors(self, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> None:
        apply_in_buckets(
            tensors, lambda flat: self._all_reduce(flat, self.peers), self._bucket_bytes, dtype=dtype
        )

    def state(self) -> dict[str, Tensor]:
        """What PowerSGD keeps from step to step; empty for the rest."""
        return {} if self._powersgd is None else self._powersgd.state()

    def load_state(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """What `state` gave."""
        if self._powersgd is not None:
            self._powersgd.load_state(state, device)


def compressed_bytes(tensors: Sequence[Tensor], compress: str = "none", powersgd_rank: int = 4) -> int:
    """Bytes of gradients like `tensors` once they are compressed."""
    total_bytes = 0
    for tensor in tensors:
        shape = low_rank_shape(tensor.shape, powersgd_rank) if compress == "powersgd" else None
        numel = tensor.numel() if shape is None else powersgd_rank * sum(shape)
        total_bytes += numel * (
            HALF_DTYPES[compress].itemsize if compress in HALF_DTYPES else tensor.element_size()
        )
    return total_bytes


def all_reduce_bytes(num_bytes: int, num_ranks: int) -> int:
    """What one rank sends in a bandwidth-optimal all-reduce of `num_bytes`: 2(n-1)/n of them."""
    return round(2 * (num_ranks - 1) / num_ranks * num_bytes)


def collect_gradients(
    module: nn.Module, *, find_unused: bool = False, group: dist.ProcessGroup | None = None
) -> list[Tensor]:
    """The gradients of a module's parameters as this rank holds them (of a DTensor, its local part).

    With `find_unused` the ranks of the group agree on which parameters took part anywhere: there a rank
    without a gradient gives zeros, and a parameter that took part nowhere keeps none.

    Raises:
        ModelError: a gradient is missing without `find_unused`, or is sparse.
    """
    parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if find_unused:
        parameters = _used_parameters(parameters, group)
    require_gradients(parameters)
    gradients = []
    for name, parameter in parameters:
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            raise ModelError(
                phrase(
                    "The gradient of {name} is sparse (an embedding with sparse=True?), which no bucket "
                    "holds.",
                    name=name,
                ),
                advice=phrase("Build the embedding with sparse=False."),
            )
        gradients.append(local_part(parameter.grad))
    return gradients


def require_gradients(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raises: ModelError where one of these has no gradient after backward."""
    missing = sorted(name for name, p in parameters if p.requires_grad and p.grad is None)
    if missing:
        raise ModelError(
            phrase(
                "These took no part in the loss: {names}.",
                names=", ".join(missing[:_MAX_NAMES]) + (", ..." if len(missing) > _MAX_NAMES else ""),
            ),
            code="unused-parameters",
            path="strategy.find_unused_parameters",
            advice=phrase(
                "Set strategy.find_unused_parameters = true, or take what is not used out of the model."
            ),
            changes={"strategy.find_unused_parameters": True},
        )


def _used_parameters(
    parameters: list[tuple[str, nn.Parameter]], group: dist.ProcessGroup | None
) -> list[tuple[str, nn.Parameter]]:
    """Those with a gradient on any rank; a rank that has none gets zeros."""
    if not parameters:
        return []
    device = local_part(parameters[0][1]).device
    used = reduce_used_flags([p.grad is not None for _, p in parameters], device, group)
    kept = [pair for pair, is_used in zip(parameters, used, strict=True) if is_used]
    for _, parameter in kept:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return kept


def reduce_used_flags(
    is_used: Sequence[bool], device: torch.device, group: dist.ProcessGroup | None = None
) -> list[bool]:
    """Of each weight whether any rank of the group used it. All of them call this with as many weights. Where
    none did, there is no gradient, as on one device: an optimizer would let a gradient of zeros decay it.

    A rank that used all of them knows the answer without waiting for it.
    """
    flags = torch.tensor(is_used, dtype=torch.uint8, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
    return list(is_used) if all(is_used) else [bool(flag) for flag in flags.tolist()]
