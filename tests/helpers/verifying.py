"""The check before the first step, on the ranks of a set or in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from rankdeck.config import from_text
from rankdeck.parallel.tensor.split_plan import ModelAnalysis
from rankdeck.training import workload as workloads
from rankdeck.training.verify.before_run import verified_event
from rankdeck.training.verify.check import CheckResult, EqualityCheck
from tests.helpers.ranks import RankSet

MODELS = Path(__file__).with_name("deviating.py")


def check(
    toml: str,
    full: bool = False,
    most_fp64_weights: int = 10**9,
    budget_s: float = 600.0,
    memory_bytes: int = 10**12,
    beat: Callable[[str], object] = lambda phase: None,
) -> dict[str, Any]:
    """What the check of a configuration finds, whose optimizer nothing has tried out before; all ranks of a
    set call this together. Larger models are compared in the run's own precision.
    `memory_bytes` is what the machine seems to have.
    """
    config = from_text(toml, folder=Path.cwd())
    num_devices = config.selection.count or 1
    alone = config.strategy_spec.one_process
    with (
        mock.patch.multiple("rankdeck.training.verify.budget", MIN_BUDGET_S=budget_s, SHARE_OF_RUN=0.0),
        mock.patch("rankdeck.training.assembly.check_optimizer"),
        mock.patch("rankdeck.training.verify.check._MAX_FP64_WEIGHTS", most_fp64_weights),
        mock.patch("psutil.virtual_memory", lambda: SimpleNamespace(available=memory_bytes)),
    ):
        equality_check = EqualityCheck(
            workloads.load(config),
            rank=0 if alone else dist.get_rank(),
            world_size=1 if alone else dist.get_world_size(),
            devices=[torch.device("cpu")] * (num_devices if alone else 1),
            num_devices=num_devices,
            analysis=ModelAnalysis(),
            is_full=full,
            beat=beat,
        )
        return as_facts(equality_check.run())


def as_facts(result: CheckResult) -> dict[str, Any]:
    event = verified_event(result)
    return {
        "outcome": event.outcome,
        "cause": event.cause,
        "names": event.names,
        "largest": event.largest,
        "precision": event.precision,
        "samples": event.samples,
        "steps": event.steps,
        "why": event.why,
        "layers": event.layers,
        "has_drawn": result.uses_random,
    }


def check_on_ranks(rank_set: RankSet, toml: str, **more: Any) -> dict[str, Any]:
    """The same where one process drives all devices, and on the ranks of a set; every rank found the same."""
    if from_text(toml, folder=Path.cwd()).strategy_spec.one_process:
        return check(toml, **more)
    results = rank_set.call("tests.helpers.verifying:check", toml=toml, **more)
    assert all(result == results[0] for result in results)
    facts: dict[str, Any] = results[0]
    return facts


def configuration(
    strategy: str,
    num_devices: int = 2,
    *,
    model: str = "plain",
    loss: str = "cross_entropy",
    optimizer: str = '{ use = "sgd", lr = 0.1 }',
    train: str = "",
    batch: int = 16,
    data: str = "digits",
) -> str:
    """A model of deviating.py on digits or their likes, with a loss and an optimizer."""
    return f"""
model = {{ use = "{MODELS}:{model}" }}
data = {{ use = "{data}" }}
loss = {{ use = "{loss if loss == "cross_entropy" else f"{MODELS}:{loss}"}" }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 20
global_batch = {batch}
optimizer = {optimizer}
{train}
"""
