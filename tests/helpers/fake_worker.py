"""A rank that needs no torch: it joins nobody, beats, and ends as FAKE_WORKER says. Started as ranks are.

steps      beats until it is asked to stop; FAKE_STEPS ends it by itself
deaf       the same, and ignores TERM
breeding   the same, with children that left its group, its session, or both
raising    rank 1 raises ValueError in step 3; the others say that a connection was closed, a little before
exiting    rank 1 leaves with 7 and without a word
leaving    the same, with 0
crashing   finishes, and crashes afterwards
speechless finishes, and rank 1 may write no more to any file
stuck      the first attempt stands still in step 3
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rankdeck import events
from rankdeck.base.heartbeat import HeartbeatWriter, finished_phase
from rankdeck.diagnose.exceptions import describe_exception
from rankdeck.run_dir import RunDir

STEP_S = 0.01
_CLOSED = "[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def fork_children() -> None:
    """Children as data loading and users' helpers leave them behind."""
    sleep = [sys.executable, "-c", "import signal; signal.pause()"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, process_group=0)
    subprocess.Popen(sleep, start_new_session=True)
    middle = f"import subprocess; subprocess.Popen({sleep!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", middle], check=True)


def facts() -> dict[str, Any]:
    """What the rank finds when it begins."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    return {
        **{name: os.environ.get(name) for name in (*names, "CUDA_DEVICE_ORDER", "RANKDECK_SUPERVISOR_PID")},
        "parent": os.getppid(),
        "own_session": os.getsid(0) == os.getpid(),
        "has_torch": "torch" in sys.modules,
        "main": sys.modules["__main__"].__file__,
        "has_checkout_on_path": "" in sys.path or str(Path.cwd()) in sys.path,
        "open_files": sorted(_open_files()),
    }


def _open_files() -> list[str]:
    paths = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            paths.append(str(entry.readlink()))
        except OSError:
            continue  # the folder's own handle
    return paths


def _wait_for_leader(sign: Path, *, leads: bool) -> None:
    """Wait for the leading rank: on a busy machine it may be seconds behind."""
    if leads:
        sign.touch()
    while not sign.exists():
        time.sleep(0.01)


def wait_for_disk() -> None:
    while True:
        signal.pause()


def main() -> None:
    what, rank = os.environ.get("FAKE_WORKER", "steps"), int(os.environ["RANK"])
    steps = int(os.environ.get("FAKE_STEPS", "1000000"))
    run = RunDir(Path(os.environ["RANKDECK_RUN"]))
    writer = run.writer(f"rank-{rank}", int(os.environ["RANKDECK_ATTEMPT"]))
    heartbeat = HeartbeatWriter(os.environ["RANKDECK_HEARTBEAT"], int(os.environ["RANK"]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if what == "deaf" else lambda *_: sys.exit(130))
    if what == "breeding":
        fork_children()
    writer.write(events.RankStarted(rank=rank, pid=os.getpid(), devices=[rank], uuids=[None]))
    print(json.dumps(facts()))
    if what == "speechless" and rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
    for step in range(1, steps + 1):
        heartbeat.beat(step, "step")
        if step == 3 and what == "raising":
            error: Exception = ValueError("bad batch 17") if rank == 1 else RuntimeError(_CLOSED)
            _wait_for_leader(run.path / "raising", leads=rank == 1)
            time.sleep(0.3 if rank == 1 else 0.0)
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            writer.write(describe_exception(error, rank))
            sys.exit(1)
        if step == 3 and what in ("exiting", "leaving") and rank == 1:
            print("the last thing that I say", file=sys.stderr)
            sys.exit(7 if what == "exiting" else 0)
        if step == 3 and what == "stuck" and os.environ["RANKDECK_ATTEMPT"] == "0":
            wait_for_disk()
        time.sleep(STEP_S)
    writer.write(events.RankEnded(rank=rank, reason="completed", step=steps))
    heartbeat.beat(steps, finished_phase(writer.num_unreported, writer.error_number))
    if what == "crashing":
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    main()
