"""How a loader divides its samples is observed for torch's samplers, Accelerate's and Lightning's."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_SCRIPT = """
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset
torch.manual_seed(0)
class BatchSamplerShard(BatchSampler):
    def __init__(self, batch_sampler, num_processes, process_index):
        self.batch_sampler = batch_sampler
        self.num_processes, self.process_index = num_processes, process_index
        self.batch_size, self.drop_last = batch_sampler.batch_size, batch_sampler.drop_last
    def __len__(self):
        return len(self.batch_sampler) // self.num_processes
    def __iter__(self):
        for number, batch in enumerate(self.batch_sampler):
            if number % self.num_processes == self.process_index:
                yield batch
class UnrepeatedDistributedSampler(DistributedSampler):
    pass
data = TensorDataset(torch.randn(192, 8), torch.randn(192, 1))
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
loader = DataLoader(data, {options})
for a, b in loader:
    optimizer.zero_grad(); nn.functional.mse_loss(net(a), b).backward(); optimizer.step()
print(len(loader))
"""
_SAMPLER_FACTS: dict[str, tuple[str, dict[str, object]]] = {
    "no sampler": ("8", {"class": "torch.utils.data.sampler:SequentialSampler"}),
    "a shuffled loader": ("8, shuffle=True", {"class": "torch.utils.data.sampler:RandomSampler"}),
    "a distributed sampler": (
        "8, sampler=DistributedSampler(data, 4, 3, seed=5)",
        {
            "class": "torch.utils.data.distributed:DistributedSampler", "num_replicas": 4, "rank": 3,
            "shuffle": True, "seed": 5,
        },
    ),
    "a sampler of Accelerate": (
        "batch_sampler=BatchSamplerShard(BatchSampler(RandomSampler(data), 8, False), 2, 1)",
        {"class": "script:BatchSamplerShard", "num_replicas": 2, "rank": 1},
    ),
    "a sampler of Lightning": (
        "8, sampler=UnrepeatedDistributedSampler(data, 2, 0, shuffle=False)",
        {
            "class": "script:UnrepeatedDistributedSampler", "num_replicas": 2, "rank": 0, "shuffle": False,
            "seed": 0,
        },
    ),
    "a list of indices": ("8, sampler=list(range(96))", {"class": "builtins:list"}),
    "a loader without batches": (
        "None, sampler=BatchSampler(RandomSampler(data), 8, False)",
        {"class": "torch.utils.data.sampler:RandomSampler"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {
        name.replace(" ", "_"): _SCRIPT.replace("{options}", options)
        for name, (options, _) in _SAMPLER_FACTS.items()
    }
    return observe_scripts(scripts, tmp_path_factory.mktemp("samplers"))


@pytest.mark.parametrize("name", _SAMPLER_FACTS)
def test_samplers_and_epoch_lengths_are_observed(processes: dict[str, ObservedProcess], name: str) -> None:
    process, expected = processes[name.replace(" ", "_")], _SAMPLER_FACTS[name][1]
    assert process.status == 0, process.stderr
    observed = process.last_observed(0)
    own_class = str(expected["class"]).replace("script:", "__main__:")
    assert observed.sampler == {**expected, "class": own_class}
    assert observed.epoch_batches == int(process.stdout)
    assert process.disabled_parts() == {} and process.events_of_type(events.Anomaly) == []
