"""What copying a run from another host takes: events a second, and how old they are when they are here.

    python -m tests.bench.remote [--events 300000] [--delay 0.05]

A run of that many events is copied through a relay in place of ssh, and where root may make hosts through ssh
itself, beside `cat` of the same file, which begins sooner. Then a run that is written 1,000 events a second
is followed through a connection that takes `delay` seconds each way. Goals: 100,000 events a second, 1 s.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rankdeck import events
from rankdeck.remote import ssh
from rankdeck.remote.remote_run import RemoteRun, host_copies_folder
from tests.helpers.fake_remote_host import FakeRemoteHost
from tests.helpers.host_network import HostNetwork, unavailable_reason
from tests.helpers.run_writer import RunWriter, measure_lags_s
from tests.helpers.written_run import WrittenRun

_LEAST_PER_S, _MOST_LAG_S = 100_000.0, 1.0


def write(runs: Path, num_events: int) -> Path:
    """The events of a run that is over."""
    run = WrittenRun(runs)
    run.start()
    run.end()
    file = run.path / "events" / "rank-0.0.jsonl"
    with file.open("wb") as lines:
        for number in range(1, num_events + 1):
            step = events.Steps(
                rank=0, first=number, loss_sum=[1.5], count=[16.0], lr=[1e-3], samples=[16], step_s=[0.01],
                ended=[run.started + 0.01 * number], seq=number, t=run.started,
            )  # fmt: skip
            lines.write(events.encode(step))
    return file


def copied_s(host: str, file: Path) -> float:
    """From the question to the last byte."""
    shutil.rmtree(host_copies_folder(host), ignore_errors=True)
    with RemoteRun(host, file.parents[1].name) as followed:
        start_s = time.perf_counter()
        copy = followed.copy()
        there = copy.events_folder / file.name
        while not there.exists() or there.stat().st_size < file.stat().st_size:
            time.sleep(0.001)
        return time.perf_counter() - start_s


def cat_s(host: str, file: Path) -> float:
    """The same bytes, with nothing said about them."""
    command = [*ssh.ssh_program(), host, f"echo; cat {file}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        start_s = time.perf_counter()
        while process.stdout.read(1 << 18):
            pass
        return time.perf_counter() - start_s


def measure(name: str, host: str, runs: Path, num_events: int) -> bool:
    file = write(runs, num_events)
    copied, cat = min(copied_s(host, file) for _ in range(3)), min(cat_s(host, file) for _ in range(3))
    per_s, share, rate = num_events / copied, cat / copied, file.stat().st_size / copied / 1e6
    print(f"{name:<6} {per_s:10,.0f} events/s  {share:.2f} of cat  {rate:,.0f} MB/s", flush=True)
    return per_s >= _LEAST_PER_S


def in_relay(folder: Path, delay_s: float, work: Callable[[FakeRemoteHost], bool]) -> bool:
    host = FakeRemoteHost(folder, delay_s=delay_s)
    os.environ.update(host.environment)
    return work(host)


def lag(host: FakeRemoteHost, delay_s: float) -> bool:
    writing = RunWriter(host.runs)
    try:
        with RemoteRun(host.name, "last") as followed:
            lags_s = measure_lags_s(followed.copy(), seconds=5.0)
    finally:
        writing.end()
    middle = sorted(lags_s)[len(lags_s) // 2]
    print(
        f"lag    {1000 * delay_s:.0f} ms each way: median {middle:.2f} s, most {max(lags_s):.2f} s",
        flush=True,
    )
    return max(lags_s) < _MOST_LAG_S


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.remote")
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--delay", type=float, default=0.05)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        os.environ["RANKDECK_HOME"] = str(folder / "home")
        good = in_relay(folder / "a", 0.0, lambda host: measure("relay", host.name, host.runs, args.events))
        good &= in_relay(folder / "b", args.delay, lambda host: lag(host, args.delay))
        if reason := unavailable_reason():
            print(f"no ssh: {reason}")
            return int(not good)
        network = HostNetwork(folder / "net", ["box1"])
        try:
            network.up()
            os.environ.update(network.environment)
            good &= measure("ssh", "box1", network.hosts["box1"].runs, args.events)
        finally:
            network.down()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
