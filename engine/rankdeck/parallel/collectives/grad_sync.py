"""Sum gradients over a process group after the backward pass.

    GradientSync(group, algorithm, compress).sync(gradients)     each becomes the sum over the group, in place

`sync` needs only a list of tensors, so it works with any source: a replica, a pipeline stage, the local
tensors of DTensors. Gradients, like losses, are summed and never averaged.

    algorithm         sent per rank and step, for G bytes of gradients on n ranks
    native            2(n-1)/n x G (the backend's own all-reduce)
    ring              2(n-1)/n x G
    reduce-broadcast  (n-1) x G by rank 0, G by the others
    all-to-all        (n-1) x G

Compression (compress.py) makes G smaller and works with all four algorithms. Read buckets.py and peers.py
first, and ring.py for the most widely used algorithm.
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
    """Sum all ranks' tensors on rank 0, in rank order, and send the sum back to every rank.

    A parameter server does the same, and therefore does not scale: rank 0's link is busy for 2(n-1) messages
    while the other ranks wait.
    """
    if peers.rank != _ROOT_RANK:
        peers.exchange(sends=[(flat, _ROOT_RANK)])
        peers.exchange(receives=[(flat, _ROOT_RANK)])
        return
    others = range(1, peers.size)
    arriving = torch.empty_like(flat)
    # In rank order, so that the sum has the same bits in every run.
    for source in others:
        peers.exchange(receives=[(arriving, source)])
        flat.add_(arriving)
    peers.exchange(sends=[(flat, to) for to in others])


def _all_to_all_sum(flat: Tensor, peers: Peers) -> None:
    """Send all gradients to every other rank, n(n-1) messages at once, and sum them in rank order on every
    rank.

    This takes a single round, so it is fastest if messages are small and latency dominates; it needs memory
    for the gradients of all ranks.
    """
    others = [rank for rank in range(peers.size) if rank != peers.rank]
    arriving = {rank: torch.empty_like(flat) for rank in others}
    peers.exchange(
        sends=[(flat, rank) for rank in others], receives=[(arriving[rank], rank) for rank in others]
    )
    in_order = [flat if rank == peers.rank else arriving[rank] for rank in range(peers.size)]
    # A copy: in place, `flat` would change before its turn in the order.
    total = in_order[0].clone()
    for addend in in_order[1:]:
        total.add_(addend)
    flat.copy_(total)


ALGORITHMS: Mapping[str, Callable[[Tensor, Peers], None]] = {
    "native": _native_sum,
    "reduce-broadcast": _reduce_broadcast_sum,
    "all-to-all": _all_to_all_sum,
    "ring": ring_sum,
}
"""All-reduce functions by name; each sums a contiguous tensor (N,) over the group's ranks in place, with a
bitwise identical result on all ranks."""
_ROOT_RANK = 0
_MAX_NAMES = 8
"""Maximum number of parameter names in one error message."""


@dataclass(frozen=True)
class SyncTimes:
    """Duration of one rank's gradient sync in a step, and its overlap with the backward pass."""

    seconds: float
    overlapped_s: float


class GradientSync:
    """Gradient sync over `group`. Every sync must get the same gradients in the same order."""

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
        """Size of the last sync's gradients after compression."""
        self.times: SyncTimes | None = None
        """Times of the last sync on CPU; None on GPUs, whose work the host's clock does not measure."""
        self._all_reduce = ALGORITHMS[algorithm]
        self._bucket_bytes = bucket_bytes
        self._powersgd_rank = powersgd_rank
        self._powersgd = PowerSgd(powersgd_rank) if compress == "powersgd" else None

    def sync(self, gradients: Sequence[Tensor]) -> None:
        """Replace each gradient in place with its sum over the group, bitwise identical on every rank.

        All ranks pass gradients of the same shapes in the same order.
        """
        self.peers.sent_bytes = [0] * self.peers.size
        started_s = time.perf_counter()
        if self._powersgd is not None:
            self._powersgd.sync(gradients, self._all_reduce_tensors)
        else:
            self._all_reduce_tensors(gradients, HALF_DTYPES.get(self.compress))
        self.compressed_bytes = compressed_bytes(gradients, self.compress, self._powersgd_rank)
        # GPU work is only enqueued here, so the host's clock does not measure it.
        on_cpu = all(gradient.device.type == "cpu" for gradient in gradients)
        self.times = SyncTimes(time.perf_counter() - started_s, 0.0) if on_cpu else None

    def _all_reduce_tensors(self, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> None:
        apply_in_buckets(
            tensors, lambda flat: self._all_reduce(flat, self.peers), self._bucket_bytes, dtype=dtype
        )

    def state(self) -> dict[str, Tensor]:
        """Return PowerSGD's state, or an empty dict for other compressions."""
        return {} if self._powersgd is None else self._powersgd.state()

    def load_state(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Load the tensors that the method `state` returned."""
        if self._powersgd is not None:
            self._powersgd.load_state(state, device)


def compressed_bytes(tensors: Sequence[Tensor], compress: str = "none", powersgd_rank: int = 4) -> int:
    """Return the size in bytes, after compression, of gradients shaped like `tensors`."""
    total_bytes = 0
    for tensor in tensors:
        shape = low_rank_shape(tensor.shape, powersgd_rank) if compress == "powersgd" else None
        numel = tensor.numel() if shape is None else powersgd_rank * sum(shape)
        total_bytes += numel * (
            HALF_DTYPES[compress].itemsize if compress in HALF_DTYPES else tensor.element_size()
        )
    return total_bytes


def all_reduce_bytes(num_bytes: int, num_ranks: int) -> int:
    """Return the bytes that one rank sends in a bandwidth-optimal all-reduce: 2(n-1)/n of `num_bytes`."""
    return round(2 * (num_ranks - 1) / num_ranks * num_bytes)


def collect_gradients(
    module: nn.Module, *, find_unused: bool = False, group: dist.ProcessGroup | None = None
) -> list[Tensor]:
    """Return the gradients of a module's parameters on this rank (local tensors for DTensors).

    If `find_unused` is true, the ranks of the group agree on the set of used parameters. A parameter that at
    least one rank used gets zeros on ranks without a gradient; the gradient of a parameter that no rank used
    stays None.

    Raises:
        ModelError: a gradient is sparse, or is missing although `find_unused` is false.
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
                    "The gradient of {name} is sparse (an embedding with sparse=True?), but "
                    "gradient buckets must be dense.",
                    name=name,
                ),
                advice=phrase("Build the embedding with sparse=False."),
            )
        gradients.append(local_part(parameter.grad))
    return gradients


def require_gradients(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Check that every trainable parameter has a gradient after the backward pass.

    Raises: ModelError if a gradient is missing.
    """
    missing = sorted(name for name, p in parameters if p.requires_grad and p.grad is None)
    if missing:
        raise ModelError(
            phrase(
                "These parameters did not contribute to the loss: {names}.",
                names=", ".join(missing[:_MAX_NAMES]) + (", ..." if len(missing) > _MAX_NAMES else ""),
            ),
            code="unused-parameters",
            path="strategy.find_unused_parameters",
            advice=phrase(
                "Set strategy.find_unused_parameters = true, or remove the unused parameters from the model."
            ),
            changes={"strategy.find_unused_parameters": True},
        )


def _used_parameters(
    parameters: list[tuple[str, nn.Parameter]], group: dist.ProcessGroup | None
) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that have a gradient on any rank, and fill in zeros on ranks without that
    gradient."""
    if not parameters:
        return []
    device = local_part(parameters[0][1]).device
    used = reduce_used_flags([p.grad is not None for _, p in parameters], device, group)
    used_parameters = [pair for pair, is_used in zip(parameters, used, strict=True) if is_used]
    for _, parameter in used_parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return used_parameters


def reduce_used_flags(
    is_used: Sequence[bool], device: torch.device, group: dist.ProcessGroup | None = None
) -> list[bool]:
    """Return for each weight whether any rank of the group used it.

    All ranks pass flags for the same number of weights. A weight that no rank used should have no gradient,
    as on one device: with a gradient of zeros, an optimizer would still decay the weight.

    A rank that used all weights does not wait for the result.
    """
    flags = torch.tensor(is_used, dtype=torch.uint8, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
    # `tolist` waits for the device; a rank whose flags are all set already knows the maximum.
    return list(is_used) if all(is_used) else [bool(flag) for flag in flags.tolist()]
