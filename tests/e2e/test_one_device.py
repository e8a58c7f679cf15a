"""A strategy of many ranks on the only device that there is."""

from __future__ import annotations

import pytest

from tests.helpers.cli import rankdeck


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_strategy_of_many_ranks_trains_on_one_device(strategy: str) -> None:
    options = ("--set", "train.steps=3", "--set", "train.clip_norm=1.0", "--json")
    told = rankdeck(
        "train", "digits-mlp", "--strategy", strategy, "--devices", "cpu:1", *options, code=0
    ).json
    assert (told["outcome"], told["steps"]) == ("completed", 3)
    assert told["comm"] is None or told["comm"]["sent_bytes_per_step"] == [0]
