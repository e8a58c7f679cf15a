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
from rankdeck.cli.run_result import result_lines
from rankdeck.cli.summary import print_report, runs_table
from rankdeck.diagnose.stacks import parse_stack
from rankdeck.launch.control import request_stop
from rankdeck.launch.guard_launcher import start_guard
from rankdeck.observer import process_title
from rankdeck.run.row import read_info, row_json
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import ExitRecord, RunDir, create_run_dir
from tests.helpers import launching
from tests.helpers.launching import FAKE_WORKER, launch, stop_timeout_s, supervisor_pid, wait_for_ranks
from tests.helpers.processes import processes_of_run
from tests.helpers.waiting import wait_until


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEPS", "5")


def ps_fields(pid: int) -> tuple[int, str, str]:
    """(pid, comm, arguments) as `ps_fields` shows them."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().rstrip()
    return pid, Path(f"/proc/{pid}/comm").read_text().rstrip("\n"), command


def rank_facts(run: RunDir, rank: int) -> dict[str, Any]:
    """What a fake rank found when it began."""
    facts: dict[str, Any] = json.loads((run.logs_folder / f"rank-{rank}.0.out").read_text(encoding="utf-8"))
    return facts


def supervisor_events(run: RunDir) -> list[events.AnyEvent]:
    return [event for writer, event in launching.all_events(run) if writer == "supervisor"]


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, ExitRecord]:
    """A run of a few steps that nothing befalls, and its last word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_STEPS", "5")
        patch.delenv("OMP_NUM_THREADS")
        run = launch(tmp_path_factory.mktemp("works") / "runs")
        return run, launching.wait_for_exit_record(run)


def test_a_completed_run_reports_start_and_end(works: tuple[RunDir, ExitRecord]) -> None:
    run, end = works
    assert (end.outcome, end.exit_code, end.reason) == ("completed", 0, None)
    run_events = supervisor_events(run)
    assert isinstance(run_events[0], events.RunStarted) and isinstance(run_events[-1], events.RunEnded)
    assert (run_events[0].world_size, run_events[0].steps, run_events[0].strategy, run_events[0].attempt) == (
        2,
        50,
        "ddp",
        0,
    )
    assert [device.name for device in run_events[0].devices] == ["Virtual 0", "Virtual 1"]
    assert (run_events[-1].outcome, run_events[-1].exit_code) == ("completed", 0)
    assert [event.phase for event in run_events if isinstance(event, events.Phase) and event.rank == 1] == [
        "starting",
        "preparing data",
    ]
    assert not launching.read_problems(run) and not launching.read_problems(run, "warning")
    assert sorted(path.name for path in run.logs_folder.iterdir()) == [
        "rank-0.0.err",
        "rank-0.0.out",
        "rank-1.0.err",
        "rank-1.0.out",
        "supervisor.0.err",
    ]


def test_ranks_have_the_environment_of_torch_and_the_worker(works: tuple[RunDir, ExitRecord]) -> None:
    run, _ = works
    cores = len(os.sched_getaffinity(0))
    for rank in (0, 1):
        facts = rank_facts(run, rank)
        assert (facts["RANK"], facts["WORLD_SIZE"], facts["LOCAL_RANK"]) == (str(rank), "2", str(rank))
        assert facts["MASTER_ADDR"] == "127.0.0.1"
        assert facts["OMP_NUM_THREADS"] == str(max(1, cores // 2))
        assert facts["parent"] == int(facts["RANKDECK_SUPERVISOR_PID"])
        assert facts["own_session"] and not facts["has_checkout_on_path"]
        assert facts["main"] == str(FAKE_WORKER)
        # Neither the supervisor's pipes nor another rank's.
        names = {Path(path).name for path in facts["open_files"]}
        assert not [name for name in names if name.startswith("supervisor.0.jsonl")]
        assert not [path for path in facts["open_files"] if "pipe:" in path]


_IMPORT_RECORDER = """
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


def test_ddp_ranks_do_not_import_the_compiler_or_dtensor(tmp_path: Path) -> None:
    """Both take longer than torch itself. The run is checked first, which imports no more."""
    (tmp_path / "own.py").write_text(_IMPORT_RECORDER)
    run = launch(tmp_path / "runs", {"model": {"use": "own:make"}, "train": {"steps": 3}}, worker=None)
    assert launching.wait_for_exit_record(run).outcome == "completed"
    imported = (tmp_path / "imported").read_text().split()
    assert "rankdeck.training.verify.check" in imported and "torch" in imported
    assert not {"torch._dynamo.eval_frame", "sympy", "torch.distributed.tensor"}.intersection(imported)


def test_a_dp_rank_drives_all_devices_with_the_configured_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run = launch(tmp_path / "runs", {"strategy": {"use": "dp"}, "devices": {"use": "cpu:4"}})
    launching.wait_for_exit_record(run)
    started = supervisor_events(run)[0]
    assert isinstance(started, events.RunStarted) and started.world_size == 1 and len(started.devices) == 4
    assert (rank_facts(run, 0)["WORLD_SIZE"], rank_facts(run, 0)["OMP_NUM_THREADS"]) == ("1", "3")


def test_gpu_ranks_are_spawned_and_see_only_their_gpus(tmp_path: Path) -> None:
    uuids = ["GPU-aaaa", "GPU-bbbb"]
    infos = [events.DeviceInfo(index, "A GPU", "gpu", uuid) for index, uuid in enumerate(uuids)]
    hidden = create_run_dir(
        tmp_path / "runs", launching.small_config(tmp_path), {"devices": msgspec.to_builtins(infos)}
    )
    run = start_guard(hidden, [], worker=str(FAKE_WORKER), detach=True)
    assert launching.wait_for_exit_record(run).outcome == "completed"
    for rank in (0, 1):
        facts = rank_facts(run, rank)
        assert facts["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-bbbb"
        assert facts["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert not facts["has_torch"] and facts["own_session"] and not facts["has_checkout_on_path"]
        assert facts["parent"] == int(facts["RANKDECK_SUPERVISOR_PID"])


def test_an_exception_is_reported_once_and_victims_are_no_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "raising")
    run = launch(tmp_path / "runs", {"devices": {"use": "cpu:4"}})
    end = launching.wait_for_exit_record(run)
    assert (end.outcome, end.exit_code) == ("failed", 1)
    (problem,) = launching.read_problems(run)
    assert (problem.code, problem.rank) == ("rank-exception", 1)
    assert problem.message.startswith("ValueError: bad batch 17")
    assert problem.last_lines[-1] == "ValueError: bad batch 17"
    (evidence,) = problem.evidence
    assert (evidence.text, evidence.path) == ("ValueError: bad batch 17", "logs/rank-1.0.err")
    assert (
        evidence.line
        and "bad batch 17" in (run.path / evidence.path).read_text().splitlines()[evidence.line - 1]
    )
    assert end.reason == problem.headline()


def test_a_silent_exit_is_reported_with_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "exiting")
    run = launch(tmp_path / "runs")
    assert launching.wait_for_exit_record(run).exit_code == 1
    (problem,) = launching.read_problems(run)
    assert (problem.code, problem.rank) == ("rank-exited", 1)
    assert "the last thing that I say" in problem.message


def test_a_rank_that_exits_early_has_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its exit status says."""
    monkeypatch.setenv("FAKE_WORKER", "leaving")
    run = launch(tmp_path / "runs")
    assert launching.wait_for_exit_record(run).exit_code == 1
    (problem,) = launching.read_problems(run)
    assert (problem.code, problem.rank) == (
        "rank-exited",
        1,
    ) and "exited with status 0 in step 3" in problem.message
    assert problem.last_lines[-1] == "the last thing that I say"


SWALLOWS_STOP = """
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


def test_a_stop_swallowed_by_an_import_is_handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(SWALLOWS_STOP)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    run = launch(tmp_path / "runs", worker=None)
    assert launching.wait_for_exit_record(run).outcome == "stopped"
    assert "as an import does" in (run.logs_folder / "supervisor.0.err").read_text()


def test_a_finished_rank_may_crash_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "crashing")
    run = launch(tmp_path / "runs")
    assert launching.wait_for_exit_record(run).outcome == "completed" and launching.read_problems(run) == []


def test_lost_events_of_a_rank_are_reported_by_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "speechless")
    run = launch(tmp_path / "runs")
    end = launching.wait_for_exit_record(run)
    (warning,) = launching.read_problems(run, "warning")
    assert warning.code == "file-too-large"
    assert warning.message == (
        "File too large: 1 line of the run's events could not be written (rank 1 before its first step)."
    )
    assert (end.outcome, end.reason) == ("completed", warning.message)
    assert row_json(read_info(run))["reason"] == warning.message
    assert "completed, events lost" in str(runs_table([read_info(run)], 200))
    text = result_lines(run)[0]
    assert text.startswith("completed, events lost after") and text.endswith(warning.message)
    print_report(summarize(run))
    assert "completed, events lost" in capsys.readouterr().out


def test_start_warnings_come_after_the_start_event(tmp_path: Path) -> None:
    run = launch(tmp_path / "runs", {"strategy": {"use": "single"}, "devices": {"use": "cpu:3"}})
    assert launching.wait_for_exit_record(run).outcome == "completed"
    (warning,) = launching.read_problems(run, "warning")
    assert warning.code == "one-device" and "the other 2 devices stay unused" in warning.message
    started = supervisor_events(run)[0]
    assert isinstance(started, events.RunStarted) and len(started.devices) == 1


def test_a_data_preparation_error_ends_the_run_before_ranks_start(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    tables = {"model": {"use": "gpt"}, "data": {"use": "text", "args": {"path": str(texts)}}}
    run = launch(tmp_path / "runs", tables, worker=None)
    end = launching.wait_for_exit_record(run)
    assert (end.outcome, end.exit_code) == ("failed", 2)
    (problem,) = launching.read_problems(run)
    assert problem.code == "data"
    assert not (run.logs_folder / "rank-0.0.out").exists()


def test_a_running_run_has_named_processes_and_can_be_stopped(
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
    name = process_title.short_run_name(str(run.path))
    told_by_ps = {
        pid: (comm, arguments) for pid, comm, arguments in map(ps_fields, processes_of_run(run.path))
    }
    for rank in (0, 1):
        expected = f"rank {rank}/2 {name}"
        assert told_by_ps[pids[rank]] == (expected[:15], f"rankdeck {expected}")
    assert told_by_ps[launching.guard_pid(run)] == (f"guard {name}"[:15], f"rankdeck guard {name}")
    for pid, who in ((supervisor_pid(run), "supervisor"), (launching.sampler_pid(run), "sampler")):
        assert pid is not None
        wait_until(
            lambda pid=pid, who=who: ps_fields(pid)[1] == f"{who} {name}"[:15], what=f"the name of the {who}"
        )
    os.kill(pids[1], signal.SIGUSR1)
    stack_file = run.logs_folder / "rank-1.0.stacks"
    frames = wait_until(
        lambda: parse_stack(stack_file.read_text(encoding="utf-8")), what="the stacks of rank 1"
    )
    assert any("fake_worker.py" in frame.file for frame in frames)
    os.kill(pids[1], signal.SIGSTOP)  # not even a suspended rank stays
    start_s = time.monotonic()
    request_stop(run)
    assert launching.wait_for_exit_record(run, 6).outcome == "stopped"
    assert time.monotonic() - start_s < stop_timeout_s(2)
