"""Presets keep what they promise, as a person runs them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rankdeck.config import presets
from tests.helpers.cli import rankdeck_in_process

CPU_PRESETS = [card.name for card in presets.list_presets() if not card.needs_gpu]


def train_preset(preset: str, devices: str, *more: str) -> Any:
    return rankdeck_in_process("train", preset, "--devices", devices, "--json", *more, exit_code=0).json


# digits-mlp is trained to its end in test_cli.py, too.
@pytest.mark.slow
@pytest.mark.parametrize(("preset", "devices"), [("digits-mlp", "cpu:1"), ("digits-ddp", "cpu:2")])
def test_digit_presets_reach_95_percent_within_a_minute(preset: str, devices: str) -> None:
    started = time.monotonic()
    facts = train_preset(preset, devices)
    assert facts["evaluation"]["accuracy"] >= 0.95
    assert facts["steps"] == facts["steps_planned"]
    assert time.monotonic() - started < 60
    if preset == "digits-ddp":  # no device leads
        assert facts["imbalance"]["ratio"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_a_parallel_loss_removes_the_gathered_outputs_of_dp() -> None:
    short = ("--set", "train.steps=2", "--set", "train.evaluate_every=0")
    gathering = train_preset("gpt-dp", "cpu:4", *short)
    parallel = train_preset("gpt-dp-parallel-loss", "cpu:4", *short)
    lead = gathering["imbalance"]
    assert lead["device"] == 0 and lead["ratio"] > 1.8
    kinds = gathering["devices"][0]["peak_by_kind"]
    assert max(kinds, key=kinds.get) == "gathered"
    assert parallel["imbalance"]["ratio"] < 0.6 * lead["ratio"]
    # The same model, the same data, the same loss.
    assert parallel["loss"]["first"] == pytest.approx(gathering["loss"]["first"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "devices"),
    [("gpt-stdlib", "cpu:1"), ("gpt-dp", "cpu:2"), ("gpt-ddp", "cpu:2"), ("digits-resnet18-ddp", "cpu:2")],
)
def test_laptop_presets_learn_within_ten_minutes(preset: str, devices: str) -> None:
    started = time.monotonic()
    facts = train_preset(preset, devices)
    assert facts["evaluation"]["loss"] < 0.8 * facts["loss"]["first"]
    assert time.monotonic() - started < 600


@pytest.mark.slow
@pytest.mark.parametrize("preset", CPU_PRESETS)
def test_every_cpu_preset_trains_on_four_devices(preset: str) -> None:
    facts = train_preset(preset, "cpu:4", "--set", "train.steps=3")
    assert facts["outcome"] == "completed" and facts["steps"] == 3
    assert all(device["peak_bytes"] > 0 for device in facts["devices"])


def test_the_gpu_preset_is_valid() -> None:
    assert len(CPU_PRESETS) == len(presets.list_presets()) - 1
    rankdeck_in_process("validate", "resnet50-images", exit_code=0)
