"""A machine without a driver, and GPUs of a library that answers as a driver's would."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck.doctor.gpus import check_gpus, nvidia_cards
from rankdeck.doctor.lines import CheckLine, Verdict, decode
from tests.helpers.c_library import build_library
from tests.helpers.nvmlsim import GIB, GPU_IS_LOST, SimulatedGpus

ROWS = ["driver", "gpus", "vram", "order", "peers"]
CHECK_SCRIPT = (
    "import sys\n"
    "from rankdeck.doctor.gpus import check_gpus\n"
    "from rankdeck.doctor.lines import encode\n"
    "from rankdeck.run_dir import RunDir\n"
    "if sys.argv[1:]: RunDir.is_alive = lambda run: False\n"
    "for line in check_gpus(): sys.stdout.buffer.write(encode(line))\n"
)


def run_check(environment: dict[str, str], *, runs_are_over: bool = False) -> dict[str, CheckLine]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHECK_SCRIPT, *["over"] * runs_are_over],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
        check=True,
    )
    lines = [decode(line) for line in done.stdout.splitlines()]
    rows = {line.name: line for line in lines if isinstance(line, CheckLine)}
    assert list(rows) == ROWS, done.stderr.decode()
    return rows


def make_card(folder: Path, address: str, vendor: str, kind: str) -> None:
    (folder / address).mkdir(parents=True)
    (folder / address / "vendor").write_text(f"{vendor}\n")
    (folder / address / "class").write_text(f"{kind}\n")


def test_nvidia_cards_are_found_on_the_pci_bus(tmp_path: Path) -> None:
    make_card(tmp_path, "0000:01:00.0", "0x10de", "0x030000")
    make_card(tmp_path, "0000:01:00.1", "0x10de", "0x040300")  # its sound
    make_card(tmp_path, "0000:02:00.0", "0x10de", "0x030200")
    make_card(tmp_path, "0000:03:00.0", "0x1002", "0x030000")
    assert nvidia_cards(tmp_path) == ["0000:01:00.0", "0000:02:00.0"]
    assert nvidia_cards(tmp_path / "none") is None


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a driver is here")
def test_a_card_without_a_driver_fails(tmp_path: Path) -> None:
    make_card(tmp_path / "pci", "0000:01:00.0", "0x10de", "0x030000")
    driver, *others = check_gpus(tmp_path / "pci")
    assert driver.verdict is Verdict.FAILED and "NVIDIA cards on the PCI bus: 0000:01:00.0" in driver.evidence
    driver, *others = check_gpus(tmp_path)
    assert [driver.verdict, *(line.verdict for line in others)] == [Verdict.SKIPPED] * 5
    assert [line.name for line in others] == ROWS[1:]
    assert all("no GPU driver" in line.finding for line in others)


def test_unused_gpus_are_ok(gpus: SimulatedGpus) -> None:
    rows = run_check(gpus.driver_environment)
    verdicts = [rows[name].verdict for name in ROWS]
    assert verdicts == [*[Verdict.OK] * 4, Verdict.SKIPPED]
    assert "580.00.00" in rows["driver"].finding and "2: NVIDIA H100 80GB HBM3." in rows["gpus"].finding
    assert "The driver does not report" in rows["peers"].finding


def test_simulated_gpus_are_labelled(gpus: SimulatedGpus) -> None:
    rows = run_check(gpus.simulated_environment)
    assert "simulated (RANKDECK_NVML)" in rows["driver"].evidence
    assert rows["peers"].verdict is Verdict.SKIPPED and "simulated" in rows["peers"].finding


def test_lost_gpus_fail_and_mixed_models_warn_about_order(gpus: SimulatedGpus) -> None:
    gpus.device(1).name = b"NVIDIA RTX A6000"
    rows = run_check(gpus.driver_environment)
    assert rows["order"].verdict is Verdict.WARNING
    assert rows["order"].command == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    by_bus = run_check({**gpus.driver_environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert by_bus["order"].verdict is Verdict.OK
    gpus.fail(1, "ANY", GPU_IS_LOST)
    line = run_check(gpus.driver_environment)["gpus"]
    assert line.verdict is Verdict.FAILED and "No response from GPU 1" in line.finding


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a run has started whose lock is held: were it free, whoever starts a run next on this
    machine would end the process."""
    run = tmp_path / "runs" / "gone"
    run.mkdir(parents=True)
    environment = {**os.environ, "RANKDECK_RUN": str(run)}
    with (run / "guard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(["sleep", "600"], env=environment) as process:
            yield process
            process.kill()


def test_processes_of_live_runs_are_ignored(gpus: SimulatedGpus, rank: subprocess.Popen[bytes]) -> None:
    gpus.put_processes(0, (rank.pid, 3 * GIB))
    gpus.device(0).used = 3 * GIB
    assert run_check(gpus.driver_environment)["vram"].verdict is Verdict.OK


def test_leftover_processes_get_a_kill_command(gpus: SimulatedGpus, rank: subprocess.Popen[bytes]) -> None:
    gpus.put_processes(0, (rank.pid, 3 * GIB), (os.getpid(), GIB))
    gpus.device(0).used = 4 * GIB
    line = run_check(gpus.driver_environment, runs_are_over=True)["vram"]
    assert line.verdict is Verdict.WARNING and line.command == f"kill {rank.pid}", line.evidence
    assert any("3.0 GiB held by sleep" in text and "of gone, which is over" in text for text in line.evidence)
    assert any("1.0 GiB held by" in text and str(os.getpid()) in text for text in line.evidence)


def test_a_suspended_process_with_vram_is_shown(
    gpus: SimulatedGpus, rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "runs/gone/guard.lock").unlink()  # it is nobody's then
    rank.send_signal(signal.SIGSTOP)
    gpus.put_processes(1, (rank.pid, GIB))
    gpus.device(1).used = GIB
    line = run_check(gpus.driver_environment)["vram"]
    assert line.verdict is Verdict.WARNING and line.command is None
    assert any("suspended" in text for text in line.evidence)


def test_memory_of_unknown_processes_is_shown(gpus: SimulatedGpus) -> None:
    gpus.device(0).used = 20 * GIB
    line = run_check(gpus.driver_environment)["vram"]
    assert line.verdict is Verdict.WARNING and any(
        "is in use, but not by any process" in text for text in line.evidence
    )


@pytest.mark.parametrize(("status", "verdict"), [(0, Verdict.OK), (4, Verdict.WARNING)])
def test_missing_peer_access_is_a_warning(
    tmp_path: Path, gpus: SimulatedGpus, status: int, verdict: Verdict
) -> None:
    simulated = Path(__file__).parents[2] / "helpers/nvmlsim.c"
    source = tmp_path / "peers.c"
    source.write_text(
        f'#include "{simulated}"\n'
        "int nvmlDeviceGetP2PStatus(void *a, void *b, int of, int *status) "
        f"{{ *status = {status}; return a == b || of ? INVALID_ARGUMENT : OK; }}\n"
    )
    library = build_library(source, tmp_path / "peers/libnvidia-ml.so.1", "-Wl,-soname,libnvidia-ml.so.1")
    line = run_check({**gpus.driver_environment, "LD_LIBRARY_PATH": str(library.parent)})["peers"]
    assert line.verdict is verdict, line
    if verdict is Verdict.WARNING:
        assert "1 of 1 GPU pairs" in line.finding and line.command == "nvidia-smi topo -m"
        assert line.evidence == ["GPU 0 and GPU 1: the driver's settings disable it (nvmlDeviceGetP2PStatus)"]
