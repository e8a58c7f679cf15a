"""Presets keep what they promise, as a person runs them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rankdeck.config import presets
from tests.helpers.cli import rankdeck_here

ON_CPU = [card.name for card in presets.all() if not card.needs_gpu]


def trained(preset: str, devices: str, *more: str) -> Any:
    return rankdeck_here("train", preset, "--devices", devices, "--json", *more, code=0).json


# digits-mlp is trained to its end in test_cli.py, too.
@pytest.mark.slow
@pytest.mark.parametrize(("preset", "devices"), [("digits-mlp", "cpu:1"), ("digits-ddp", "cpu:2")])
def test_digits_are_read_right_within_a_minute(preset: str, devices: str) -> None:
    started = time.monotonic()
    facts = trained(preset, devices)
    assert facts["evaluation"]["accuracy"] >= 0.95
    assert facts["steps"] == facts["steps_planned"]
    assert time.monotonic() - started < 60
    if preset == "digits-ddp":  # no device leads
        assert facts["imbalance"]["ratio"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_gathered_outputs_lead_under_dp_and_a_parallel_loss_takes_them_away() -> None:
    short = ("--set", "train.steps=2", "--set", "train.evaluate_every=0")
    gathering = trained("gpt-dp", "cpu:4", *short)
    parallel = trained("gpt-dp-parallel-loss", "cpu:4", *short)
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
def test_every_preset_for_a_laptop_finishes_in_minutes_and_learns(preset: str, devices: str) -> None:
    started = time.monotonic()
    facts = trained(preset, devices)
    assert facts["evaluation"]["loss"] < 0.8 * facts["loss"]["first"]
    assert time.monotonic() - started < 600


@pytest.mark.slow
@pytest.mark.parametrize("preset", ON_CPU)
def test_every_preset_takes_three_steps_on_four_devices(preset: str) -> None:
    facts = trained(preset, "cpu:4", "--set", "train.steps=3")
    assert facts["outcome"] == "completed" and facts["steps"] == 3
    assert all(device["peak_bytes"] > 0 for device in facts["devices"])


def test_a_preset_for_gpus_is_valid_and_says_where_it_cannot_run() -> None:
    assert len(ON_CPU) == len(presets.all()) - 1
    rankdeck_here("validate", "resnet50-images", code=0)
