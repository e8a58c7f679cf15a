"""What the zoo holds, as data: an entry names a model, its data, its loss and how it is trained.

Nothing here imports the engine, as oracle.py reads the same entries. Factories register themselves:

    @model("classes")                 trained on that data set of data.py, by cross entropy and SGD
    def mlp() -> nn.Module: ...

    @loss("mlp_deep", "classes")      tried with that model on that data set
    def focal(outputs, targets): ...

Read strategies.py and oracle.py next.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

SGD: dict[str, Any] = {"use": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
"""Decay tells a gradient of zero from none."""
ADAMW: dict[str, Any] = {"use": "adamw", "lr": 0.01, "weight_decay": 0.1, "eps": 1e-6}
ENGINE_LOSSES = ("cross_entropy", "mse", "model")
SEED = 3

Factory = Callable[..., Any]


@dataclass(frozen=True)
class Entry:
    """One thing of the zoo with all that it takes to train it. `plan` is a person's own for tensor parallel;
    `draws`: its forward draws random numbers, which only one device draws as the oracle does."""

    kind: str
    name: str
    model: str
    data: str
    loss: str = "cross_entropy"
    optimizer: dict[str, Any] = field(default_factory=lambda: SGD)
    batch: int = 16
    accumulate: int = 1
    clip: float = 0.0
    last: str = "drop"
    steps: int = 3
    plan: dict[str, str] | None = None
    draws: bool = False

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"

    def toml(self, strategy: dict[str, Any], num_devices: int) -> str:
        """The configuration of this entry under a strategy."""
        if self.plan and (strategy["use"] == "tensor" or "tensor" in strategy):
            strategy = {**strategy, "plan": self.plan}
        tables = {
            "model": {"use": self.model},
            "data": {"use": self.data, "order": "given", "last": self.last},
            "loss": {"use": self.loss},
            "strategy": strategy,
            "devices": {"use": f"cpu:{num_devices}"},
            "train": {
                "steps": self.steps,
                "global_batch": self.batch,
                "accumulate": self.accumulate,
                "seed": SEED,
                "precision": "fp64",
                "evaluate_every": 0,
                "clip_norm": self.clip,
                "optimizer": self.optimizer,
            },
        }
        return "\n".join(f"{name} = {_inline_table(table)}" for name, table in tables.items())


def _inline_table(value: Any) -> str:
    """As TOML on one line."""
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {_inline_table(item)}" for key, item in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline_table, value)) + "]"
    return json.dumps(value)


MODELS: dict[str, Entry] = {}
_OTHERS: list[tuple[str, str, str, dict[str, Any]]] = []
"""Losses, optimizers and data sets: kind, name, the model that each is tried with, and what it changes."""


def model(data: str, loss: str = "cross_entropy", **rest: Any) -> Callable[[Factory], Factory]:
    """Register a model's factory with the data set and the loss that it is trained with."""

    def register(factory: Factory) -> Factory:
        name, use = factory.__name__, _target_of(factory)
        MODELS[name] = Entry("models", name, use, f"tests.zoo.data:{data}", _loss_target(loss), **rest)
        return factory

    return register


def loss(model: str, data: str, **rest: Any) -> Callable[[Factory], Factory]:
    """Register a loss function with the model and the data set that it is tried with."""

    def register(function: Factory) -> Factory:
        changes = {"loss": _target_of(function), "data": f"tests.zoo.data:{data}", **rest}
        _OTHERS.append(("losses", function.__name__, model, changes))
        return function

    return register


def dataset(model: str, loss: str = "cross_entropy", **rest: Any) -> Callable[[Factory], Factory]:
    """Register a data set with the model that is trained on it."""

    def register(factory: Factory) -> Factory:
        changes = {"data": _target_of(factory), "loss": _loss_target(loss), **rest}
        _OTHERS.append(("data", factory.__name__, model, changes))
        return factory

    return register


def optimizer(name: str, use: str, *, model: str = "lm_small", **options: Any) -> None:
    """Register an optimizer with its options."""
    _OTHERS.append(("optimizers", name, model, {"optimizer": {"use": use, **options}}))


def _target_of(factory: Factory) -> str:
    return f"{factory.__module__}:{factory.__name__}"


def _loss_target(name: str) -> str:
    return name if name in ENGINE_LOSSES else f"tests.zoo.losses:{name}"


def all_entries() -> dict[str, Entry]:
    """All of the zoo by kind and name."""
    from tests.zoo import data, losses, models, optimizers  # noqa: F401 - they register what they hold

    entries = list(MODELS.values())
    for kind, name, like, changes in _OTHERS:
        entries.append(replace(MODELS[like], kind=kind, name=name, **changes))
    return {entry.key: entry for entry in entries}
