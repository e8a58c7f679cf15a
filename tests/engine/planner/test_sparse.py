"""Gradients of `Embedding(sparse=True)` in a plan, against the ledger of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.config import from_text
from rankdeck.planner.fake_pass import PassRequest, PassResult, fake_pass
from tests.helpers.planning import measure_peaks

OWN = """
import torch

def model(sparse=True):
    table = torch.nn.Embedding(20000, 64, sparse=sparse)
    return torch.nn.Sequential(table, torch.nn.Flatten(), torch.nn.Linear(8 * 64, 4))

def data():
    drawn = torch.randint(20000, (64, 8), generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(drawn, torch.zeros(64, dtype=torch.long)), None
"""

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    module_file = tmp_path / "own.py"
    return f"""
model = {{ use = "{module_file}:model", args = {{ sparse = SPARSE }} }}
data.use = "{module_file}:data"
devices.use = "cpu:1"
[train]
steps = 8
global_batch = 32
evaluate_every = 0
accumulate = PARTS
optimizer = OPTIMIZER
"""


def fill_config(text: str, optimizer: str, *, sparse: bool = True, accumulate: int = 1) -> str:
    chosen = text.replace("OPTIMIZER", f"{{ {optimizer}, lr = 0.01 }}").replace("PARTS", str(accumulate))
    return chosen.replace("SPARSE", str(sparse).lower())


def plan(text: str) -> PassResult:
    return fake_pass(PassRequest(from_text(text, folder=Path.cwd()), 1))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sparse_gradients_are_planned_exactly(text: str, accumulate: int) -> None:
    config = fill_config(text, 'use = "sgd"', accumulate=accumulate)
    result = plan(config)
    [device], [truth] = result.devices.values(), measure_peaks(config)
    assert device.peak_bytes == truth
    assert not result.omissions
    if accumulate == 1:
        assert device.peak_by_kind["gradients"] >= 32 * 8 * (64 * 4 + 8)
    [dense] = plan(fill_config(text, 'use = "sgd"', sparse=False, accumulate=accumulate)).devices.values()
    assert dense.peak_bytes > truth + 0.9 * 20000 * 64 * 4


def test_coalesced_gradients_give_an_upper_bound(text: str) -> None:
    config = fill_config(text, 'use = "torch.optim:Adagrad"')
    [device], [truth] = plan(config).devices.values(), measure_peaks(config)
    assert truth <= device.peak_bytes <= 1.01 * truth


def test_growing_optimizer_state_gives_a_lower_bound(text: str) -> None:
    [omission] = plan(fill_config(text, 'use = "sgd", momentum = 0.9')).omissions
    assert omission.startswith("This is a lower bound") and "grows" in omission
