"""What two steps compute, on one device or under a strategy: the same record for both, on the host.

Read reference.py and trial.py next: who makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

Tensors = Mapping[str, Tensor]
"""By the model's own names; a tied weight under each of its names."""


@dataclass
class Computed:
    """Some steps: a loss for each, by step (from 0) gradients by parameter as the optimizer got them (None:
    no gradient), and the weights and persistent buffers after it. `before` are those that the steps began
    with, and `seconds` what one device took for each. `apart` says by kind how far, relative to its norm, a
    gradient or a weight of a step is apart on ranks that hold the same."""

    before: Tensors = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    gradients: dict[int, Mapping[str, Tensor | None]] = field(default_factory=dict)
    after: dict[int, Tensors] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    apart: list[Mapping[str, Mapping[str, float]]] = field(default_factory=list)


def snapshot(tensors: Tensors) -> dict[str, Tensor]:
    """Copies on the host; one copy for each tensor, whatever its number of names."""
    copies: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
    return {name: copies[id(tensor)] for name, tensor in tensors.items()}
