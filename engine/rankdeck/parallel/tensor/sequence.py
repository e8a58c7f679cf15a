"""sequence_parallel: between the first and the last block of a row, each rank holds its part of the tokens.

    (B, T, C) whole -> cut along T -> block, block, ... -> put together -> (B, T, C) whole

Inside a block, attention and feed-forward gather the tokens at their entry and scatter their sums at their
row (apply.py); norms, dropout and the residual stream in between work on 1/n of the tokens. Their weights
stay whole, and their gradients are sums over the ranks (gradients.py). Source: Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models" (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase

SEQUENCE = 1
"""The dim of hidden states (B, T, C) that is cut."""


def bound_sequence(model: nn.Module, blocks: Sequence[str], mesh: DeviceMesh) -> None:
    """Cut the stream along T before the first block, and put it together behind the last one."""
    num_ranks = mesh.size()

    def cut(hidden: Tensor) -> Tensor:
        if hidden.ndim != 3 or hidden.shape[SEQUENCE] % num_ranks:
            raise ModelError(
                phrase(
                    "strategy.sequence_parallel cannot cut {shape} over {num_ranks} ranks.",
                    shape=tuple(hidden.shape),
                    num_ranks=num_ranks,
                ),
                path="strategy.sequence_parallel",
                advice=phrase("Use a context that divides by {num_ranks}.", num_ranks=num_ranks),
            )
        whole = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[Shard(SEQUENCE)]).to_local()

    def put_together(hidden: Tensor) -> Tensor:
        part = DTensor.from_local(hidden, mesh, [Shard(SEQUENCE)], run_check=False)
        # Of its own: a pipeline's stage cannot hand on a view.
        return part.redistribute(placements=[Replicate()]).to_local().clone()

    model.get_submodule(blocks[0]).register_forward_pre_hook(
        lambda _, args, kwargs: with_hidden(args, kwargs, cut), with_kwargs=True
    )
    model.get_submodule(blocks[-1]).register_forward_hook(
        lambda _, args, output: _first_changed(output, put_together)
    )


def require_stream(module: nn.Module, name: str) -> None:
    """A split module inside a block takes the stream (B, T, C) itself, from its first forward on.

    Raises: ModelError, later, where it is given tokens that were chosen one by one: each rank has others.
    """

    def require(hidden: Tensor) -> Tensor:
        if hidden.ndim != 3:
            raise ModelError(
                phrase(
                    "strategy.sequence_parallel gives each rank a part of the tokens, and {name} takes a "
                    "tensor of shape {shape}, no part of the stream (tokens that a router chose?).",
                    name=name,
                    shape=tuple(hidden.shape),
                ),
                path="strategy.sequence_parallel",
                advice=phrase("Leave it out."),
            )
        return hidden

    module.register_forward_pre_hook(
        lambda _, args, kwargs: with_hidden(args, kwargs, require), with_kwargs=True, prepend=True
    )


def with_hidden(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with hidden states changed: the first positional one, else those named so."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
    return args, {**kwargs, name: change(kwargs[name])}


def _first_changed(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(output, tuple):
        return (change(output[0]), *output[1:])
    return change(output)
