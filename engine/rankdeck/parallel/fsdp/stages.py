"""Weights of a pipeline's stages, cut over shard. Read blocks.py before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from rankdeck.base.errors import ModelError
from rankdeck.parallel.fsdp.blocks import Sharding
from rankdeck.parallel.tensor.apply import tie_again
from rankdeck.parallel.tensor.plan import names_by_weight


def shard_stages(model: nn.Module, runners: Sequence[nn.Module], sharding: Sharding) -> list[nn.Parameter]:
    """Cut the weights that `runners` (modules around this rank's stages of `model`) use, in place; returns
    those that stay whole.

    Raises:
        ModelError: two stages of this rank share a weight.
    """
    whole: list[nn.Parameter] = []
    ties = names_by_weight(model)
    weights = [weight for runner in runners for weight in runner.parameters()]
    if len(set(weights)) < len(weights):
        raise ModelError(
            "A tied weight lies in two stages of one rank, which shard cannot cut twice.",
            path="strategy.schedule",
            advice="Use schedule = 1f1b or gpipe, shard = 1, or a model whose weights are not tied.",
        )
    for runner in runners:
        whole += sharding.shard(runner)
    tie_again(model, ties, _names_inside(model, runners))
    return whole


def _names_inside(model: nn.Module, runners: Sequence[nn.Module]) -> Collection[str]:
    """The names of weights whose modules a rank's stages run."""
    inside = {module for runner in runners for module in runner.modules()}
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if module in inside
        for name, _ in module.named_parameters(recurse=False)
    }
