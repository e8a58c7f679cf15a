"""Layer-split model parallelism beside one device, where stages run one batch size only."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from rankdeck import events
from tests.helpers.parity import TOLERANCES
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import largest_difference

_TOML = """
model = {{ use = "tests.helpers.past_cuts:DetachedSkip" }}
data = {{ use = "digits" }}
devices = {{ use = "cpu:{num_devices}" }}
strategy = {{ use = "{strategy}" }}
[train]
steps = 2
global_batch = 16
precision = "fp64"
optimizer = {{ use = "sgd", lr = 0.1 }}
"""


def test_a_traced_model_counts_each_heldout_sample_once(tmp_path: Path) -> None:
    """The last of the held-out batches is smaller than the batch that the stages were traced for."""
    weights, held_out = [], []
    for strategy, num_devices in (("single", 1), ("model", 2)):
        out = tmp_path / strategy
        out.mkdir()
        toml = _TOML.format(strategy=strategy, num_devices=num_devices)
        train_once({"toml": toml, "out": str(out / "weights"), "events": str(out)}, rank=0, world_size=1)
        weights.append(load_file(out / "weights"))
        rank_events = events.decode_lines((out / "rank-0.0.jsonl").read_bytes())
        held_out.append([event for event in rank_events if isinstance(event, events.Evaluation)][-1])
    single, model = held_out
    assert single.samples % 16, "no short batch: the test says nothing"
    assert model.loss == pytest.approx(single.loss, rel=1e-12)
    assert (model.accuracy, model.samples) == (single.accuracy, single.samples)
    assert largest_difference(*weights) <= TOLERANCES["fp64"]
