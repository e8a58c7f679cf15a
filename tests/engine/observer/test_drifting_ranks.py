"""Ranks whose weights drift apart are reported with the cause; ranks that may differ for a while are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings import FindingTracker, drift, parameters, script_checks
from rankdeck.diagnose.findings.rule_context import RuleContext
from rankdeck.run.run_state import read_run_state
from tests.helpers.observed_process import ObservedProcess, observe_scripts
from tests.helpers.written_script import WrittenScript

_START = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
torch.manual_seed(0)
child = os.fork()
rank = 0 if child else 1
os.environ.update(RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
generator = torch.Generator().manual_seed(rank)
def batch():
    x = torch.randn(16, 8, generator=generator)
    return x, x.sum(1, keepdim=True)
def loss_of(model):
    x, y = batch()
    return nn.functional.mse_loss(model(x), y)
state = net.state_dict
def noise_like(tensor):
    return 0.01 * torch.randn(tensor.shape, generator=generator)
def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= 2
def average_flat():
    flat = torch.cat([p.grad.view(-1) for p in net.parameters()])
    average([flat])
    for p, part in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
        p.grad.copy_(part.view_as(p))
"""
_END = """
dist.barrier()
dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
_DDP = """
ddp = DDP(net)
optimizer = torch.optim.{optimizer}
for step in range(40):
    optimizer.zero_grad()
    loss_of({model}).backward()
    {before}
    optimizer.step()
    {after}
"""
_ACCUMULATED = """
ddp = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(20):
    optimizer.zero_grad()
    for micro in range(2):
        with ddp.no_sync() if {is_unsynced} else torch.enable_grad():
            (loss_of(ddp) / 2).backward()
    optimizer.step()
"""
_OWN = """
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(40):
    optimizer.zero_grad()
    loss_of(net).backward()
    {before}
    optimizer.step()
    {after}
"""
_GAN = """
critic = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
second = torch.optim.SGD(critic.parameters(), 0.01)
ddp, other = DDP(net), DDP(critic)
for step in range(40):
    optimizer.zero_grad(); loss_of(ddp).backward(); optimizer.step()
    second.zero_grad(); loss_of({critic}).backward(); second.step()
"""
_LOCAL = """
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
averager = PeriodicModelAverager(period=5)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
ddp = DDP(net)
for step in range(40):
    with ddp.no_sync():
        loss_of(ddp).backward()
    optimizer.step()
    averager.average_parameters(net.parameters())
    optimizer.zero_grad()
"""
_GRADIENTS = "p.grad for p in net.parameters()"
_SGD = "SGD(net.parameters(), 0.01)"


def _ddp(optimizer: str = _SGD, model: str = "ddp", before: str = "", after: str = "") -> str:
    return _DDP.format(optimizer=optimizer, model=model, before=before, after=after)


def _own(before: str = f"average([{_GRADIENTS}])", after: str = "") -> str:
    return _OWN.format(before=before, after=after)


_EARLY = "between steps 1 and 2"
_FAULTS: dict[str, tuple[str, str, str]] = {
    "bypassed": (_ddp(model="ddp.module"), _EARLY, "bypasses DistributedDataParallel"),
    "unsynced": (_ACCUMULATED.format(is_unsynced="micro == 1"), _EARLY, "no_sync()"),
    "other rate": (
        _ddp("SGD(net.parameters(), 0.01 * (rank + 1))"),
        _EARLY, "0.01 on rank 0, 0.02 on rank 1",
    ),
    "own, other seeds": (
        "torch.manual_seed(rank)\nnet = nn.Linear(8, 1)\n" + _own(), "before the first", "initialised",
    ),
    "loaded": (
        _ddp(after="if step == 9 and rank: net.load_state_dict({k: v * 2 for k, v in state().items()})"),
        "between steps 9 and 16", "after step 10, weights were loaded",
    ),
    "clamped": (
        _ddp(after="if rank: [p.data.clamp_(-0.1, 0.1) for p in net.parameters()]"),
        _EARLY, "outside of optimizer.step, on rank 1 only",
    ),
    "noise": (
        _ddp(after="[p.data.add_(noise_like(p)) for p in net.parameters()]"),
        _EARLY, "outside of optimizer.step, differently on each rank",
    ),
    "own, some": (
        _own("average([p.grad for p in net[:4].parameters()])"), _EARLY, "leaves out the others",
    ),
    "own, too late": (_own("", f"average([{_GRADIENTS}])"), _EARLY, "after optimizer.step"),
    "skipped": (
        _ddp().replace("    optimizer.step()", "    if not (rank and step % 10 == 5): optimizer.step()"),
        "between steps 5 and 8", "rank 1 has called optimizer.step 36 times, but rank 0 has called it 40 "
        "times",
    ),
    "skipped, two models": (
        _GAN.format(critic="other")
        .replace("backward(); optimizer.step()", "backward(); rank and step % 10 == 5 or optimizer.step()"),
        "between steps 5 and 8", "rank 1 has called optimizer.step 36 times",
    ),
    "bypassed, loaded later": (
        _ddp(
            model="ddp.module",
            after="if step == 29 and rank: net.load_state_dict({k: v * 2 for k, v in state().items()})",
        ),
        _EARLY, "bypasses DistributedDataParallel",
    ),
    "other rate, loaded everywhere": (
        _ddp(
            "SGD(net.parameters(), 0.01 * (rank + 1))",
            after="if step == 0: net.load_state_dict({k: v.clone() for k, v in state().items()})",
        ),
        _EARLY, "0.01 on rank 0, 0.02 on rank 1",
    ),
    "second model": (_GAN.format(critic="critic"), _EARLY, "bypasses DistributedDataParallel"),
}  # fmt: skip
_HEALTHY: dict[str, str] = {
    "ddp": _ddp(),
    "adam": _ddp("AdamW(net.parameters(), 1e-3, weight_decay=0.1)"),
    "accumulated": _ACCUMULATED.format(is_unsynced="micro == 0"),
    "own": _own(),
    "own, flat": _own("average_flat()"),
    "local SGD": _own("", "if step % 10 == 9: average([p.data for p in net.parameters()])"),
    "averaged weights": _own("", "average([p.data for p in net.parameters()])"),
    "periodic averager": _LOCAL,
    "soup": _own("", "if step == 39: average([p.data for p in net.parameters()])"),
    "two models": _GAN.format(critic="other"),
    "clamped everywhere": _ddp(after="[p.data.clamp_(-0.3, 0.3) for p in net.parameters()]"),
    "one model each": _own(""),
    "metrics": _ddp(after="values = torch.ones(300); dist.all_reduce(values)"),
}


def _script(text: str) -> str:
    return _START + text + _END


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    texts = {name: text for name, (text, *_) in _FAULTS.items()} | _HEALTHY
    scripts = {name.replace(" ", "_"): _script(text) for name, text in texts.items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("drift"))


def _find(
    processes: dict[str, ObservedProcess], name: str, folder: Path, *, is_over: bool = True
) -> dict[str, Problem]:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0 and process.run is not None, process.stderr
    assert process.ranks() == [0, 1]
    assert [process.disabled_parts(rank) for rank in (0, 1)] == [{}, {}]
    run = WrittenScript(folder)
    run.start_script(2)
    for file in (process.run / "events").glob("rank-*.jsonl"):
        shutil.copy(file, run.dir.events_folder)
    state = read_run_state(run.dir, curves=True)
    rules = (*drift.RULES, *parameters.RULES, *script_checks.RULES)
    return {
        problem.code: problem for problem in FindingTracker(rules).check(RuleContext(state, is_over=is_over))
    }


@pytest.mark.parametrize("name", _FAULTS)
def test_ranks_that_drift_apart_are_reported(
    processes: dict[str, ObservedProcess], tmp_path: Path, name: str
) -> None:
    _, since, cause = _FAULTS[name]
    problem = _find(processes, name, tmp_path)["ranks-drifted"]
    assert since in problem.message and cause in problem.message, problem.message


def test_numbers_of_steps_are_no_cause_while_ranks_run(
    processes: dict[str, ObservedProcess], tmp_path: Path
) -> None:
    message = _find(processes, "skipped", tmp_path, is_over=False)["ranks-drifted"].message
    assert "times" not in message


@pytest.mark.parametrize("name", _HEALTHY)
def test_ranks_that_may_differ_are_not_reported(
    processes: dict[str, ObservedProcess], tmp_path: Path, name: str
) -> None:
    found = _find(processes, name, tmp_path)
    assert not found, [problem.message for problem in found.values()]
