"""What would mend a run that has started, where that is known: a problem's cure, and a configuration with it.

A refusal of a configuration brings its cure with it (rules.py, capabilities.py). What happens later knows no
configuration: here the two meet, and a cure that the configuration's own rules refuse is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.config.loading import from_text
from rankdeck.config.schema import RunConfig

Cure = Mapping[str, Any]
STRATEGY = "strategy.use"
"""A cure with this key replaces the whole strategy: options of the one before mean nothing to another."""
EVENLY = {"dp": "ddp"}
"""The strategy that does the same work without one device's excess."""


def is_out_of_memory(problem: Problem) -> bool:
    """Whether a problem says that a device, or one that a rehearsal pretends, had no room."""
    return problem.code in ("out-of-memory", "over-capacity")


def options_of(cure: Cure) -> list[str]:
    """The options of `rankdeck resume` or `train` that do what a cure says."""
    options = [] if STRATEGY not in cure else ["--strategy", str(cure[STRATEGY])]
    for key, value in _settings(cure):
        options += ["--set", f"{key}={value}"]
    return options


def cured(config: RunConfig, cure: Cure) -> RunConfig:
    """The configuration with a cure applied.

    Raises:
        ConfigError: it does not go together with the rest.
    """
    folder = Path(config.folder or ".")
    overrides = [f"{key}={value}" for key, value in _settings(cure)]
    return from_text(config.to_toml(), folder=folder, strategy=cure.get(STRATEGY), overrides=overrides)


def _settings(cure: Cure) -> Iterator[tuple[str, str]]:
    return ((key, json.dumps(value)) for key, value in cure.items() if key != STRATEGY and value is not None)


def with_cure(problem: Problem, config: RunConfig) -> Problem:
    """The problem with the first cure that this configuration can take, its own before those of its kind; or
    with none."""
    own = [problem.cure] if problem.cure else []
    for cure in (*own, *_cures(problem, config)):
        try:
            cured(config, cure)
        except ConfigError:
            continue
        return msgspec.structs.replace(problem, cure=dict(cure))
    return msgspec.structs.replace(problem, cure={})


def _cures(problem: Problem, config: RunConfig) -> Iterator[Cure]:
    train, known = config.train, config.strategy_card.options.model_fields
    match problem.code:
        case "out-of-memory" | "over-capacity":
            if not train.activation_checkpointing and ":" not in config.model.use:
                yield {"train.activation_checkpointing": True}
            yield {"train.accumulate": 2 * train.accumulate}
            if config.strategy.use in EVENLY:
                yield {STRATEGY: EVENLY[config.strategy.use]}
        case "unused-parameters" if "find_unused_parameters" in known:
            yield {"strategy.find_unused_parameters": True}
        case "ready-twice" if "static_graph" in known:
            yield {"strategy.static_graph": True}
        case "batch-of-one" if "sync_batchnorm" in known:
            yield {"strategy.sync_batchnorm": True}
        case "compile-failed" if train.compile:
            yield {"train.compile": False}
        case "shared-memory" | "data-worker-died" | "too-many-files" if config.data.workers:
            yield {"data.workers": 0}
        case "loss-not-finite":
            if train.precision == "fp16":
                yield {"train.precision": "bf16"}
            if not train.clip_norm:
                yield {"train.clip_norm": 1.0}
    if problem.path == "strategy.sync_batchnorm" and "sync_batchnorm" in known:
        yield {"strategy.sync_batchnorm": True}
