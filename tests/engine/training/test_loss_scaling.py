"""fp16's loss scaling on the CPU's own GradScaler: the same steps, and none where a gradient overflows."""

from __future__ import annotations

import pytest
import torch

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig, from_text
from rankdeck.training.step import LossScaling

CPU = torch.device("cpu")


def one_step(scaling: LossScaling, *, overflow: bool = False) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    loss = (weight * torch.tensor([1.0, 2.0, float("inf") if overflow else 3.0])).sum()
    (loss * scaling.scaled(0.1)).backward()
    scaling.unscale(optimizer)
    assert weight.grad is not None
    assert overflow or torch.allclose(weight.grad, torch.tensor([0.1, 0.2, 0.3])), "not what is clipped"
    scaling.step(optimizer)
    return weight.detach()


def test_a_scaled_step_is_the_step_itself() -> None:
    assert torch.allclose(one_step(LossScaling(CPU, is_on=True)), one_step(LossScaling(CPU, is_on=False)))


def test_a_step_with_an_overflow_is_left_out_and_the_scale_halves() -> None:
    scaling = LossScaling(CPU, is_on=True)
    before = float(scaling.scaled(1.0))
    assert torch.equal(one_step(scaling, overflow=True), torch.ones(3))
    assert float(scaling.scaled(1.0)) == before / 2


def test_the_scale_goes_on_after_a_checkpoint() -> None:
    scaling, fresh = LossScaling(CPU, is_on=True), LossScaling(CPU, is_on=True)
    one_step(scaling, overflow=True)
    states = scaling.state() | {"other": torch.zeros(1)}
    fresh.take_state(states)
    assert float(fresh.scaled(1.0)) == float(scaling.scaled(1.0))
    assert list(states) == ["other"]


def configured(precision: str, strategy: str, devices: str) -> RunConfig:
    from pathlib import Path

    toml = f'train.precision = "{precision}"\nstrategy.use = "{strategy}"\ndevices.use = "{devices}"'
    return from_text(toml, folder=Path())


def test_fp16_is_for_gpus_and_whole_gradients() -> None:
    assert configured("fp16", "ddp", "gpu:0,1").train.precision == "fp16"
    with pytest.raises(ConfigError, match="fp16 is for CUDA"):
        configured("fp16", "ddp", "cpu:2")
    with pytest.raises(ConfigError, match="gradient scaler"):
        configured("fp16", "fsdp", "gpu:0,1")


def test_the_factor_is_that_of_the_step_and_nobody_has_one_without_fp16() -> None:
    scaling = LossScaling(CPU, is_on=True)
    before = scaling.scale
    one_step(scaling, overflow=True)
    assert before is not None and scaling.scale is not None
    assert float(scaling.scale) == float(before) / 2
    assert LossScaling(CPU, is_on=False).scale is None
