"""An evaluation that adds up results of samples that DistributedSampler repeats is reported."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
held_out = TensorDataset(torch.randn({num}, 8), torch.randn({num}, 1))
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
class OwnSampler(DistributedSampler):
    def __iter__(self):
        return iter(range(self.rank, len(self.dataset), self.num_replicas))
loader = DataLoader(held_out, 4, sampler={sampler})
def train():
    for a, b in DataLoader(data, 8, sampler=DistributedSampler(data, 3, 0)):
        loss = nn.functional.mse_loss(net(a), b)
        {logged}
        optimizer.zero_grad(); loss.backward(); optimizer.step()
def total():
    result = torch.zeros(2)
    for a, b in loader:
        result += torch.tensor([nn.functional.mse_loss(net(a), b).item() * len(a), len(a)])
    return result
for epoch in range(2):
    train()
    {evaluate}
train()
dist.destroy_process_group()
"""
_PADDED = "DistributedSampler(held_out, 4, 0, shuffle=False)"
_REDUCED = "with torch.no_grad(): result = total(); dist.all_reduce(result)"


def _script(num: int = 41, sampler: str = _PADDED, logged: str = "", evaluate: str = _REDUCED) -> str:
    return _SCRIPT.format(num=num, sampler=sampler, logged=logged, evaluate=evaluate)


_GATHER = "all_predictions = [torch.zeros(2)]; dist.all_gather(all_predictions, result); "
_FAULTS = {
    "reduced": _script(),
    "gradients on while batches are fetched": _script(evaluate="result = total(); dist.all_reduce(result)"),
    "reduced to one rank": _script(
        evaluate="with torch.inference_mode(): result = total(); dist.reduce(result, 0)"
    ),
    "in the last lines": _script()
    .replace("    train()\n", "    train()\n    continue\n")
    .replace("dist.destroy", _REDUCED + "\ndist.destroy"),
}
_HEALTHY = {
    "divisible": _script(num=40),
    "few of many": _script(num=801),
    "dropped": _script(sampler="DistributedSampler(held_out, 4, 0, shuffle=False, drop_last=True)"),
    "an own order": _script(sampler="OwnSampler(held_out, 4, 0, shuffle=False)"),
    "a part per rank": _script().replace(
        "loader = DataLoader(held_out, 4, sampler=" + _PADDED,
        "loader = DataLoader(Subset(held_out, range(0, len(held_out), 4)), 4",
    ),
    "gathered": _script(
        evaluate="with torch.no_grad(): result = total(); " + _GATHER + "dist.all_reduce(result)"
    ),
    "gathered per batch": _script(evaluate="result = total(); dist.all_reduce(result)").replace(
        "        result +=", "        " + _GATHER + "\n        result +="
    ),
    "evaluated by each rank alone": _script(
        logged="dist.all_reduce(loss.detach())", evaluate="with torch.no_grad(): total()"
    ),
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    return observe_scripts({**_FAULTS, **_HEALTHY}, tmp_path_factory.mktemp("padding"))


def _reports(process: ObservedProcess) -> list[events.Anomaly]:
    assert process.status == 0, process.stderr
    assert process.disabled_parts() == {}
    return [event for event in process.events_of_type(events.Anomaly) if event.code == "evaluation-padded"]


@pytest.mark.parametrize("name", _FAULTS)
def test_samples_that_count_twice_are_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    (event,) = _reports(processes[name])
    numbers = {key: event.numbers[key] for key in ("repeated", "evaluated", "ranks")}
    assert numbers == {"repeated": 3, "evaluated": 41, "ranks": 4}
    text = _FAULTS[name].splitlines()[int(event.line.rpartition(":")[2]) - 1]
    assert "dist.all_reduce(result)" in text or "dist.reduce(" in text


@pytest.mark.parametrize("name", _HEALTHY)
def test_other_evaluations_are_not_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    assert _reports(processes[name]) == []
