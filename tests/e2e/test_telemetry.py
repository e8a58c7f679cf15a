"""A run on GPUs and its sampler: who reads, what is written, and that nothing a driver does ends the run.

The ranks need no torch here; guard, supervisor and sampler are real, the driver's library is simulated.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.launch.control import request_stop
from rankdeck.launch.processes import read_environment
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.nvmlsim import CRASH, GIB, GPU_IS_LOST, SimulatedGpus, build
from tests.helpers.waiting import wait_until


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpus:
    """Three that this machine seems to have."""
    simulated = SimulatedGpus(tmp_path, 3, library)
    for name, value in simulated.driver_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FAKE_STEPS", "1000000")
    return simulated


@pytest.fixture
def run(gpus: SimulatedGpus, tmp_path: Path) -> Iterator[RunDir]:
    """On GPUs 2 and 0, in this order, with ranks that are up."""
    launched = launching.launch(tmp_path / "runs", {"devices": {"use": f"gpu:2,{gpus.uuid(0)}"}})
    launching.wait_for_ranks(launched)
    yield launched
    if launched.exit_record() is None:
        request_stop(launched, now=True)
        launching.wait_for_exit_record(launched, 10)


def read_samples(run: RunDir) -> list[events.DeviceSample]:
    return [
        device
        for writer, event in launching.all_events(run)
        if isinstance(event, events.Sample) and writer == "sampler"
        for device in event.devices
    ]


def read_notices(run: RunDir, code: str) -> list[events.DeviceNotice]:
    notices = [event for _, event in launching.all_events(run) if isinstance(event, events.DeviceNotice)]
    return [event for event in notices if event.code == code]


def wait_for_bytes(run: RunDir, device: int, num_bytes: int) -> None:
    wait_until(
        lambda: any(row.device == device and row.used_bytes == num_bytes for row in read_samples(run)),
        deadline_s=20,
        what=f"{num_bytes} bytes on device {device}",
    )


def test_samples_cover_the_devices_of_the_run_and_a_lost_gpu_warns(gpus: SimulatedGpus, run: RunDir) -> None:
    pids = launching.rank_pids(run)
    gpus.put_processes(2, (pids[0], 30 * GIB), (999_999_999, 2 * GIB))
    gpus.device(2).used, gpus.device(2).utilisation = 33 * GIB, 80
    gpus.device(0).used = 7 * GIB
    wait_for_bytes(run, 0, 33 * GIB)
    wait_for_bytes(run, 1, 7 * GIB)
    wait_until(lambda: any(row.processes for row in read_samples(run)), deadline_s=10, what="processes")
    rows = read_samples(run)
    assert {row.device for row in rows} == {0, 1}
    on_it = next(row.processes for row in rows if row.processes)
    assert [(process.rank, process.used_bytes, process.foreign) for process in on_it] == [
        (0, 30 * GIB, False),
        (None, 2 * GIB, True),
    ]
    assert any(row.utilisation == 0.8 for row in rows)
    gpus.xid(1, 31)  # of a GPU that is not the run's
    gpus.xid(2, 79)
    (notice,) = wait_until(lambda: read_notices(run, "xid"), what="the XID error")
    assert (notice.device, notice.xid) == (0, 79)
    (problem,) = wait_until(lambda: launching.read_problems(run, "warning"), what="what is told of it")
    assert problem.code == "gpu-error"
    device = read_run_state(run).devices[0]
    assert (device.used_bytes, device.used_peak_bytes, device.missing["fan"]) == (
        33 * GIB,
        33 * GIB,
        "unsupported",
    )
    gpus.fail(2, "ANY", GPU_IS_LOST)
    (notice,) = wait_until(lambda: read_notices(run, "lost"), what="the loss")
    assert notice.device == 0
    wait_until(lambda: len(launching.read_problems(run, "warning")) > 1, what="what is told of that")
    _, problem = launching.read_problems(run, "warning")
    assert problem.code == "gpu-lost" and "GPU 2" in problem.message
    gpus.device(0).used = 9 * GIB
    wait_for_bytes(run, 1, 9 * GIB)
    assert run.is_alive() and read_run_state(run).devices[0].lost_at == pytest.approx(notice.t)
    request_stop(run)
    assert launching.wait_for_exit_record(run, 10).outcome == "stopped"


def test_ranks_get_their_gpus_and_a_dead_sampler_stops_nothing(gpus: SimulatedGpus, run: RunDir) -> None:
    environment = read_environment(launching.rank_pids(run)[1])
    assert environment["CUDA_VISIBLE_DEVICES"] == f"{gpus.uuid(2)},{gpus.uuid(0)}"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    rows = rankdeck_in_process("devices", "--json", exit_code=0).json
    assert [row["run"] for row in rows] == [str(run.path), None, str(run.path)]
    done = rankdeck_in_process("train", "digits-ddp", "--devices", "gpu:0,1", exit_code=2)
    assert "GPU 0" in done.err and run.name in done.err
    first = wait_until(lambda: launching.sampler_pid(run), what="a sampler")
    wait_for_bytes(run, 0, 4 * 2**20)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: launching.sampler_pid(run) not in (None, first), what="another sampler")
    gpus.device(2).used = 9 * GIB
    wait_for_bytes(run, 0, 9 * GIB)
    gpus.fail(2, "MEMORY", CRASH)
    wait_until(lambda: len(read_notices(run, "restarted")) == 2, what="word of the crash")
    gpus.device(0).used = 9 * GIB
    wait_for_bytes(run, 1, 9 * GIB)
    assert run.is_alive() and not launching.read_problems(run)
    assert read_run_state(run).devices[0].lost_at is not None
    assert [problem.code for problem in launching.read_problems(run, "warning")] == [
        "restarted",
        "restarted",
        "gpu-lost",
    ]
    sequence = [event.seq for writer, event in launching.all_events(run) if writer == "sampler"]
    assert sequence == list(range(len(sequence)))
    rankdeck_in_process("stop", run.path, "--now", exit_code=0)
    assert not run.is_alive()


@pytest.mark.slow
def test_sampling_resumes_after_a_driver_reload(gpus: SimulatedGpus, run: RunDir) -> None:
    wait_for_bytes(run, 0, 4 * 2**20)
    for index in (0, 2):
        gpus.fail(index, "ANY", GPU_IS_LOST)
    wait_until(lambda: len(read_notices(run, "lost")) == 2, what="the loss")
    gpus.state.session += 1
    for index in (0, 2):
        gpus.fail(index, "ANY", 0)
    gpus.device(2).used = gpus.device(0).used = 9 * GIB
    for device in (0, 1):
        wait_for_bytes(run, device, 9 * GIB)
    wait_until(lambda: read_run_state(run).devices[0].lost_at is None, what="a GPU that is there")
    assert run.is_alive() and not launching.read_problems(run)


def test_many_xid_errors_are_one_problem(gpus: SimulatedGpus, run: RunDir) -> None:
    wait_for_bytes(run, 0, 4 * 2**20)
    wait_until(lambda: gpus.calls("EVENT") >= 3, what="registration")
    for _ in range(2_000):
        gpus.xid(2, 31)
        time.sleep(0.001)
    gpus.device(2).used = 9 * GIB
    wait_for_bytes(run, 0, 9 * GIB)
    request_stop(run)
    assert launching.wait_for_exit_record(run, 10).outcome == "stopped"
    notices = read_notices(run, "xid")
    assert len(notices) == 2 and "Further occurrences" in notices[-1].message
    assert len(launching.read_problems(run, "warning")) == 2


def test_unknown_and_simulated_gpus_are_refused(gpus: SimulatedGpus, tmp_path: Path) -> None:
    done = rankdeck_in_process("train", "digits-ddp", "--devices", "gpu:7", exit_code=2)
    assert "There is no GPU 7" in done.err and gpus.uuid(1) in done.err
    done = rankdeck_in_process(
        "train", "digits-ddp", "--devices", "gpu:0", env=gpus.simulated_environment, exit_code=2
    )
    assert "simulated" in done.err and "cpu:2" in done.err
    assert not (tmp_path / "rankdeck-runs").exists()


def test_a_rehearsal_samples_the_cpu_use_of_each_rank(
    gpus: SimulatedGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_NVML", str(gpus.library))
    run = launching.launch(tmp_path / "runs")
    pids = launching.wait_for_ranks(run)
    environment = read_environment(pids[0])
    assert environment and "RANKDECK_NVML" not in environment
    wait_until(lambda: {row.device for row in read_samples(run)} == {0, 1}, deadline_s=20, what="both ranks")
    assert all(row.used_bytes is None and 0 <= (row.utilisation or 0) <= 1 for row in read_samples(run))
    request_stop(run)
    assert launching.wait_for_exit_record(run, 10).outcome == "stopped"
    assert not [event for _, event in launching.all_events(run) if isinstance(event, events.DeviceNotice)]
