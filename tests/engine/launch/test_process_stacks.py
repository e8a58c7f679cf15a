"""`rankdeck stacks` answers from the first second of a script, for its ranks, loader workers and children."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdeck.diagnose.child_processes import CHILD, LOADER_WORKER
from rankdeck.diagnose.hang import PHASE_WARNING_S
from rankdeck.launch.control import request_stop
from rankdeck.launch.stacks import ChildStack, RankStack, read_all_stacks
from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.script_python import can_import
from tests.helpers.scripts import launch_script, log, wait_for_script_end
from tests.helpers.waiting import wait_until

_SLEEPS = """
import time
def prepare():
    print("there", flush=True)
    time.sleep(1000)
prepare()
"""
_CHILDREN = """
import multiprocessing, subprocess, sys, threading, time
lock = threading.Lock()
def work():
    with lock: pass
def compute():
    time.sleep(1000)
if __name__ == "__main__":
    lock.acquire()
    subprocess.Popen([sys.executable, "plain.py"])
    context = multiprocessing.get_context("spawn")
    children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
    children.append(context.Process(target=compute))
    for child in children: child.start()
    for child in children: child.join()
"""
_LOADER = """
import threading, torch
from torch.utils.data import DataLoader
lock = threading.Lock()
lock.acquire()
def pack(rows):
    with lock: return rows
for rows in DataLoader(range(64), batch_size=4, num_workers=2, collate_fn=pack):
    pass
"""
_JOINS = """
import os, time, torch
import torch.distributed as dist
def late():
    time.sleep(1000)
if os.environ["RANK"] == "1": late()
dist.init_process_group("gloo")
"""
_TRAINS = """
import torch
from torch.utils.data import DataLoader
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], 0.01)
for epoch in range(2):
    for rows in DataLoader(torch.ones(8, 3), batch_size=4, num_workers=2):
        optimizer.zero_grad(); (weight * rows).sum().backward(); optimizer.step()
"""
_OWN_HANDLER = """
import faulthandler, signal, time
signal.signal(signal.SIGRTMAX - 1, lambda *_: print("mine", flush=True))
import torch
def prepare():
    print("there", flush=True)
    while True: time.sleep(0.1)
prepare()
"""
_LAUNCHES = """
import os, subprocess, sys
def launch():
    ranks = [dict(os.environ, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    children = [subprocess.Popen([sys.executable, "plain.py"], env=environment) for environment in ranks]
    for child in children: child.wait()
launch()
"""
_OLD_C_LIBRARY = """
import os, sys, time
del os.memfd_create
sys.modules["_rankdeck_observer.early_stacks"].current.register()
print("there", flush=True)
def prepare(): time.sleep(1000)
prepare()
"""
_TOKENIZES = """
import os
os.environ["TOKENIZERS_PARALLELISM"] = "true"
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
texts = [f"row {i} has {i * 7 % 13}" for i in range(512)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=120, show_progress=False))
tokenizer.encode_batch(texts)
def pack(rows):
    return [encoded.ids for encoded in tokenizer.encode_batch(list(rows))]
for rows in DataLoader(texts, batch_size=16, num_workers=1, collate_fn=pack):
    pass
"""


def _ask(
    run: RunDir, condition: Callable[[list[RankStack], list[ChildStack]], object], what: str
) -> tuple[list[RankStack], list[ChildStack]]:
    def ask() -> tuple[list[RankStack], list[ChildStack]] | None:
        ranks, children = read_all_stacks(run)
        return (ranks, children) if condition(ranks, children) else None

    answer = wait_until(ask, deadline_s=30, what=what)
    assert answer is not None
    return answer


def _is_in(stack: RankStack | ChildStack, function: str) -> bool:
    return any(frame.function == function for frame in stack.report.frames)


def _stop(run: RunDir) -> None:
    request_stop(run, now=True)
    assert launching.wait_for_exit_record(run).outcome == "stopped"
    launching.wait_until_gone(run)


def _logs(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.logs_folder.iterdir())


def test_a_script_that_imports_nothing_answers_from_its_start(tmp_path: Path) -> None:
    run = launch_script(tmp_path / "job", _SLEEPS, observe="light")
    lines = [("prepare", 5), ("<module>", 6)]

    def is_asleep(ranks: list[RankStack], _: list[ChildStack]) -> bool:
        return [[(frame.function, frame.line) for frame in rank.report.frames] for rank in ranks] == [lines]

    (rank,), children = _ask(run, is_asleep, "the stack")
    assert (rank.rank, rank.skip_reason, children) == (0, None, [])
    text = rankdeck_in_process("stacks", run.path, exit_code=0).out
    assert text.startswith(f"rank 0 ({rank.pid}): prepare (") and "train.py, line 5)" in text
    _stop(run)
    assert _logs(run) == ["rank-0.0.err", "rank-0.0.out", "supervisor.0.err"]
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["runs", "train.py"]


def test_children_are_listed_below_their_rank(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import time\ndef idles(): time.sleep(1000)\nidles()\n")
    run = launch_script(tmp_path, _CHILDREN, observe="light")

    def is_complete(_: list[RankStack], children: list[ChildStack]) -> bool:
        functions = [
            function
            for function in ("work", "idles", "compute")
            for stack in children
            if _is_in(stack, function)
        ]
        return functions == ["work", "work", "idles", "compute"]

    (rank,), children = _ask(run, is_complete, "the stacks of four children")
    assert _is_in(rank, "join")
    # multiprocessing's resource tracker is none of the script's processes.
    assert [(stack.process.rank, stack.process.role) for stack in children] == [(0, CHILD)] * 4
    waits = [stack.process.waits_since_fork for stack in children if _is_in(stack, "work")]
    assert waits == [True, True]
    assert not any(stack.process.waits_since_fork for stack in children if not _is_in(stack, "work"))
    lines = rankdeck_in_process("stacks", run.path, exit_code=0).out.splitlines()
    (locked,) = [line for line in lines if line.startswith("rank 0, child processes (")]
    assert ": work (" in locked and locked.endswith("train.py, line 5): with lock: pass")
    assert sum(line.startswith("rank 0, child process (") for line in lines) == 2
    result: dict[str, Any] = json.loads(rankdeck_in_process("stacks", run.path, "--json", exit_code=0).out)
    assert [entry["rank"] for entry in result["ranks"]] == [0] and len(result["processes"]) == 4
    assert result["processes"][0].keys() == {"rank", "pid", "role", "number", "why", "frames", "text"}
    _stop(run)
    assert _logs(run) == ["rank-0.0.err", "rank-0.0.out", "supervisor.0.err"]


def test_ranks_that_wait_to_join_answer(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _JOINS, observe="light", ranks=2)

    def is_there(ranks: list[RankStack], _: list[ChildStack]) -> bool:
        return len(ranks) == 2 and _is_in(ranks[0], "init_process_group") and _is_in(ranks[1], "late")

    ranks, children = _ask(run, is_there, "the stacks of both ranks")
    assert [rank.rank for rank in ranks] == [0, 1] and not children
    _stop(run)


def test_the_processes_of_a_launcher_are_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import time\ndef idles(): time.sleep(1000)\nidles()\n")
    run = launch_script(tmp_path, _LAUNCHES, observe="light")
    ranks, children = _ask(
        run, lambda ranks, _: [_is_in(rank, "idles") for rank in ranks] == [True] * 2, "both ranks"
    )
    assert [rank.rank for rank in ranks] == [0, 1]
    assert [(child.process.rank, _is_in(child, "launch")) for child in children] == [(None, True)]
    output = rankdeck_in_process("stacks", run.path, exit_code=0).out
    assert f"\nprocess ({children[0].process.pid}): launch (" in output
    _stop(run)


def test_a_python_of_an_old_c_library_answers_too(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _OLD_C_LIBRARY, observe="light")
    wait_until(lambda: log(run) == b"there\n", what="the start")
    _ask(run, lambda ranks, _: ranks and _is_in(ranks[0], "prepare"), "the stack")
    _stop(run)


def test_a_scripts_own_handler_is_not_called(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _OWN_HANDLER, observe="light")
    wait_until(lambda: log(run) == b"there\n", deadline_s=60, what="the start")
    for _ in range(3):
        (rank,), _ = read_all_stacks(run)
        assert _is_in(rank, "prepare")
    _stop(run)
    assert log(run) == b"there\n"


def test_a_run_with_workers_leaves_only_its_documented_files(tmp_path: Path) -> None:
    run = launch_script(tmp_path / "job", _TRAINS, observe="light")
    assert wait_for_script_end(run) == (run.exit_record(), 0)
    assert _logs(run) == ["rank-0.0.err", "rank-0.0.out", "supervisor.0.err"]
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["runs", "train.py"]


@pytest.mark.slow
def test_a_loader_worker_in_a_lock_is_named_in_the_warning(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _LOADER, observe="light")
    (rank,), workers = _ask(
        run, lambda _, children: [_is_in(child, "pack") for child in children] == [True] * 2, "both workers"
    )
    assert _is_in(rank, "_next_data")
    assert [(worker.process.role, worker.process.number) for worker in workers] == [
        (LOADER_WORKER, 0),
        (LOADER_WORKER, 1),
    ]
    pids = ", ".join(str(worker.process.pid) for worker in workers)
    output = rankdeck_in_process("stacks", run.path, exit_code=0).out
    assert f"rank 0, loader workers 0, 1 ({pids}): pack (" in output
    (problem,) = wait_until(
        lambda: launching.read_problems(run, "warning"), deadline_s=PHASE_WARNING_S + 20, what="a warning"
    )
    assert problem.code == "hang-suspected" and 'it is in "loading data"' in problem.message
    assert "It is waiting for 2 loader workers, which are waiting for a lock in pack (" in problem.message
    assert "train.py, line 7): with lock: return rows" in problem.message
    assert 'multiprocessing_context="spawn" or num_workers=0' in (problem.advice or "")
    _stop(run)


@pytest.mark.slow
@pytest.mark.skipif(not can_import("tokenizers"), reason="the scripts' Python has no tokenizers")
def test_a_tokenizer_used_before_the_fork_is_named_with_its_fix(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _TOKENIZES, observe="light")
    (problem,) = wait_until(
        lambda: launching.read_problems(run, "warning"), deadline_s=PHASE_WARNING_S + 40, what="a warning"
    )
    assert "It is waiting for 1 loader worker, which is waiting for a lock in pack (" in problem.message
    assert "tokenizer.encode_batch(list(rows))" in problem.message
    assert "Set TOKENIZERS_PARALLELISM=false" in (problem.advice or "")
    _stop(run)
