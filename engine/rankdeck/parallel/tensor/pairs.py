"""Feed-forward layers found by structure: a linear layer that widens and the one that narrows again.

In a transformer block these are the linear layers that attention left over, in the block's order: one or two
(up, gate) of equal shape, then one back. Without attention, a model that tells the order of its modules (its
units, or an nn.Sequential) may be a chain: linear, something elementwise, linear. Read plan.py before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from rankdeck.parallel.tensor.attention import is_plain, linears_of

ELEMENTWISE = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardswish,
    nn.Softplus,
    nn.Dropout,
    nn.Identity,
)


@dataclass(frozen=True)
class Pair:
    """Columns that share their input, and the row behind them; `width` is what lies between, `block` the
    block around them."""

    columns: tuple[str, ...]
    row: str
    width: int
    block: str = ""


def feed_forward_pairs(model: nn.Module, blocks: Sequence[str], taken: set[str]) -> list[Pair]:
    """The pairs of all blocks among the linear layers that are not taken."""
    return [pair for block in blocks for pair in _pairs_of(model, block, taken)]


def _pairs_of(model: nn.Module, block: str, taken: set[str]) -> Iterator[Pair]:
    left = [(name, layer) for name, layer in linears_of(model, block) if name not in taken]
    start = 0
    while start < len(left):
        shape = (left[start][1].in_features, left[start][1].out_features)
        end = start + 1
        while end < len(left) and _shape(left[end][1]) == shape and shape[0] != shape[1]:
            end += 1
        if end < len(left) and _shape(left[end][1]) == shape[::-1]:
            yield Pair(tuple(name for name, _ in left[start:end]), left[end][0], shape[1], block)
            end += 1
        start = end


def _shape(layer: nn.Linear) -> tuple[int, int]:
    return layer.in_features, layer.out_features


def chain_pairs(model: nn.Module) -> list[Pair]:
    """Neighbouring linear layers of a model whose order is known, with only elementwise modules between."""
    pairs = []
    column: tuple[str, nn.Linear] | None = None
    for name, module in _leaves_in_order(model):
        if isinstance(module, nn.Linear) and is_plain(module):
            if column is not None and column[1].out_features == module.in_features:
                pairs.append(Pair((column[0],), name, module.in_features))
                column = None
            else:
                column = (name, module)
        elif not isinstance(module, ELEMENTWISE):
            column = None
    return pairs


def _leaves_in_order(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules without children in the order of the forward; nothing where the model does not tell it."""
    units = getattr(model, "pipeline_units", None)
    if callable(units):
        roots: list[tuple[str, nn.Module]] = units()
    elif isinstance(model, nn.Sequential):
        roots = list(model.named_children())
    else:
        return
    for prefix, root in roots:
        for name, module in root.named_modules(prefix=prefix):
            if not any(True for _ in module.children()):
                yield name, module
