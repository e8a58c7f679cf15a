"""What a rank waits for below itself: busy loader workers, children, and a lock that came with a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.heartbeat import Beat
from rankdeck.diagnose.child_processes import CHILD, HELPER, LOADER_WORKER, ChildProcess, role_of
from rankdeck.diagnose.hang import HangState
from rankdeck.diagnose.script_hang import script_hang_warning
from rankdeck.diagnose.stacks import Frame, parse_stack

_STDLIB, _PACKAGES = "/usr/lib/python3.11", "/env/lib/python3.11/site-packages"
_BOOTSTRAP = Frame(f"{_STDLIB}/multiprocessing/process.py", 314, "_bootstrap")
_SPAWN = Frame(f"{_STDLIB}/multiprocessing/spawn.py", 122, "spawn_main")
_WORKER_LOOP = Frame(f"{_PACKAGES}/torch/utils/data/_utils/worker.py", 349, "_worker_loop")
_SELECT = Frame(f"{_STDLIB}/selectors.py", 415, "select")
_GET = Frame(f"{_STDLIB}/multiprocessing/queues.py", 113, "get")
_MAIN = Frame("/p/train.py", 22, "<module>")
_NEXT = Frame(f"{_PACKAGES}/torch/utils/data/dataloader.py", 725, "__next__")
_JOIN = Frame(f"{_STDLIB}/multiprocessing/process.py", 149, "join")
_LOADING, _JOINING = [_SELECT, _GET, _NEXT, _MAIN], [_JOIN, _MAIN]
_PACK = Frame("/p/train.py", 17, "pack")
_IDLE = [_SELECT, _GET, _WORKER_LOOP, _BOOTSTRAP, _MAIN]


def _worker(number: int, *frames: Frame, **fields: object) -> ChildProcess:
    stack = [*frames, _WORKER_LOOP, _BOOTSTRAP, _MAIN]
    return ChildProcess(100 + number, 0, LOADER_WORKER, number, stack, **fields)  # type: ignore[arg-type]


def _warn(frames: list[Frame], *children: ChildProcess) -> tuple[str, str]:
    beats = {0: Beat(0, "loading data", 100.0, is_step_complete=True)}
    problem = script_hang_warning(HangState(beats, {0: frames}), 161.0, "run-1", {0: children})
    assert (problem.code, problem.severity) == ("hang-suspected", "warning")
    return problem.message, problem.advice or ""


def test_the_line_of_busy_loader_workers_is_named() -> None:
    message, advice = _warn(_LOADING, _worker(0, _SELECT, _GET), _worker(1, _PACK), _worker(2, _PACK))
    assert 'it is in "loading data", in <module> (/p/train.py, line 22)' in message
    assert message.endswith("It is waiting for 2 loader workers, which are in pack (/p/train.py, line 17).")
    assert "fork" not in advice and advice.startswith("Rankdeck does not stop scripts that hang.")


def test_a_lock_after_a_fork_comes_with_its_fix() -> None:
    message, advice = _warn(
        _LOADING, _worker(0, _PACK), _worker(1, _PACK, is_locked=True, packages=["tokenizers"])
    )
    assert message.endswith(
        "It is waiting for 1 loader worker, which is waiting for a lock in pack (/p/train.py, line 17)."
    )
    assert "Set TOKENIZERS_PARALLELISM=false before the script uses its tokenizer" in advice
    assert 'multiprocessing_context="spawn" or num_workers=0' in advice and "rankdeck stop run-1" in advice
    _, advice = _warn(_LOADING, _worker(0, _PACK, is_locked=True))
    assert advice.startswith("A forked process inherits locks") and "TOKENIZERS" not in advice


def test_a_lock_that_the_line_takes_is_not_the_tokenizers(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text("def read():\n    with lock:\n        pass\n")
    locked = _worker(0, Frame(str(file), 2, "read"), is_locked=True, packages=["tokenizers"])
    message, advice = _warn(_LOADING, locked)
    assert message.endswith(f"a lock in read ({file}, line 2): with lock:.")
    assert "TOKENIZERS" not in advice and 'multiprocessing_context="spawn"' in advice


@pytest.mark.parametrize(
    "worker",
    [
        _worker(0, _SELECT, _GET, is_locked=True),
        _worker(0, Frame(f"{_STDLIB}/threading.py", 327, "wait"), _PACK, is_locked=True),
        ChildProcess(1, 0, LOADER_WORKER, 0, [_PACK, _WORKER_LOOP, _BOOTSTRAP, _SPAWN], is_locked=True),
        _worker(0, _PACK),
    ],
    ids=["idle", "waits for its own thread", "spawned", "computes"],
)
def test_no_fork_is_blamed_without_a_sign_of_it(worker: ChildProcess) -> None:
    assert not worker.waits_since_fork or worker.is_idle
    assert "fork" not in _warn(_LOADING, worker)[1]


def test_idle_workers_and_other_children_explain_no_wait() -> None:
    idle = ChildProcess(1, 0, LOADER_WORKER, 0, _IDLE)
    child = ChildProcess(2, 0, CHILD, 0, [_PACK, _BOOTSTRAP, _MAIN])
    assert idle.is_idle and idle.location() == "waiting for work"
    assert "It waits" not in _warn(_LOADING, idle, child)[0]
    assert "It waits" not in _warn([_PACK, _MAIN], idle, child)[0], "the rank itself is busy"
    assert _warn(_JOINING, idle, child)[0].endswith(
        "It is waiting for 1 child process, which is in pack (/p/train.py, line 17)."
    )
    locked = ChildProcess(2, 0, CHILD, 0, child.frames, is_locked=True)
    assert 'multiprocessing.get_context("spawn")' in _warn(_JOINING, locked)[1]


def test_an_idle_process_of_a_pool_is_told_from_one_at_work() -> None:
    worker = Frame(f"{_STDLIB}/multiprocessing/pool.py", 114, "worker")
    mapstar = Frame(f"{_STDLIB}/multiprocessing/pool.py", 48, "mapstar")
    assert ChildProcess(1, 0, CHILD, 0, [_SELECT, _GET, worker, _BOOTSTRAP]).is_idle
    assert not ChildProcess(1, 0, CHILD, 0, [mapstar, worker, _BOOTSTRAP]).is_idle


def test_a_rank_among_several_is_named_with_its_workers() -> None:
    beats = {rank: Beat(3, "loading data", 100.0, is_step_complete=True) for rank in (0, 1)}
    wait = [Frame(f"{_PACKAGES}/torch/distributed/distributed_c10d.py", 9, "barrier"), _MAIN]
    children = {1: [_worker(0, _PACK)]}
    blamed = script_hang_warning(HangState(beats, {0: wait, 1: _LOADING}), 120.0, "run-1", children)
    assert blamed.rank == 1 and "It is waiting for 1 loader worker, which is in pack" in blamed.message
    state = HangState(beats, {0: _LOADING, 1: _LOADING})
    both = script_hang_warning(state, 120.0, "run-1", children)
    assert both.rank is None and "Rank 1: It is waiting for 1 loader worker" in both.message


_REPORT = """Current thread 0x00007f (most recent call first):
  File "{inner}", line 3 in {function}
  File "/p/train.py", line 9 in <module>
"""


@pytest.mark.parametrize(
    ("inner", "function", "role"),
    [
        (_WORKER_LOOP.file, "_worker_loop", LOADER_WORKER),
        (_BOOTSTRAP.file, "_bootstrap", CHILD),
        (f"{_STDLIB}/multiprocessing/resource_tracker.py", "main", HELPER),
        (f"{_PACKAGES}/torch/_inductor/compile_worker/subproc_pool.py", "main", HELPER),
        ("/p/mine.py", "main", CHILD),
    ],
)
def test_the_role_of_a_process_is_read_from_its_stack(inner: str, function: str, role: str) -> None:
    assert role_of(_REPORT.format(inner=inner, function=function)) == role


def test_the_import_system_is_left_out_of_stacks() -> None:
    report = _REPORT.format(inner="<frozen importlib._bootstrap>", function="_find_and_load")
    assert [frame.file for frame in parse_stack(report)] == ["/p/train.py"]
