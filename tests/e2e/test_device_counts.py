"""Strategies beside the number of devices that there are: many ranks on one. One process on many is in
test_verify.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.cli import rankdeck_in_process


def train(strategy: str, devices: str) -> Any:
    options = ("--set", "train.steps=3", "--set", "train.clip_norm=1.0", "--json")
    facts = rankdeck_in_process(
        "train", "digits-mlp", "--strategy", strategy, "--devices", devices, *options, exit_code=0
    ).json
    assert (facts["outcome"], facts["steps"]) == ("completed", 3)
    return facts


# ddp in test_torch_versions.py.
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_multi_rank_strategy_trains_on_one_device(strategy: str) -> None:
    facts = train(strategy, "cpu:1")
    assert facts["comm"] is None or facts["comm"]["sent_bytes_per_step"] == [0]
