"""`--observe check`: what light observation examines in a few steps only is examined at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_script, observe_scripts

_LATE = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(8, 1)
x = torch.randn(32, 8)
y = x[:, :1]
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for step in range(200):
    {clear}
    loss = nn.functional.mse_loss(net(x), y)
    {backward}
    optimizer.step()
"""
_CLEAR = "optimizer.zero_grad()"
_BACKWARD = "loss.backward()"
_SCRIPTS = {
    "uncleared": _LATE.format(clear="if step < 150: optimizer.zero_grad()", backward=_BACKWARD),
    "undivided": _LATE.format(
        clear=_CLEAR,
        backward="loss.backward(retain_graph=step >= 150)\n    if step >= 150: loss.backward()",
    ),
    "right": _LATE.format(clear=_CLEAR, backward=_BACKWARD),
}
_FOUND = {"uncleared": "gradients-not-cleared", "undivided": "accumulation-not-divided"}
_DIGESTS = """
import os, sys
import torch
import torch.distributed as dist
os.environ["WORLD_SIZE"] = "2"
os.environ["RANK"] = "0" if os.fork() else "1"
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/meeting", rank=rank, world_size=2)
torch.manual_seed(0)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
for _ in range(40):
    optimizer.zero_grad()
    ddp(torch.ones(4, 8)).sum().backward()
    optimizer.step()
dist.barrier()
if rank == 0:
    os.wait()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], ObservedProcess]:
    observed = {}
    for level in ("light", "check"):
        folder = tmp_path_factory.mktemp(level)
        for name, process in observe_scripts(_SCRIPTS, folder, RANKDECK_OBSERVE=level).items():
            assert process.status == 0, process.stderr
            observed[level, name] = process
    return observed


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_late_fault_is_found_with_every_check(
    processes: dict[tuple[str, str], ObservedProcess], name: str
) -> None:
    def codes(level: str) -> set[str]:
        return {event.code for event in processes[level, name].events_of_type(events.Anomaly)}

    assert codes("light") == set()
    assert codes("check") == ({_FOUND[name]} if name in _FOUND else set())


def test_every_step_is_sampled(processes: dict[tuple[str, str], ObservedProcess]) -> None:
    light, every = (processes[level, "right"] for level in ("light", "check"))
    # Operations of two steps each are tracked after steps 3 and 30; nothing else is computed in those.
    assert sum(norm is None for norm in every.steps(0, "grad_norm")) <= 8
    assert sum(norm is None for norm in light.steps(0, "grad_norm")) > 100
    assert every.disabled_parts() == light.disabled_parts() == {}


@pytest.mark.parametrize("level", ["light", "check"])
def test_digests_of_weights_are_taken_at_every_step(tmp_path: Path, level: str) -> None:
    process = observe_script(_DIGESTS, tmp_path, level=level)
    assert process.status == 0, process.stderr
    steps = {event.step for event in process.events_of_type(events.WeightDigests, 1) if event.digests}
    # An optimizer leads from its second step on; after steps 3 and 30, two steps are tracked.
    every_step = {0, *range(2, 41)} - {4, 5, 31, 32}
    assert steps >= every_step if level == "check" else steps == {0, 2, 4, 8, 16, 32}
