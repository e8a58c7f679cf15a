"""An entry of a race that needs no torch. FAKE_RACE is JSON: by strategy what its ranks do.

    {"single": {"step_s": 0.1, "loss": 2.0}, "ddp": {"ends": "failing"}, "dp": {"ends": "hanging"}}

Rank 0 tells a loss that falls from `loss` on, and steps that took `step_s`; `again_s` is what they take where
the race's folder has a run of the strategy already. failing: out of memory; hanging: beats until it is ended.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import HeartbeatWriter
from rankdeck.run_dir import FIRST_STEPS_KEY, EventWriter, RunDir

PEAK_BYTES = 4096


def main() -> None:
    run, rank = RunDir(Path(os.environ["RANKDECK_RUN"])), int(os.environ["RANK"])
    strategy = run.name.partition("-")[2]
    behaviour = json.loads(os.environ["FAKE_RACE"])[strategy]
    writer = run.writer(f"rank-{rank}", int(os.environ["RANKDECK_ATTEMPT"]))
    writer.write(events.RankStarted(rank=rank, pid=os.getpid(), devices=[rank], uuids=[None]))
    heartbeat = HeartbeatWriter(os.environ["RANKDECK_HEARTBEAT"], rank)
    while behaviour.get("ends") == "hanging":
        heartbeat.beat(1, "step")
        time.sleep(0.01)
    if behaviour.get("ends") == "failing":
        problem = Problem("out-of-memory", "Device 0 ran out of memory.", advice="Use fsdp.", rank=rank)
        writer.write(events.RankFailed(rank=rank, problem=problem))
        raise SystemExit(1)
    is_again = len(list(run.path.parent.glob(f"*-{strategy}"))) > 1
    step_s = behaviour.get("again_s", behaviour["step_s"]) if is_again else behaviour["step_s"]
    _train(writer, rank, run.environment()[FIRST_STEPS_KEY], step_s, behaviour["loss"])


def _train(writer: EventWriter, rank: int, steps: int, step_s: float, loss: float) -> None:
    now = time.time()
    writer.write(events.Restored(rank=rank, step=0))
    writer.write(
        events.Steps(
            rank=rank,
            first=1,
            loss_sum=[4 * loss / step for step in range(1, steps + 1)] if rank == 0 else None,
            count=[4.0] * steps if rank == 0 else None,
            lr=[0.1] * steps,
            samples=[4] * steps,
            step_s=[step_s * (1 + 0.001 * (step % 3)) for step in range(steps)],
            ended=[now + step_s * step for step in range(steps)],
        )
    )
    peak = events.DeviceMemory(device=rank, live_bytes=PEAK_BYTES, peak_bytes=PEAK_BYTES)
    writer.write(events.Memory(rank=rank, step=2, source=events.MEASURED_ON_GPU, devices=[peak]))
    writer.write(events.RankEnded(rank=rank, reason="completed", step=steps), sync=True)


if __name__ == "__main__":
    main()
