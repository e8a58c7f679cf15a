"""The candidates of a plan: which strategies, with which options, and the configuration of each of them.

What is sensible is a table: a strategy's defaults, and the options that change what it needs most. The
configuration's own strategy comes first, as it is. Read pool.py next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankdeck.base.errors import ConfigError, did_you_mean, one_of
from rankdeck.config import RunConfig, from_dict
from rankdeck.config.catalog import STRATEGIES
from rankdeck.planner.targets import Target

Options = dict[str, Any]
SENSIBLE: Mapping[str, Callable[[int], list[Options]]] = {
    "single": lambda n: [{}],
    "dp": lambda n: [{}, {"parallel_loss": True}],
    "ddp": lambda n: [{}, {"gradient_as_bucket_view": True}],
    "fsdp": lambda n: [{}, {"reshard": False}],
    "model": lambda n: [{}],
    "pipeline": lambda n: [{"schedule": "gpipe"}, {"schedule": "1f1b"}, {"schedule": "interleaved-1f1b"}],
    "tensor": lambda n: [{}],
    "pipeline-async": lambda n: [{"mode": "stash"}],
    "hybrid": lambda n: _meshes(n),
}
ALL = "all"


@dataclass(frozen=True)
class Candidate:
    """One way to train. `changes` are dotted keys of the configuration beside the strategy."""

    strategy: str
    options: Options = field(default_factory=dict)
    changes: Options = field(default_factory=dict)
    configured: bool = False

    @property
    def label(self) -> str:
        """'pipeline, schedule = 1f1b': the strategy and what is not its default."""
        defaults = STRATEGIES[self.strategy].options().model_dump()
        shown = {key: value for key, value in self.options.items() if defaults.get(key) != value}
        if self.strategy in ("pipeline", "pipeline-async") and not shown:
            key = "schedule" if self.strategy == "pipeline" else "mode"
            shown = {key: self.options.get(key, defaults[key])}
        return ", ".join([self.strategy, *(f"{key} = {_toml(value)}" for key, value in shown.items())])

    def config(self, base: RunConfig, target: Target) -> RunConfig:
        """The configuration of a run of this candidate.

        Raises: ConfigError where the options, the batch or the devices do not go together.
        """
        tables = base.to_dict()
        tables["strategy"] = {"use": self.strategy, **self.options}
        tables["devices"] = {"use": target.devices_use}
        tables["rehearsal"] = {}
        for key, value in self.changes.items():
            section, _, name = key.partition(".")
            tables[section][name] = value
        folder = Path(base.folder or ".")
        config = from_dict(tables, folder=folder)
        if config.train.compile:  # which may be refused here, and is left out where it is not
            tables["train"]["compile"] = False
            config = from_dict(tables, folder=folder)
        return config


def candidates_for(config: RunConfig, wanted: str | None, num_devices: int) -> list[Candidate]:
    """The candidates of `--strategy`: "all" (or nothing), or names with commas between them.

    Raises: ConfigError for an unknown name.
    """
    names = list(SENSIBLE)
    if wanted is not None and wanted != ALL:
        names = [name.strip() for name in wanted.split(",")]
        for name in names:
            if name not in STRATEGIES:
                raise ConfigError(
                    f'"{name}" is not a strategy.',
                    code="unknown-strategy",
                    path="strategy.use",
                    advice=did_you_mean(name, STRATEGIES) or f"Use all alone, or {one_of(STRATEGIES)}.",
                )
    own = config.strategy
    candidates = [Candidate(own.use, dict(own.options), configured=True)] if own.use in names else []
    for name in names:
        for options in SENSIBLE[name](num_devices):
            candidate = Candidate(name, options)
            if all(candidate.label != known.label for known in candidates):
                candidates.append(candidate)
    return candidates


def _meshes(num_devices: int) -> list[Options]:
    """Pairs of axes over an even number of devices: replicas of pipelines, of slices, and split layers."""
    half = num_devices // 2
    if num_devices < 4 or num_devices % 2:
        return []
    return [
        {"data": 2, "stage": half},
        {"data": 2, "shard": half},
        {"data": half, "tensor": 2},
        {"shard": half, "tensor": 2},
    ]


def representatives(
    strategy: str, options: Mapping[str, Any], num_devices: int, alike: Sequence[int] = ()
) -> dict[int, int]:
    """For every rank the rank whose figures are its own as well.

    Replicas and ranks of one tensor group hold equal shapes; stages differ. `alike` says for every slice of
    sharded weights which slice is like it; without it all are taken for the first.
    """
    if strategy in ("ddp", "tensor"):
        return dict.fromkeys(range(num_devices), 0)
    slices = alike or (0,) * num_devices
    if strategy == "fsdp":
        return {rank: slices[rank] for rank in range(num_devices)}
    if strategy == "hybrid":
        shard, stage, tensor = (int(options.get(axis, 1)) for axis in ("shard", "stage", "tensor"))
        same = {}
        for rank in range(num_devices):
            at_stage = rank // tensor % stage
            at_shard = slices[rank // (tensor * stage) % shard]
            same[rank] = (at_shard * stage + at_stage) * tensor
        return same
    return {rank: rank for rank in range(num_devices)}


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
