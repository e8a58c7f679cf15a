"""fp16's loss scaling on the CPU's own GradScaler: the same steps, and none where a gradient overflows."""

from __future__ import annotations

import pytest
import torch

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig, from_text
from rankdeck.training.step import LossScaling

CPU = torch.device("cpu")


def run_step(scaling: LossScaling, *, overflow: bool = False) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    loss = (weight * torch.tensor([1.0, 2.0, float("inf") if overflow else 3.0])).sum()
    (loss * scaling.scale_factor(0.1)).backward()
    scaling.unscale(optimizer)
    assert weight.grad is not None
    assert overflow or torch.allclose(weight.grad, torch.tensor([0.1, 0.2, 0.3])), "not what is clipped"
    scaling.step(optimizer)
    return weight.detach()


def test_a_scaled_step_equals_an_unscaled_step() -> None:
    assert torch.allclose(run_step(LossScaling(CPU, is_on=True)), run_step(LossScaling(CPU, is_on=False)))


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    scaling = LossScaling(CPU, is_on=True)
    before = float(scaling.scale_factor(1.0))
    assert torch.equal(run_step(scaling, overflow=True), torch.ones(3))
    assert float(scaling.scale_factor(1.0)) == before / 2


def test_the_scale_is_restored_from_a_checkpoint() -> None:
    scaling, fresh = LossScaling(CPU, is_on=True), LossScaling(CPU, is_on=True)
    run_step(scaling, overflow=True)
    states = scaling.state() | {"other": torch.zeros(1)}
    fresh.pop_state(states)
    assert float(fresh.scale_factor(1.0)) == float(scaling.scale_factor(1.0))
    assert list(states) == ["other"]


def config_with(precision: str, strategy: str, devices: str) -> RunConfig:
    from pathlib import Path

    toml = f'train.precision = "{precision}"\nstrategy.use = "{strategy}"\ndevices.use = "{devices}"'
    return from_text(toml, folder=Path())


def test_fp16_needs_gpus_and_unsharded_gradients() -> None:
    assert config_with("fp16", "ddp", "gpu:0,1").train.precision == "fp16"
    with pytest.raises(ConfigError, match="fp16 is supported only with CUDA"):
        config_with("fp16", "ddp", "cpu:2")
    with pytest.raises(ConfigError, match="gradient scaler"):
        config_with("fp16", "fsdp", "gpu:0,1")


def test_the_scale_is_reported_per_step_and_only_with_fp16() -> None:
    scaling = LossScaling(CPU, is_on=True)
    before = scaling.current_scale
    run_step(scaling, overflow=True)
    assert before is not None and scaling.current_scale is not None
    assert float(scaling.current_scale) == float(before) / 2
    assert LossScaling(CPU, is_on=False).current_scale is None
