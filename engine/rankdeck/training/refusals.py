"""What a run refuses once its model is there, before the first step: gradients that a strategy cannot move.
Read assembly.py before, optimizer_check.py next.
"""

from __future__ import annotations

from torch import nn

from rankdeck.base.errors import ConfigError, ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.strategies.base import Strategy
from rankdeck.training.trial_weights import is_sparse


def refuse_sparse(model: nn.Module, strategy: Strategy, config: RunConfig) -> None:
    """Raises: ModelError, ConfigError where gradients of an embedding are sparse and cannot be."""
    name = next((name for name, module in model.named_modules() if is_sparse(module)), None)
    if name is None:
        return
    if config.train.clip_norm:
        raise ConfigError(
            phrase(
                "train.clip_norm needs the norm of all gradients, and those of {name!r} are sparse.",
                name=name,
            ),
            path="train.clip_norm",
            advice=phrase("Set train.clip_norm = 0, or build the embedding with sparse = False."),
            cure={"train.clip_norm": 0.0},
        )
    if not strategy.takes_sparse_gradients:
        raise ModelError(
            phrase(
                "The embedding {name!r} gives sparse gradients (sparse=True), which strategy.use = "
                "{strategy} cannot add up or cut.",
                name=name,
                strategy=config.strategy.use,
            ),
            code="sparse-gradients",
            path="strategy.use",
            advice=phrase(
                "Build the embedding with sparse = False, or use single, model, pipeline or ddp with "
                'sync = "native".'
            ),
            cure={"strategy.use": "ddp"} if config.strategy.use != "ddp" else {"strategy.sync": "native"},
        )
