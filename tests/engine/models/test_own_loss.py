"""A person's own loss: its count, whatever it counts, is what the sum is divided by."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck import events
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import largest_difference

_USER_CODE = """
import torch.nn.functional as F

def plain(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="sum"), len(targets)

def weighted(outputs, targets):
    total, count = plain(outputs, targets)
    return total * 1e-3, count * 1e-3

def nothing(outputs, targets):
    return outputs.sum() * 0, 0
"""
_TOML = """
folder = "{folder}"
model = {{ use = "mlp", args = {{ hidden = [8] }} }}
loss = {{ use = "own.py:{loss}" }}
train = {{ steps = 3, global_batch = 16, evaluate_every = 0, optimizer = {{ use = "sgd", lr = 0.1 }} }}
devices = {{ use = "cpu:1" }}
"""


@pytest.mark.parametrize(("loss", "is_equal"), [("weighted", True), ("total_only", False)])
def test_a_count_may_be_a_sum_of_weights_below_one(tmp_path: Path, loss: str, is_equal: bool) -> None:
    from safetensors.torch import load_file

    wrong = "\ndef total_only(outputs, targets):\n    return weighted(outputs, targets)[0], len(targets)\n"
    (tmp_path / "own.py").write_text(_USER_CODE + wrong)
    weights = []
    for name in ("plain", loss):
        out = tmp_path / f"{name}.safetensors"
        toml = _TOML.format(folder=tmp_path, loss=name)
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        weights.append(load_file(out))
    assert (largest_difference(*weights) < 1e-6) is is_equal


def test_a_heldout_loss_without_targets_is_none(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_USER_CODE)
    toml, out = _TOML.format(folder=tmp_path, loss="nothing"), tmp_path / "weights.safetensors"
    train_once({"toml": toml, "out": str(out), "events": str(tmp_path)}, rank=0, world_size=1)
    rank_events = events.decode_lines((tmp_path / "rank-0.0.jsonl").read_bytes())
    assert [event.loss for event in rank_events if isinstance(event, events.Evaluation)] == [None]
