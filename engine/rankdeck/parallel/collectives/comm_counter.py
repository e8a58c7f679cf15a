"""Count the bytes that collectives inside forward and backward passes send.

Split layers send through torch's functional collectives, which no strategy calls directly.
`CollectiveCounter` intercepts each of them and counts the bytes that a bandwidth-optimal ring sends for it:

    all-reduce of G bytes             2(n-1)/n x G
    all-gather of n parts of G bytes  (n-1) x G
    reduce-scatter of G bytes         (n-1)/n x G
    all-to-all of G bytes             (n-1)/n x G

The counter slows every operation a little, so enter it for one step only. Source: torch's own CommDebugMode,
which counts calls, not bytes. Read ../../strategies/tensor_parallel.py next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.tensor import DTensor

from rankdeck.torch_compat.collectives import FUNCTIONAL_NAMESPACE, parse_collective
from rankdeck.torch_compat.dispatch import DispatchMode, Kwargs

_RING_FACTORS: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}


def ring_bytes(kind: str, num_ranks: int, num_bytes: int) -> int:
    """Return the bytes that one rank sends in a collective to which it contributes `num_bytes`."""
    return round(_RING_FACTORS[kind](num_ranks) * num_bytes)


class CollectiveCounter(DispatchMode):
    """Dispatch mode that counts the functional collectives in the threads that enter it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        """Number of calls of each kind."""
        self.sent_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor unwraps itself; its collectives are dispatched here again
        sent = (
            parse_collective(func, args) if getattr(func, "namespace", None) == FUNCTIONAL_NAMESPACE else None
        )
        if sent is not None:
            self.calls[sent.kind] += 1
            self.sent_bytes += ring_bytes(sent.kind, len(sent.group), sent.num_bytes)
        return func(*args, **(kwargs or {}))
