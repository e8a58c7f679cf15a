"""What reading GPUs costs, on a simulated driver that answers at once: all of it is ours and Python's.

    python -m tests.bench.telemetry [--gpus 8] [--seconds 10] [--peers PYTHON]

CPU time per device and sample: every metric with its processes, encoded, best of rounds; beside it nvitop's
take_snapshots in the same minutes, by PYTHON, an interpreter that has nvitop. Then the sampler and the
command that passes its lines on, at the rates of the table, and both where the table is drawn in a terminal.
Goals: 60 us, a third of nvitop, 3 % of a core, 4 % of a core.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from rankdeck.telemetry.nvml import NvmlProvider
from rankdeck.telemetry.readings import METRICS, DeviceReadings, ProcessesLine, SampleLine, encode
from tests.helpers.device_stream import DeviceStream
from tests.helpers.nvmlsim import GIB, SimulatedGpus, build

ROUNDS, CALLS = 7, 200
OURS = "from tests.bench.telemetry import ours; print(ours())"
NVITOP = f"""
import time
from nvitop import Device, take_snapshots
take_snapshots()
count, best = Device.count(), []
for _ in range({ROUNDS}):
    began = time.process_time()
    for _ in range({CALLS // 10}):
        take_snapshots()
    best.append((time.process_time() - began) / {CALLS // 10} / count * 1e6)
print(min(best))
"""


def ours() -> float:
    """Of this process's library, in microseconds."""
    provider = NvmlProvider()
    uuids, metrics = [device.uuid for device in provider.probe().devices], tuple(METRICS)
    best = []
    for _ in range(ROUNDS):
        start_s = time.process_time()
        for _ in range(CALLS):
            devices = [DeviceReadings(uuid, provider.read(uuid, metrics)) for uuid in uuids]
            encode(SampleLine(t=time.time(), devices=devices))
            encode(ProcessesLine(t=time.time(), devices=[provider.processes(uuid) for uuid in uuids]))
        best.append((time.process_time() - start_s) / CALLS / len(uuids) * 1e6)
    return min(best)


def microseconds(python: str, code: str, gpus: SimulatedGpus) -> float | None:
    """Per device and sample, as `code` measures it; None where it cannot run."""
    env = {**os.environ, **gpus.driver_environment}
    done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def shares_of_a_core(gpus: SimulatedGpus, seconds: float) -> tuple[float, float]:
    """CPU time over wall time of the sampler and of the command that passes its lines on."""
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        sampler, command = stream.sampler(), psutil.Process(stream.process.pid)
        assert sampler is not None

        def used_s() -> tuple[float, float]:
            return sum(sampler.cpu_times()[:2]), sum(command.cpu_times()[:2])

        before, began_s = used_s(), time.monotonic()
        time.sleep(seconds)
        after, elapsed_s = used_s(), time.monotonic() - began_s
    return (after[0] - before[0]) / elapsed_s, (after[1] - before[1]) / elapsed_s


def share_of_the_table(gpus: SimulatedGpus, seconds: float) -> float:
    """CPU time over wall time of the table in a terminal, its sampler included."""
    inside, outside = pty.openpty()
    command = [sys.executable, "-P", "-m", "rankdeck", "devices", "--follow"]
    env = {**os.environ, **gpus.driver_environment, "COLUMNS": "200", "LINES": "50"}
    with subprocess.Popen(command, stdout=outside, env=env) as running:
        os.close(outside)
        num_rows = 0
        while (
            num_rows < 3 * gpus.state.num_gpus
        ):  # tables that were drawn before the first second that counts
            num_rows += os.read(inside, 1 << 16).count(b"GPU-")
        processes = [psutil.Process(running.pid), *psutil.Process(running.pid).children()]

        def used_s() -> float:
            return sum(sum(process.cpu_times()[:2]) for process in processes)

        before_s, began_s = used_s(), time.monotonic()
        while time.monotonic() - began_s < seconds:
            os.read(inside, 1 << 16)
        share = (used_s() - before_s) / (time.monotonic() - began_s)
        running.terminate()
    os.close(inside)
    return share


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.telemetry")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--peers", default=sys.executable, help="an interpreter that has nvitop")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gpus = SimulatedGpus(Path(folder), args.gpus, build(Path(folder) / "library"))
        for index in range(args.gpus):
            gpus.put_processes(index, (os.getpid(), 3 * GIB))
        sample_us = microseconds(sys.executable, OURS, gpus)
        nvitop = microseconds(args.peers, NVITOP, gpus)
        assert sample_us is not None
        rows = [("a whole sample of a device, processes and JSON included", f"{sample_us:.1f} us (goal: 60)")]
        if nvitop is None:
            rows.append(("nvitop", "not installed here, nothing to compare with (--peers PYTHON)"))
        else:
            rows.append(("nvitop's take_snapshots, per device", f"{nvitop:.1f} us"))
            rows.append(("ratio", f"{nvitop / sample_us:.1f} x (goal: 3)"))
        sampler, command = shares_of_a_core(gpus, args.seconds)
        label = f"sampler at the rates of the table, {args.gpus} devices"
        rows.append((label, f"{sampler:.2%} of a core (goal: 3 %)"))
        rows.append(("the command that passes its lines on", f"{command:.2%} of a core"))
        share = share_of_the_table(gpus, args.seconds)
        rows.append(("the table in a terminal, sampler included", f"{share:.2%} of a core (goal: 4 %)"))
        for label, value in rows:
            print(f"{label:<56} {value}")


if __name__ == "__main__":
    main()
