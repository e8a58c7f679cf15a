"""What collectives inside forward and backward send, counted where they happen.

Split layers send through torch's functional collectives, which no strategy calls itself; this mode sees each
of them with its tensor and books what a bandwidth-optimal ring sends for it:

    all-reduce of G bytes 2(n-1)/n x G,  all-gather of n parts of G bytes (n-1) x G,
    reduce-scatter of G bytes (n-1)/n x G,  all-to-all of G bytes (n-1)/n x G

It slows every operation a little, so enter it for one step. Source: torch's own CommDebugMode counts calls,
not bytes. Read ../../strategies/tensor_parallel.py next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from rankdeck.torch_compat.collectives import NAMESPACE, size_of_group
from rankdeck.torch_compat.dispatch import DispatchMode

_SHARES = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather_into_tensor": lambda n: n - 1,
    "reduce_scatter_tensor": lambda n: (n - 1) / n,
    "all_to_all_single": lambda n: (n - 1) / n,
}


class CountedCollectives(DispatchMode):
    """Counts the functional collectives of the threads that it is entered in."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        """How often each kind was called."""
        self.sent_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it unwraps itself, and its collectives come back here
        if getattr(func, "namespace", None) == NAMESPACE:
            self._book(func.__name__.partition(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _book(self, name: str, args: tuple[Any, ...]) -> None:
        share = _SHARES.get(name)
        tensor = args[0]
        if share is None or not isinstance(tensor, Tensor):
            return
        num_ranks = size_of_group(args[-1])
        self.calls[name] += 1
        self.sent_bytes += round(share(num_ranks) * tensor.numel() * tensor.element_size())
