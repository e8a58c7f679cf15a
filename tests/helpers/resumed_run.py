"""A run of two minutes ago that was resumed, each line at a time of its own, for whoever looks back at it."""

from __future__ import annotations

import time
from pathlib import Path

from rankdeck import events
from rankdeck.base.errors import Problem
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos, write_backdated

STEP_S = 0.5
NUM_STEPS, LAST_KEPT = 40, 20
PAUSE_S = 10.0


def loss_of(step: int, attempt: int) -> float:
    return 5.0 - 0.05 * step - attempt


def bytes_of(step: int, device: int) -> int:
    """Device 0 holds twice as much, and all of them more with every step."""
    return (2 if device == 0 else 1) * (100 + step) * MIB


def write_resumed(runs: Path, num_devices: int = 2) -> WrittenRun:
    """NUM_STEPS steps of STEP_S, of which a second attempt trained those behind KEPT again, BETWEEN_S later.

    `started` is that of the first; step s of it ended s * STEP_S later. At step 30 there was a problem.
    """
    run = WrittenRun(runs)
    run.started = time.time() - 120.0
    run.start(devices=device_infos(num_devices))
    run.start(devices=device_infos(num_devices), attempt=1)
    again = second_start_time(run)
    lines = [(run.started + 0.1, events.RankStarted(rank=0, pid=1, devices=list(range(num_devices))))]
    lines += [(run.started + 0.2, VERIFIED["equal"])]
    lines += [
        line for step in range(1, NUM_STEPS + 1) for line in _step_events(run.started, step, 0, num_devices)
    ]
    second_lines = [(again + 0.1, events.RankStarted(rank=0, pid=2, devices=list(range(num_devices))))]
    second_lines += [(again + 0.2, events.Restored(rank=0, step=LAST_KEPT))]
    second_lines += [
        line
        for step in range(LAST_KEPT + 1, NUM_STEPS + 1)
        for line in _step_events(again, step, 1, num_devices)
    ]
    for attempt, (attempt_lines, start_time) in enumerate(((lines, run.started), (second_lines, again))):
        started = events.RunStarted(
            run=run.dir.name,
            attempt=attempt,
            strategy="dp",
            world_size=1,
            devices=device_infos(num_devices),
            steps=NUM_STEPS,
            global_batch=32,
            started=start_time,
        )
        supervised: list[tuple[float, events.Event]] = [(start_time, started)]
        if attempt == 0:
            end = events.RunEnded(outcome="stopped", exit_code=0, attempt=0)
            supervised.append((run.started + NUM_STEPS * STEP_S + 1, end))
        write_backdated(run.dir.events_folder / f"rank-0.{attempt}.jsonl", list(attempt_lines))
        write_backdated(run.dir.events_folder / f"supervisor.{attempt}.jsonl", supervised)
    return run


def second_start_time(run: WrittenRun) -> float:
    """When the second attempt began; step s of it ended (s - KEPT) * STEP_S later."""
    return run.started + NUM_STEPS * STEP_S + PAUSE_S


def _step_events(
    start_time: float, step: int, attempt: int, num_devices: int
) -> list[tuple[float, events.Event]]:
    """What is told of a step; it ends, and a moment later it is written."""
    ended = start_time + STEP_S * (step - LAST_KEPT * attempt)
    step_events: list[events.Event] = [
        events.Steps(
            rank=0, first=step, loss_sum=[32 * loss_of(step, attempt)], count=[32.0], lr=[1e-3], samples=[32],
            step_s=[STEP_S], ended=[ended],
        )
    ]  # fmt: skip
    sample = [
        events.DeviceSample(device_index, utilisation=step / 100) for device_index in range(num_devices)
    ]
    step_events.append(events.Sample(devices=sample, interval_s=STEP_S))
    if step % 5 == 0:
        sizes = [bytes_of(step, device) for device in range(num_devices)]
        memory = [
            events.DeviceMemory(device, size // 2, size, peak_by_kind={"activations": size})
            for device, size in enumerate(sizes)
        ]
        step_events.append(
            events.Memory(rank=0, step=step, source=events.MEASURED_IN_REHEARSAL, devices=memory)
        )
        step_events.append(
            events.Spans(
                rank=0, step=step, began=ended - STEP_S, seconds=STEP_S, names=["forward"], name=[0],
                device=[0], start_us=[0], duration_us=[1000 * step],
            )
        )  # fmt: skip
    if step == 30 and attempt == 0:
        step_events.append(
            events.ProblemRaised(problem=Problem("slow", "Step 30 was slow.", severity="warning"))
        )
    return [(ended + 0.01, event) for event in step_events]
