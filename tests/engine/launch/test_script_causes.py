"""Scripts of two ranks that really fail: the cause names each side with its line."""

from __future__ import annotations

from pathlib import Path

from rankdeck.base.errors import Problem
from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.scripts import launch_script, wait_for_script_end

_HEAD = """
import os, sys, warnings
import torch, torch.distributed as dist
from torch import nn
def step(rank, optimizer, net):
    optimizer.zero_grad()
    net(torch.ones(2, 1024)).sum().backward()
    parts = [torch.empty(1, 1024) for _ in range(2)]
    dist.all_gather(parts, net.weight.grad)  # each step
    optimizer.step()
def train(rank):
    net = nn.Linear(1024, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(6):
        step(rank, optimizer, net)
        after_step(rank, number)
"""
_GROUP = """
dist.init_process_group("gloo")
train(dist.get_rank())
"""


def _line(source: str, text: str) -> str:
    """The place of a line of the script, as a message names it."""
    return f"train.py, line {next(n for n, line in enumerate(source.splitlines(), 1) if text in line)}"


def _cause(run: RunDir) -> Problem:
    assert wait_for_script_end(run)[0].outcome == "failed"
    (problem,) = launching.read_problems(run)
    return problem


def test_both_sides_of_a_mismatch_have_their_lines(tmp_path: Path) -> None:
    """gloo aborts the rank that gets more bytes than it expects; the other loses its connection."""
    source = (
        _HEAD
        + """
def after_step(rank, number):
    if rank == 0 and number == 2:
        dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1))  # alone
"""
        + _GROUP
    )
    problem = _cause(launch_script(tmp_path, source, observe="light", ranks=2))
    assert problem.code == "collectives-differ", problem
    alone, together = problem.message.split("rank 1 in ")
    assert "rank 0 in after_step (" in alone and "in a call to all_gather" in alone
    assert _line(source, "# alone") in alone and _line(source, "# each step") in together
    assert "run both lines on every rank" in (problem.advice or "")


def test_a_rank_that_left_is_reported_with_the_waiting_line(tmp_path: Path) -> None:
    source = (
        _HEAD
        + """
def after_step(rank, number):
    if rank == 1 and number == 2:
        warnings.warn("an unrelated warning")
        os._exit(0)
"""
        + _GROUP
    )
    problem = _cause(launch_script(tmp_path, source, observe="light", ranks=2))
    assert (problem.code, problem.rank) == ("rank-left", 1)
    assert "rank 0 was still waiting for it" in problem.message
    assert _line(source, "# each step") in problem.message
    assert "unrelated" not in "".join(item.text for item in problem.evidence)
    (evidence,) = problem.evidence
    assert evidence.path == "logs/rank-0.0.err" and evidence.line is not None
    assert "all_reduce" in (problem.advice or "")


def test_the_failing_rank_of_an_own_spawn_is_named(tmp_path: Path) -> None:
    source = (
        _HEAD
        + """
def after_step(rank, number):
    if rank == 1 and number == 2:
        raise ValueError("bad record 17")  # raised
def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    train(rank)
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(os.getcwd(),), nprocs=2)
"""
    )
    problem = _cause(launch_script(tmp_path, source, observe="light", plain=True))
    assert problem.message.startswith("rank 1 raised ValueError: bad record 17 (")
    assert _line(source, "# raised") in problem.message
