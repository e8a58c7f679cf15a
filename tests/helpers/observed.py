"""A script that tells what an observed one would, without torch: heartbeats, a first event, stacks on a
signal. Then it does what its argument says.

    python observed.py RANK:STEP[:how] ...    how: hangs | leaves | works | computes
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from rankdeck import events
from rankdeck.base.heartbeat import HeartbeatWriter
from rankdeck.run_dir import RunDir


def main() -> None:
    rank, attempt = int(os.environ["RANK"]), os.environ["RANKDECK_ATTEMPT"]
    run = RunDir(Path(os.environ["RANKDECK_RUN"]))
    fields = dict(argument.split(":", 1) for argument in sys.argv[1:])[str(rank)].split(":")
    stacks = (run.logs_folder / f"rank-{rank}.{attempt}.stacks").open("ab")
    faulthandler.register(signal.SIGRTMIN + 3, file=stacks, all_threads=True, chain=False)
    started = events.RankStarted(
        rank=rank, pid=os.getpid(), devices=[rank], stack_signal=int(signal.SIGRTMIN) + 3
    )
    run.writer(f"rank-{rank}", int(attempt)).write(started)
    heartbeat = HeartbeatWriter(os.environ["RANKDECK_HEARTBEAT"], rank)
    for step in range(1, int(fields[0]) + 1):
        heartbeat.beat(step, "step")
        time.sleep(0.01)
    print("there", flush=True)
    how = fields[1]
    if how == "leaves":
        os._exit(0)
    while how == "computes":
        pass
    while how == "works":
        heartbeat.beat(int(fields[0]), "step")
        time.sleep(0.1)
    all_reduce() if how == "hangs" else wait_for_disk()


def all_reduce() -> None:
    while True:
        signal.pause()  # the signal for stacks wakes it too


def wait_for_disk() -> None:
    while True:
        signal.pause()


main()
