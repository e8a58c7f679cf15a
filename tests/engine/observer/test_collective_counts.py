"""A rank that leaves out or adds a collective is reported with its step; a rank that is only ahead is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings import FindingTracker, collective_calls
from rankdeck.diagnose.findings.rule_context import RuleContext
from rankdeck.run.run_state import read_run_state
from tests.helpers.observed_process import ObservedProcess, observe_scripts
from tests.helpers.written_script import WrittenScript

_SCRIPT = """
import os, threading, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
child = os.fork()
rank = 0 if child else 1
os.environ.update(RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
alone = [dist.new_group([0]), dist.new_group([1])][rank]
both = dist.new_group([0, 1])
other = torch.ones(4)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
def average(group=None):
    dist.all_reduce(net.weight.grad, group=group)
for step in range(1, 31):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    {before}
    optimizer.step()
    {after}
{end}
dist.barrier()
dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
_TWICE = "[average() for _ in range(1 + (rank == {rank} and step == {step}))]"
_FAULTS: dict[str, tuple[str, str, str, str]] = {
    "left out": (
        "if not (rank == 1 and step == 12): average()", "", "if rank == 1: average()",
        "On rank 1, a call of all_reduce is missing in step 12 (0 instead of 1).",
    ),
    "left out on rank 0": (
        "if not (rank == 0 and step == 9): average()", "", "if rank == 0: average()",
        "On rank 0, a call of all_reduce is missing in step 9 (0 instead of 1).",
    ),
    "added": (
        _TWICE.format(rank=1, step=14), "", "if rank == 0: average()",
        "On rank 1, there is an additional call of all_reduce in step 14 (2 instead of 1).",
    ),
    "by another line": (
        "average(); average()", "if rank == 0 or step != 12: average()", "if rank == 1: average()",
        "On rank 1, a call of all_reduce is missing in step 13 (2 instead of 3).",
    ),
}  # fmt: skip
_HEALTHY: dict[str, tuple[str, str, str]] = {
    "every step": ("average()", "", ""),
    "every fifth step": ("average()", "if step % 5 == 0: dist.broadcast(net.weight.data, 0)", ""),
    "other lines": (
        "average()",
        "if rank == 0: dist.broadcast(net.weight.data, 0)\n    else: dist.broadcast(net.weight, 0)",
        "",
    ),
    "before and after a step": (
        "rank == 0 or step % 7 or average()", "rank == 1 or step % 7 or average()", "",
    ),
    "more steps between two": (
        "step % (5 + rank) or average()", "", "rank == 0 or average()",
    ),
    "groups of its own": ("average(); rank or step != 7 or average(alone)", "average(both)", ""),
    "one point to another": (
        "average()", "dist.send(net.weight.data, 1) if rank == 0 else dist.recv(net.weight.data, 0)", "",
    ),
    "in another thread": (
        "average(both)",
        "def many(): [dist.all_reduce(other) for _ in range(2 - rank)]\n"
        "    if step == 25: t = threading.Thread(target=many)\n"
        "    if step == 25: t.start(); time.sleep(0.3)",
        "t.join(5); rank and dist.all_reduce(other); t.join()",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    cases = {name: parts[:3] for name, parts in {**_FAULTS, **_HEALTHY}.items()}
    scripts = {
        name.replace(" ", "_"): _SCRIPT.format(before=before, after=after, end=end)
        for name, (before, after, end) in cases.items()
    }
    return observe_scripts(scripts, tmp_path_factory.mktemp("calls"))


def _find(processes: dict[str, ObservedProcess], name: str, folder: Path) -> list[Problem]:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0 and process.run is not None, process.stderr
    assert [process.disabled_parts(rank) for rank in (0, 1)] == [{}, {}]
    run = WrittenScript(folder)
    run.start_script(2)
    for file in (process.run / "events").glob("rank-*.jsonl"):
        shutil.copy(file, run.dir.events_folder)
    state = read_run_state(run.dir, curves=True)
    return FindingTracker(collective_calls.RULES).check(RuleContext(state, is_over=True))


@pytest.mark.parametrize("name", _FAULTS)
def test_a_call_too_many_or_too_few_is_reported(
    processes: dict[str, ObservedProcess], tmp_path: Path, name: str
) -> None:
    [problem] = _find(processes, name, tmp_path)
    assert problem.message.startswith(_FAULTS[name][3]), problem.message
    assert any(item.line and "script" not in item.text for item in problem.evidence), problem.evidence


@pytest.mark.parametrize("name", _HEALTHY)
def test_ranks_that_make_the_same_calls_are_not_reported(
    processes: dict[str, ObservedProcess], tmp_path: Path, name: str
) -> None:
    assert not _find(processes, name, tmp_path)
