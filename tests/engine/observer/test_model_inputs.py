"""Batches that a script draws without a DataLoader are read from the inputs of DistributedDataParallel."""

from __future__ import annotations

import pytest

from tests.helpers.observed_process import ObservedProcess, observe_scripts

_SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Net(nn.Linear):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale
net = DistributedDataParallel(Net(8, 1))
{setup}
torch.manual_seed({seed})
optimizer = torch.optim.SGD(net.parameters(), 0.01)
fixed = torch.randn(4, 8)
for x in {batches}:
    loss = net({inputs}).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
dist.destroy_process_group()
"""
_DRAWN = "(torch.randn(4, 8) for _ in range(6))"


def _script(seed: int = 5, batches: str = _DRAWN, inputs: str = "x", setup: str = "") -> str:
    return _SCRIPT.format(seed=seed, batches=batches, inputs=inputs, setup=setup)


_SCRIPTS = {
    "drawn": _script(),
    "drawn alike": _script(setup="print()"),
    "drawn with another seed": _script(6),
    "drawn as keyword arguments": _script(inputs="x=x"),
    "after an evaluation": _script(setup="with torch.no_grad(): net(torch.ones(1, 8))"),
    "compiled": _script(setup="net = torch.compile(net, backend='eager')"),
    "a fixed batch": _script(batches="range(6)", inputs="fixed"),
    "zeros": _script(batches="(torch.zeros(4, 8) for _ in range(6))"),
    "a loader": _script(
        batches="(x for x, in DataLoader(TensorDataset(torch.randn(48, 8)), 8, shuffle=True))"
    ),
    "two steps": _script(batches="(torch.randn(4, 8) for _ in range(2))"),
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    return observe_scripts(_SCRIPTS, tmp_path_factory.mktemp("inputs"), RANKDECK_OBSERVE="check")


def _facts(process: ObservedProcess) -> tuple[str | None, dict[str, object]]:
    assert process.status == 0, process.stderr
    assert process.disabled_parts() == {}
    observed = process.last_observed(0)
    return observed.first_batches, observed.sampler


def test_drawn_batches_have_a_digest(processes: dict[str, ObservedProcess]) -> None:
    digest, sampler = _facts(processes["drawn"])
    assert digest and sampler == {"drawn": True}
    for name in ("drawn alike", "drawn as keyword arguments", "after an evaluation", "compiled"):
        assert _facts(processes[name]) == (digest, {"drawn": True}), name
    other, _ = _facts(processes["drawn with another seed"])
    assert other and other != digest


@pytest.mark.parametrize("name", ["a fixed batch", "zeros", "two steps"])
def test_other_inputs_have_no_digest(processes: dict[str, ObservedProcess], name: str) -> None:
    assert _facts(processes[name]) == (None, {})


def test_batches_of_a_loader_are_read_from_the_loader(processes: dict[str, ObservedProcess]) -> None:
    digest, sampler = _facts(processes["a loader"])
    assert digest and sampler["class"] == "torch.utils.data.sampler:RandomSampler"
