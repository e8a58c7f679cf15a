"""What is measured: 60 configurations on one device and 20 over several ranks, as tables.

Every model under every way to train is one configuration; each has its sizes for a GPU and small ones, with
which a CPU can run the same. Strategies are those of tests/helpers/planning.py.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdeck.config import RunConfig, from_dict
from rankdeck.planner.candidates import Candidate, Target
from tests.helpers.planning import STRATEGIES

_FOLDER = Path(__file__).with_name("hugging_face")
STEPS = 64
"""More than are taken: an asynchronous pipeline needs some to fill."""


@dataclass(frozen=True)
class Model:
    """Arguments of a model and of its data, (for a GPU, small); `batch` likewise."""

    use: str
    args: tuple[dict[str, Any], dict[str, Any]]
    batch: tuple[int, int]
    data: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    @property
    def is_hugging_face(self) -> bool:
        return self.use.startswith("rankdeck.models.hugging_face")

    def tables(self, *, small: bool) -> dict[str, Any]:
        args, data = self.args[small], self.data[small]
        if not self.is_hugging_face:
            samples = {"samples": 8 * self.batch[small]}
            return {"model": {"use": self.use, "args": args}, "data": {"use": "synthetic", "args": samples}}
        return {
            "model": {"use": self.use, "args": args},
            "data": {
                "use": "rankdeck.models.hugging_face:tokens",
                "args": {"config": args["config"], **data},
            },
            "loss": {"use": "model"},
        }


def _gpt(batch: int, **args: Any) -> Model:
    small = {"layers": 4, "heads": 4, "width": 64, "context": 32, "vocabulary": 512}
    return Model(
        "gpt", (args, small | {key: args[key] for key in ("tied", "dropout") if key in args}), (batch, 16)
    )


def _hugging_face(name: str, batch: int, length: int, **small: int) -> Model:
    """Small ones keep the vocabulary: tokens are drawn from that of the file."""
    config = {"config": str(_FOLDER / f"{name}.json")}
    lengths = {"length": length, "samples": 8 * batch}, {"length": 32, "samples": 64}
    return Model("rankdeck.models.hugging_face:model", (config, config | small), (batch, 8), lengths)


MODELS = {
    "mlp": Model("mlp", ({"hidden": [8192] * 6}, {"hidden": [512, 512, 256]}), (8192, 256)),
    "gpt-small": _gpt(16, layers=8, heads=8, width=512, context=512, vocabulary=32000),
    "gpt-medium": _gpt(8, layers=12, heads=12, width=768, context=1024, vocabulary=50257, dropout=0.1),
    "gpt-long-tied": _gpt(2, layers=8, heads=16, width=1024, context=4096, vocabulary=32000, tied=True),
    "gpt-odd-heads": _gpt(8, layers=6, heads=6, width=540, context=512, vocabulary=16000),
    "resnet18-small": Model(
        "resnet", ({"depth": 18, "stem": "small"}, {"depth": 18, "stem": "small"}), (512, 16)
    ),
    "resnet50": Model("resnet", ({"depth": 50, "classes": 1000}, {"depth": 50, "stem": "small"}), (64, 4)),
    "hf-gpt2": _hugging_face("gpt2", 8, 1024, n_layer=2, n_embd=48, n_head=4),
    "hf-llama": _hugging_face(
        "llama", 8, 1024, num_hidden_layers=4, hidden_size=32, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=4,
    ),
    "hf-bert": _hugging_face(
        "bert", 16, 512, num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4
    ),
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "checkpointing": {"precision": "bf16", "activation_checkpointing": True},
    "accumulate": {"accumulate": 2, "clip_norm": 1.0},
    "sgd": {"optimizer": {"use": "sgd", "lr": 0.01, "momentum": 0.9}},
}


@dataclass(frozen=True)
class Configuration:
    """One row: a model, a way to train, a strategy by its name in tests/helpers/planning.py, ranks."""

    model: str
    way: str
    strategy: str = "single"
    num_ranks: int = 1

    def __str__(self) -> str:
        over = "" if self.num_ranks == 1 else f" {self.strategy} x{self.num_ranks}"
        return f"{self.model} {self.way}{over}"

    @property
    def candidate(self) -> Candidate:
        options = tomllib.loads(f"of = {STRATEGIES[self.strategy]}")["of"]
        return Candidate(options.pop("use"), options)

    def config(
        self, target: Target, *, small: bool = False, changes: dict[str, Any] | None = None
    ) -> RunConfig:
        """Raises: ConfigError, ModelError ... where it cannot be."""
        model = MODELS[self.model]
        train = {
            "global_batch": model.batch[small],
            "evaluate_every": 0,
            "steps": STEPS,
            "optimizer": {"use": "adamw", "lr": 1e-4},
            **WAYS[self.way],
            **(changes or {}),
        }
        tables = {**model.tables(small=small), "train": train} | target.to_tables(())
        return self.candidate.make_config(from_dict(tables, folder=Path.cwd()), target)


ON_ONE: Sequence[Configuration] = [Configuration(model, way) for way in WAYS for model in MODELS]
"""Way by way, so that a part that ends early has seen every model."""
OVER_RANKS: Sequence[Configuration] = [
    *(
        Configuration("gpt-small", "fp32", name, 4)
        for name in ("ddp", "fsdp", "1f1b", "tensor", "data-stage")
    ),
    *(
        Configuration("gpt-small", "bf16", name, 4)
        for name in ("ddp", "fsdp", "gpipe", "tensor", "data-shard")
    ),
    *(
        Configuration("gpt-small", "fp32", name, 4)
        for name in ("ddp-ring", "ddp-bucket-view", "fsdp-whole", "1f1b-by-hand", "data-tensor")
    ),
    Configuration("hf-llama", "bf16", "fsdp", 8),
    Configuration("resnet50", "bf16", "ddp", 4),
    Configuration("mlp", "fp32", "fsdp", 8),
    Configuration("resnet18-small", "fp32", "pipeline-async", 2),
    Configuration("gpt-medium", "checkpointing", "fsdp", 4),
]


def as_toml(tables: dict[str, Any]) -> str:
    """Tables as a file that the command line reads."""

    def value(of: Any) -> str:
        if isinstance(of, dict):
            return "{" + ", ".join(f"{key} = {value(item)}" for key, item in of.items()) + "}"
        return json.dumps(of)

    return "".join(f"{key} = {value(of)}\n" for key, of in tables.items() if of is not None)
