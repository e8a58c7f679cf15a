"""One rank's slices in place of a model's split layers, in plain torch, in a copy of the model.

    column   its rows of the weight; outputs put together again where it `gathers`
    row      its columns of the weight; outputs summed over the ranks, then the bias added
    table    its rows of an embedding, zeros for all others; outputs summed

What each layer gives to the other ranks goes through an `Exchange`. A split weight is there while its own
layer computes and at no other time: in a run it is a DTensor, which no other operation of the model takes
beside plain tensors. Read split_plan.py before, trial.py next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.parallel.tensor.attention import HeadCount
from rankdeck.parallel.tensor.split_plan import SplitLayer
from rankdeck.torch_compat.modules import own_parameters

Exchange = Callable[[Tensor], Sequence[Tensor]]
"""What all ranks have in place of this rank's tensor, in their order."""
_METADATA = ("size", "dim", "numel", "stride", "is_floating_point", "is_complex", "element_size")


class OutsideItsLayerError(Exception):
    """The model used a split weight where its layer does not compute."""


class _SplitWeight:
    """Stands for a split weight outside of its layer: its shape and dtype are known, its values are not."""

    def __init__(self, name: str, whole: Tensor) -> None:
        self._name = name
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._whole, name)
        if name not in _METADATA and (callable(value) or isinstance(value, Tensor)):
            raise OutsideItsLayerError(self._name)
        return value

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operands = [*args, *(kwargs or {}).values()]
        raise OutsideItsLayerError(next(item._name for item in operands if isinstance(item, cls)))


def put_slices(
    copied: nn.Module,
    layers: Iterable[SplitLayer],
    heads: Iterable[HeadCount],
    *,
    rank: int,
    num_ranks: int,
    exchange: Exchange,
) -> nn.Module:
    """Make a copy of the model that of one rank, in place. Its parameters stay as they are, whole."""
    for layer in layers:
        _split(copied.get_submodule(layer.name), layer, rank, num_ranks, exchange)
    for count in heads:
        setattr(copied.get_submodule(count.module), count.attribute, count.count)
    return copied


def _split(module: nn.Module, layer: SplitLayer, rank: int, num_ranks: int, exchange: Exchange) -> None:
    whole = {name: weight for name, weight in own_parameters(module).items() if weight is not None}
    is_table = isinstance(module, nn.Embedding)
    bias = whole.get("bias")
    # Outputs of a row hold a sum over ranks; a bias is added once, behind it.
    is_row = layer.kind == "row"

    def slices() -> dict[str, Tensor | None]:
        weight = whole["weight"]
        if is_row and is_table:
            return {"weight": _own_rows(weight, rank, num_ranks)}
        dim = int(is_row != is_table)
        held: dict[str, Tensor | None] = {"weight": _part(weight, dim, rank, num_ranks)}
        if bias is not None:
            held["bias"] = None if is_row else _part(bias, 0, rank, num_ranks)
        return held

    def enter(_module: nn.Module, _args: Any) -> None:
        vars(module).update(slices())

    def leave(_module: nn.Module, _args: Any, output: Any) -> Any:
        hide()
        if is_row:
            total = torch.stack(list(exchange(output))).sum(0)
            return total if bias is None else total + bias
        return torch.cat(list(exchange(output)), dim=-1) if layer.gathers else output

    def hide() -> None:
        vars(module).update(
            {name: _SplitWeight(f"{layer.name}.{name}", held) for name, held in whole.items()}
        )

    hide()
    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


def _part(weight: Tensor, dim: int, rank: int, num_ranks: int) -> Tensor:
    width = weight.shape[dim] // num_ranks
    return weight.narrow(dim, rank * width, width)


def _own_rows(table: Tensor, rank: int, num_ranks: int) -> Tensor:
    rows = torch.arange(len(table), device=table.device) // (len(table) // num_ranks)
    return table * (rows == rank).to(table.dtype).unsqueeze(1)
