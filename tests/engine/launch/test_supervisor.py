"""What the supervisor gives its ranks, and what it says when one of them fails."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankdeck import events
from rankdeck.cli.staying import last_words
from rankdeck.cli.summary import print_report, runs_table
from rankdeck.diagnose.stacks import parse_stack
from rankdeck.launch.control import request_stop
from rankdeck.launch.under_guard import start_guard
from rankdeck.observer import title
from rankdeck.run.row import read_info, row_of
from rankdeck.run.summarising import summarise
from rankdeck.rundir import End, RunDir, create
from tests.helpers import launching
from tests.helpers.launching import FAKE_WORKER, launch, supervisor_pid, wait_for_ranks, within_grace
from tests.helpers.processes import processes_of_run
from tests.helpers.waiting import wait_until


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEPS", "5")


def ps(pid: int) -> tuple[int, str, str]:
    """(pid, comm, arguments) as `ps` shows them."""
    told = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().rstrip()
    return pid, Path(f"/proc/{pid}/comm").read_text().rstrip("\n"), told


def facts(run: RunDir, rank: int) -> dict[str, Any]:
    """What a fake rank found when it began."""
    found: dict[str, Any] = json.loads((run.logs_folder / f"rank-{rank}.0.out").read_text(encoding="utf-8"))
    return found


def supervisors_own(run: RunDir) -> list[events.AnyEvent]:
    return [event for writer, event in launching.all_events(run) if writer == "supervisor"]


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, End]:
    """A run of a few steps that nothing befalls, and its last word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_STEPS", "5")
        patch.delenv("OMP_NUM_THREADS")
        run = launch(tmp_path_factory.mktemp("works") / "runs")
        return run, launching.ended(run)


def test_a_run_that_works_is_told_from_start_to_end(works: tuple[RunDir, End]) -> None:
    run, end = works
    assert (end.outcome, end.exit_code, end.reason) == ("completed", 0, None)
    told = supervisors_own(run)
    assert isinstance(told[0], events.RunStarted) and isinstance(told[-1], events.RunEnded)
    assert (told[0].world_size, told[0].steps, told[0].strategy, told[0].attempt) == (2, 50, "ddp", 0)
    assert [device.name for device in told[0].devices] == ["Virtual 0", "Virtual 1"]
    assert (told[-1].outcome, told[-1].exit_code) == ("completed", 0)
    assert [event.phase for event in told if isinstance(event, events.Phase) and event.rank == 1] == [
        "starting",
        "preparing data",
    ]
    assert not launching.problems(run) and not launching.problems(run, "warning")
    assert sorted(path.name for path in run.logs_folder.iterdir()) == [
        "rank-0.0.err",
        "rank-0.0.out",
        "rank-1.0.err",
        "rank-1.0.out",
        "supervisor.0.err",
    ]


def test_ranks_find_what_torch_and_the_worker_look_for(works: tuple[RunDir, End]) -> None:
    run, _ = works
    cores = len(os.sched_getaffinity(0))
    for rank in (0, 1):
        found = facts(run, rank)
        assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == (str(rank), "2", str(rank))
        assert found["MASTER_ADDR"] == "127.0.0.1"
        assert found["OMP_NUM_THREADS"] == str(max(1, cores // 2))
        assert found["parent"] == int(found["RANKDECK_SUPERVISOR_PID"])
        assert found["own_session"] and not found["has_checkout_on_path"]
        assert found["main"] == str(FAKE_WORKER)
        # Neither the supervisor's pipes nor another rank's.
        names = {Path(path).name for path in found["open_files"]}
        assert not [name for name in names if name.startswith("supervisor.0.jsonl")]
        assert not [path for path in found["open_files"] if "pipe:" in path]


_WRITES_WHAT_IS_IMPORTED = """
import sys
from pathlib import Path
from torch import nn

class Model(nn.Linear):
    def forward(self, images):
        Path(__file__).with_name("imported").write_text(" ".join(sys.modules))
        return super().forward(images.flatten(1))

def make():
    return Model(64, 10)
"""


def test_ranks_of_ddp_import_neither_torchs_compiler_nor_its_dtensors(tmp_path: Path) -> None:
    """Both take longer than torch itself. The run is checked first, which imports no more."""
    (tmp_path / "own.py").write_text(_WRITES_WHAT_IS_IMPORTED)
    run = launch(tmp_path / "runs", {"model": {"use": "own:make"}, "train": {"steps": 3}}, worker=None)
    assert launching.ended(run).outcome == "completed"
    imported = (tmp_path / "imported").read_text().split()
    assert "rankdeck.training.verify.check" in imported and "torch" in imported
    assert not {"torch._dynamo.eval_frame", "sympy", "torch.distributed.tensor"}.intersection(imported)


def test_one_rank_drives_all_devices_of_dp_with_the_threads_that_the_person_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run = launch(tmp_path / "runs", {"strategy": {"use": "dp"}, "devices": {"use": "cpu:4"}})
    launching.ended(run)
    started = supervisors_own(run)[0]
    assert isinstance(started, events.RunStarted) and started.world_size == 1 and len(started.devices) == 4
    assert (facts(run, 0)["WORLD_SIZE"], facts(run, 0)["OMP_NUM_THREADS"]) == ("1", "3")


def test_ranks_on_gpus_start_afresh_and_see_the_chosen_ones_only(tmp_path: Path) -> None:
    uuids = ["GPU-aaaa", "GPU-bbbb"]
    infos = [events.DeviceInfo(index, "A GPU", "gpu", uuid) for index, uuid in enumerate(uuids)]
    hidden = create(
        tmp_path / "runs", launching.small_config(tmp_path), {"devices": msgspec.to_builtins(infos)}
    )
    run = start_guard(hidden, [], worker=str(FAKE_WORKER), detach=True)
    assert launching.ended(run).outcome == "completed"
    for rank in (0, 1):
        found = facts(run, rank)
        assert found["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-bbbb"
        assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert not found["has_torch"] and found["own_session"] and not found["has_checkout_on_path"]
        assert found["parent"] == int(found["RANKDECK_SUPERVISOR_PID"])


def test_an_exception_is_told_once_and_victims_are_not_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "raising")
    run = launch(tmp_path / "runs", {"devices": {"use": "cpu:4"}})
    end = launching.ended(run)
    assert (end.outcome, end.exit_code) == ("failed", 1)
    (problem,) = launching.problems(run)
    assert (problem.code, problem.rank) == ("rank-exception", 1)
    assert problem.message.startswith("ValueError: bad batch 17")
    assert problem.last_lines[-1] == "ValueError: bad batch 17"
    (seen,) = problem.evidence
    assert (seen.text, seen.path) == ("ValueError: bad batch 17", "logs/rank-1.0.err")
    assert seen.line and "bad batch 17" in (run.path / seen.path).read_text().splitlines()[seen.line - 1]
    assert end.reason == problem.headline()


def test_an_exit_without_a_word_is_told_with_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "exiting")
    run = launch(tmp_path / "runs")
    assert launching.ended(run).exit_code == 1
    (problem,) = launching.problems(run)
    assert (problem.code, problem.rank) == ("rank-exited", 1)
    assert "the last thing that I say" in problem.message


def test_a_rank_that_leaves_before_its_work_is_done_has_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its exit status says."""
    monkeypatch.setenv("FAKE_WORKER", "leaving")
    run = launch(tmp_path / "runs")
    assert launching.ended(run).exit_code == 1
    (problem,) = launching.problems(run)
    assert (problem.code, problem.rank) == ("rank-exited", 1) and "left in step 3" in problem.message
    assert problem.last_lines[-1] == "the last thing that I say"


SWALLOWS = """
import os, signal, sys, time

class Swallowing:
    def find_spec(self, name, *_):
        if name == "torch.distributed" and "rankdeck.launch.supervisor" in sys.orig_argv:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            except BaseException as error:
                raise RuntimeError("as an import does in a class that it is making") from error

sys.meta_path.insert(0, Swallowing())
"""


def test_a_stop_that_an_import_swallows_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(SWALLOWS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    run = launch(tmp_path / "runs", worker=None)
    assert launching.ended(run).outcome == "stopped"
    assert "as an import does" in (run.logs_folder / "supervisor.0.err").read_text()


def test_a_rank_that_has_finished_may_crash_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "crashing")
    run = launch(tmp_path / "runs")
    assert launching.ended(run).outcome == "completed" and launching.problems(run) == []


def test_what_a_rank_could_not_write_is_reported_by_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "speechless")
    run = launch(tmp_path / "runs")
    end = launching.ended(run)
    (warning,) = launching.problems(run, "warning")
    assert warning.code == "file-too-large"
    assert warning.message == (
        "File too large: 1 line of the run's events could not be written (rank 1 before its first step)."
    )
    assert (end.outcome, end.reason) == ("completed", warning.message)
    assert row_of(read_info(run))["reason"] == warning.message
    assert "completed, events lost" in str(runs_table([read_info(run)], 200))
    said = last_words(run)
    assert said.startswith("completed, events lost after") and said.endswith(warning.message)
    print_report(summarise(run))
    assert "completed, events lost" in capsys.readouterr().out


def test_warnings_of_the_start_are_told_after_the_runs_own_start(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs", {"strategy": {"use": "single"}, "devices": {"use": "cpu:3"}})
    assert launching.ended(run).outcome == "completed"
    (warning,) = launching.problems(run, "warning")
    assert warning.code == "one-device" and "2 more devices are left out" in warning.message
    started = supervisors_own(run)[0]
    assert isinstance(started, events.RunStarted) and len(started.devices) == 1


def test_data_that_cannot_be_prepared_ends_the_run_before_ranks_begin(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    tables = {"model": {"use": "gpt"}, "data": {"use": "text", "args": {"path": str(texts)}}}
    run = launch(tmp_path / "runs", tables, worker=None)
    end = launching.ended(run)
    assert (end.outcome, end.exit_code) == ("failed", 2)
    (problem,) = launching.problems(run)
    assert problem.code == "data"
    assert not (run.logs_folder / "rank-0.0.out").exists()


def test_a_living_run_is_its_processes_which_tell_where_they_stand_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STEPS", "1000000")
    run = launch(tmp_path / "runs")
    pids = wait_for_ranks(run)
    assert set(processes_of_run(run.path)) == {
        *pids.values(),
        supervisor_pid(run),
        launching.guard_pid(run),
        launching.sampler_pid(run),
    }
    name = title.told_name(str(run.path))
    told_by_ps = {pid: (comm, arguments) for pid, comm, arguments in map(ps, processes_of_run(run.path))}
    for rank in (0, 1):
        wanted = f"rank {rank}/2 {name}"
        assert told_by_ps[pids[rank]] == (wanted[:15], f"rankdeck {wanted}")
    assert told_by_ps[launching.guard_pid(run)] == (f"guard {name}"[:15], f"rankdeck guard {name}")
    for pid, who in ((supervisor_pid(run), "supervisor"), (launching.sampler_pid(run), "sampler")):
        assert pid is not None
        wait_until(lambda pid=pid, who=who: ps(pid)[1] == f"{who} {name}"[:15], what=f"the name of the {who}")
    os.kill(pids[1], signal.SIGUSR1)
    told = run.logs_folder / "rank-1.0.stacks"
    frames = wait_until(lambda: parse_stack(told.read_text(encoding="utf-8")), what="the stacks of rank 1")
    assert any("fake_worker.py" in frame.file for frame in frames)
    os.kill(pids[1], signal.SIGSTOP)  # not even a suspended rank stays
    began = time.monotonic()
    request_stop(run)
    assert launching.ended(run, 6).outcome == "stopped"
    assert time.monotonic() - began < within_grace(2)
