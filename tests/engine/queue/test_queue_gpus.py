"""Which GPUs the queue hands out, as a simulated driver reports them: used, full, lost and split ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from rankdeck.base.files import lease_path
from rankdeck.launch.locks import lock
from rankdeck.queue.admission import decide
from rankdeck.queue.devices import GpuTracker, QueueDevice
from rankdeck.queue.entry import Entry, Need
from rankdeck.queue.spool import Spool
from tests.helpers.nvmlsim import (
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    UNKNOWN,
    SimulatedGpus,
    build,
)
from tests.helpers.queued_jobs import add_job, entry_of, wait_for_state
from tests.helpers.waiting import wait_until

NO_PROCESS = 4_194_300
"""A process id that is none here, as that of another container."""
_MIG = "MIG-51000000-0000-4000-8000-00000000000{}"
Change = Callable[[SimulatedGpus], object]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpus:
    """Four GPUs, which this process takes for the machine's own."""
    simulated = SimulatedGpus(tmp_path, 4, library)
    for name, value in simulated.driver_environment.items():
        monkeypatch.setenv(name, value)
    return simulated


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of another program."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def read_gpus(tracker: GpuTracker) -> list[QueueDevice]:
    devices: list[QueueDevice] | None = wait_until(
        lambda: [devices] if (devices := tracker.poll(0.2)) is not None else [], what="readings"
    )[0]
    assert devices is not None
    return devices


def answer(devices: list[QueueDevice], need: Need) -> str:
    """The labels of the GPUs that an entry gets, or what it waits for."""
    entry = Entry(1, "k", "e", "train", [], "/", "/", "python", need, 0.0, 1.0)
    decision = decide([entry], devices, time.time())
    chosen = [device.label for _, devices in decision.starts for device in devices]
    return ", ".join(chosen) or str(decision.waits[1])


def use_memory(*used_gib: float) -> Change:
    def change(gpus: SimulatedGpus) -> None:
        for index, size in enumerate(used_gib):
            gpus.device(index).used = int(size * GIB)

    return change


def use_by(*indices: int, graphics: bool = False) -> Change:
    def change(gpus: SimulatedGpus) -> None:
        for index in indices:
            gpus.put_processes(index, (os.getppid(), GIB), graphics=graphics)

    return change


def lease(index: int) -> Change:
    def change(gpus: SimulatedGpus) -> int:
        path = lease_path(gpus.uuid(index))
        path.parent.mkdir(parents=True, exist_ok=True)
        return lock(str(path), "/runs/20260101-000000-a-run-1234")

    return change


def fail(index: int, kind: str, code: int) -> Change:
    return lambda gpus: gpus.fail(index, kind, code)


def split(gpus: SimulatedGpus) -> None:
    gpus.split_into_mig(0, ("3g.40gb", 40 * GIB), ("1g.10gb", 10 * GIB))


def duplicate(gpus: SimulatedGpus) -> None:
    gpus.device(1).uuid = gpus.device(0).uuid


def hide_driver(gpus: SimulatedGpus) -> None:
    gpus.state.init_error = DRIVER_NOT_LOADED


def gpu(num_devices: int, *names: str, free_gib: int = 0) -> Need:
    return Need("gpu", num_devices, list(names), free_gib * GIB)


def nothing(gpus: SimulatedGpus) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "need", "expected"),
    [
        (nothing, gpu(2), "GPU 0, GPU 1"),
        (nothing, gpu(2, "3", "1"), "GPU 3, GPU 1"),
        (nothing, gpu(0), "GPU 0, GPU 1, GPU 2, GPU 3"),
        (nothing, gpu(5), "waiting for 5 GPUs: this machine has 4"),
        (nothing, gpu(1, "9"), "waiting for 1 GPU: this machine has 0"),
        (use_by(0), gpu(1), "GPU 1"),
        (use_by(0, 2), gpu(0), "GPU 1, GPU 3"),
        (use_by(0), gpu(1, "0"), "waiting for 1 GPU: GPU 0 is used by "),
        (use_by(0, graphics=True), gpu(1, "0"), "GPU 0"),
        (use_memory(3), gpu(1, "0"), "waiting for 1 GPU: GPU 0 is used by a program that the driver"),
        (use_memory(0.5), gpu(1, "0"), "GPU 0"),
        (use_memory(0.9, 0.5, 0.7, 0.2), gpu(1, free_gib=79), "GPU 1"),
        (nothing, gpu(1, free_gib=85), "waiting for 1 GPU: GPU 0 has 79.6 GiB of free memory, but 85.0 GiB"),
        (lease(0), gpu(1), "GPU 1"),
        (lease(0), gpu(1, "0"), "waiting for 1 GPU: GPU 0 is used by the run 20260101-000000-a-run-1234"),
        (fail(0, "ANY", GPU_IS_LOST), gpu(1), "GPU 1"),
        (fail(0, "ANY", GPU_IS_LOST), gpu(1, "0"), "waiting for 1 GPU: GPU 0 is lost"),
        (split, gpu(0), "GPU 1, GPU 2, GPU 3"),
        (split, gpu(1, "0"), "waiting for 1 GPU: GPU 0 is split into MIG instances"),
        (split, gpu(1, _MIG.format(4)), "GPU 0.0"),
        (split, gpu(1, _MIG.format(5), free_gib=11), "waiting for 1 GPU: GPU 0.1 has"),
        (duplicate, gpu(0), "GPU 0, GPU 2, GPU 3"),
        (duplicate, gpu(1, "1"), "waiting for 1 GPU: GPU 1 has no unique UUID"),
        (fail(0, "COMPUTE", NOT_SUPPORTED), gpu(1, "0"), "GPU 0"),
        (fail(0, "MEMORY", NOT_SUPPORTED), gpu(1, "0", free_gib=99), "GPU 0"),
        (fail(0, "MEMORY", UNKNOWN), gpu(1, "0"), "waiting for 1 GPU: GPU 0 has no current readings"),
        (hide_driver, gpu(1), "waiting for 1 GPU: this machine has 0"),
    ],
)  # fmt: skip
def test_the_gpus_that_an_entry_gets(gpus: SimulatedGpus, change: Change, need: Need, expected: str) -> None:
    handle = change(gpus)
    with closing(GpuTracker()) as tracker:
        got = answer(read_gpus(tracker), need)
    if isinstance(handle, int):
        os.close(handle)
    assert got.startswith(expected)
    assert got == expected or expected.startswith("waiting")


def test_gpus_that_are_called_simulated_are_never_handed_out(
    gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gpus.simulated_environment.items():
        monkeypatch.setenv(name, value)
    with closing(GpuTracker()) as tracker:
        assert "GPU 0 is simulated" in answer(read_gpus(tracker), gpu(1))


def test_a_foreign_process_is_named_with_its_user_and_its_start(
    gpus: SimulatedGpus, sleeper: subprocess.Popen[bytes]
) -> None:
    gpus.put_processes(0, (sleeper.pid, GIB))
    gpus.put_processes(1, (NO_PROCESS, GIB))
    with closing(GpuTracker()) as tracker:
        devices = read_gpus(tracker)
    started = time.strftime("%H:%M", time.localtime(psutil.Process(sleeper.pid).create_time()))
    user = psutil.Process(sleeper.pid).username()
    assert re.fullmatch(rf"is used by python[\d.]* of {user} since {started}", devices[0].busy)
    assert devices[1].busy.startswith(f"is used by pid {NO_PROCESS} since ")


def test_a_gpu_is_free_only_some_time_after_a_foreign_process_has_left(gpus: SimulatedGpus) -> None:
    with closing(GpuTracker(quiet_s=3.0)) as tracker:
        use_by(0)(gpus)
        wait_until(lambda: "is used by" in read_gpus(tracker)[0].busy, what="the process")
        gpus.put_processes(0)
        wait_until(lambda: "was in use" in read_gpus(tracker)[0].busy, what="the quiet time")
        left_s = time.monotonic()
        tracker.close()  # nothing waits for a GPU for a moment
        wait_until(lambda: not read_gpus(tracker)[0].busy, what="a free GPU")
        assert time.monotonic() - left_s > 1.0


def test_a_script_waits_for_a_gpu_that_a_foreign_process_uses(
    gpus: SimulatedGpus, spool: Spool, sleeper: subprocess.Popen[bytes]
) -> None:
    for index in range(4):
        gpus.put_processes(index, (sleeper.pid, GIB))
    number = add_job("waits", "--devices", "2")
    wait_until(lambda: entry_of(spool, number).waits_for, deadline_s=30, what="what it waits for")
    assert entry_of(spool, number).waits_for.startswith("waiting for 2 GPUs: GPU 0 is used by python")
    for index in (1, 3):
        gpus.put_processes(index)
    entry = wait_for_state(spool, number, "completed")
    assert entry.starts[0].devices == [gpus.uuid(1), gpus.uuid(3)]
