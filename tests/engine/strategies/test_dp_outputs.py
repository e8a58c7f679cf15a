"""What a model may return under dp: structures are gathered, objects need parallel_loss = true."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from rankdeck import events
from rankdeck.parallel.collectives.replica_threads import ReplicaError
from tests.helpers.parity import TOLERANCES
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import largest_difference

_USER_CODE = """
import dataclasses
import torch
import torch.nn.functional as F

@dataclasses.dataclass
class Scores:
    logits: torch.Tensor
    hidden: torch.Tensor
    classes: int = 10

class Graph:
    def __init__(self, logits):
        self.logits = logits

class Scoring(torch.nn.Module):
    def __init__(self, returns):
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(64, 32), torch.nn.Linear(32, 10)
        self.returns = returns

    def forward(self, inputs):
        hidden = self.enter(inputs.flatten(1)).relu()
        logits = self.leave(hidden)
        return Graph(logits) if self.returns == "graph" else Scores(logits, hidden)

def scoring(returns):
    return Scoring(returns)

def loss(outputs, targets):
    return F.cross_entropy(outputs.logits, targets, reduction="sum"), len(targets)
"""


def train_and_evaluate(
    folder: Path, strategy: str, num_devices: int, returns: str
) -> tuple[dict[str, Tensor], float]:
    """Weights, and the loss of the held-out samples."""
    (folder / "own.py").write_text(_USER_CODE)
    (out := folder / strategy.replace(" ", "")).mkdir()
    toml = f"""
folder = "{folder}"
model = {{ use = "own.py:scoring", args = {{ returns = "{returns}" }} }}
data = {{ use = "digits" }}
loss = {{ use = "own.py:loss" }}
strategy = {{ use = {strategy} }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 3
global_batch = 16
precision = "fp64"
optimizer = {{ use = "sgd", lr = 0.1 }}
"""
    train_once({"toml": toml, "out": str(out / "weights"), "events": str(out)}, rank=0, world_size=1)
    rank_events = events.decode_lines((out / "rank-0.0.jsonl").read_bytes())
    evaluations = [event.loss for event in rank_events if isinstance(event, events.Evaluation)]
    assert evaluations[-1] is not None
    return load_file(out / "weights"), evaluations[-1]


@pytest.mark.parametrize(
    ("strategy", "returns"),
    [
        ('"dp"', "dataclass"),
        ('"dp", parallel_loss = true', "dataclass"),
        ('"dp", parallel_loss = true', "graph"),
    ],
)
def test_outputs_of_user_classes_match_one_device(tmp_path: Path, strategy: str, returns: str) -> None:
    weights, heldout = train_and_evaluate(tmp_path, strategy, 2, returns)
    of_one, heldout_of_one = train_and_evaluate(tmp_path, '"single"', 1, returns)
    assert largest_difference(weights, of_one) <= TOLERANCES["fp64"]
    assert heldout == pytest.approx(heldout_of_one, rel=1e-10)


def test_an_unknown_output_object_is_refused_with_an_option(tmp_path: Path) -> None:
    """That option is what the third case above sets."""
    with pytest.raises(ReplicaError, match=r"The model returned output.* of class Graph") as caught:
        train_and_evaluate(tmp_path, '"dp"', 2, "graph")
    assert caught.value.problem.cure == {"strategy.parallel_loss": True}
