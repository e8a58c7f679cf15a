"""Which entries start, on which devices, and what the others wait for."""

from __future__ import annotations

import pytest

from rankdeck.queue.admission import BACKFILL_S, decide
from rankdeck.queue.devices import QueueDevice
from rankdeck.queue.entry import Entry, Need, Start

GIB = 2**30
NOW = 1_800_000_000.0


def gpu(index: int, busy: str = "", free_gib: int | None = 80, *, instance: bool = False) -> QueueDevice:
    free_bytes = None if free_gib is None else free_gib * GIB
    return QueueDevice(f"GPU-{index}", f"GPU {index}", "gpu", str(index), instance, free_bytes, busy)


def slot(index: int, busy: str = "") -> QueueDevice:
    return QueueDevice(f"cpu-slot-{index}", f"CPU slot {index}", "cpu", str(index), busy=busy)


def entry(number: int, num_gpus: int = 1, **facts: object) -> Entry:
    need = facts.pop("need", Need("gpu", num_gpus))
    options = {"position": float(number), **facts}
    return Entry(number, f"k{number}", f"e{number}", "train", [], "/", "/", "python", need, NOW, **options)  # type: ignore[arg-type]


def starts(entries: list[Entry], devices: list[QueueDevice], **options: bool) -> dict[int, list[str]]:
    decision = decide(entries, devices, NOW, **options)
    return {entry.number: [device.lease for device in chosen] for entry, chosen in decision.starts}


def waits(entries: list[Entry], devices: list[QueueDevice], **options: bool) -> dict[int, str]:
    return {number: str(text) for number, text in decide(entries, devices, NOW, **options).waits.items()}


def ended(*outcomes: str) -> list[Start]:
    return [Start(NOW - 100, ["GPU-0"], "/runs/a", outcome=outcome) for outcome in outcomes]


def test_entries_start_in_their_order_until_no_device_is_free() -> None:
    entries = [entry(1), entry(2, 2), entry(3)]
    assert starts(entries, [gpu(0), gpu(1), gpu(2)]) == {1: ["GPU-0"], 2: ["GPU-1", "GPU-2"]}


def test_a_higher_priority_comes_first_and_a_position_decides_among_equals() -> None:
    entries = [entry(1), entry(2, priority=1), entry(3, priority=1, position=0.5)]
    assert list(starts(entries, [gpu(0), gpu(1)])) == [3, 2]


def test_a_smaller_entry_overtakes_one_that_lacks_devices_for_half_an_hour() -> None:
    devices = [gpu(0), gpu(1, "is used by the run a")]
    since = NOW - BACKFILL_S
    assert starts([entry(1, 2), entry(2)], devices) == {2: ["GPU-0"]}
    assert starts([entry(1, 2, blocked_since=since + 1), entry(2)], devices) == {2: ["GPU-0"]}
    late = [entry(1, 2, blocked_since=since), entry(2), entry(3, need=Need("cpu", 1))]
    assert starts(late, [*devices, slot(0)]) == {3: ["cpu-slot-0"]}
    assert waits(late, [*devices, slot(0)])[2] == (
        "waiting for 1 GPU: GPU 0 is kept for an earlier entry, GPU 1 is used by the run a"
    )


def test_devices_are_kept_only_for_the_first_entry_that_lacks_them() -> None:
    since = NOW - 2 * BACKFILL_S
    named = Need("gpu", 1, ["1"])
    devices = [gpu(0), gpu(1, "is used by the run a")]
    entries = [entry(1, need=named, blocked_since=since), entry(2, 2, blocked_since=since), entry(3)]
    assert starts(entries, devices) == {3: ["GPU-0"]}


@pytest.mark.parametrize(
    ("need", "devices", "chosen"),
    [
        (Need("gpu", 1), [gpu(0, "x"), gpu(1)], ["GPU-1"]),
        (Need("gpu", 2), [gpu(0), gpu(1, "x")], None),
        (Need("gpu", 2, ["2", "0"]), [gpu(0), gpu(1), gpu(2)], ["GPU-2", "GPU-0"]),
        (Need("gpu", 1, ["GPU-1"]), [gpu(0), gpu(1)], ["GPU-1"]),
        (Need("gpu", 1, ["1"]), [gpu(0), gpu(1, "x")], None),
        (Need("gpu", 1, ["7"]), [gpu(0)], None),
        (Need("gpu", 0), [gpu(0), gpu(1, "x"), gpu(2)], ["GPU-0", "GPU-2"]),
        (Need("gpu", 0), [gpu(0, "x")], None),
        (Need("gpu", 1), [gpu(0, instance=True)], None),
        (Need("gpu", 1, ["GPU-0"]), [gpu(0, instance=True)], ["GPU-0"]),
        (Need("gpu", 1, free_bytes=40 * GIB), [gpu(0, free_gib=39), gpu(1, free_gib=40)], ["GPU-1"]),
        (Need("gpu", 1, free_bytes=20 * GIB), [gpu(0, free_gib=80), gpu(1, free_gib=24)], ["GPU-1"]),
        (Need("gpu", 1, free_bytes=20 * GIB), [gpu(0, free_gib=None)], ["GPU-0"]),
        (Need("gpu", 1, ["0"], free_bytes=40 * GIB), [gpu(0, free_gib=8), gpu(1)], None),
        (Need("gpu", 1), [slot(0)], None),
        (Need("cpu", 1), [gpu(0), slot(0, "x"), slot(1)], ["cpu-slot-1"]),
        (Need("cpu", 2), [slot(0, "x"), slot(1)], None),
        (Need("cpu", 8), [slot(0), slot(1)], ["cpu-slot-0", "cpu-slot-1"]),
        (Need("cpu", 8), [slot(0), slot(1, "x")], None),
    ],
)  # fmt: skip
def test_the_devices_that_an_entry_gets(
    need: Need, devices: list[QueueDevice], chosen: list[str] | None
) -> None:
    assert starts([entry(1, need=need)], devices).get(1) == chosen


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"is_held": True}, "held; release it with: rankdeck queue release 1"),
        ({"not_before": NOW + 3600}, "starts at "),
        ({"after": [2]}, "waiting for entry 2 to complete"),
        ({"after": [3]}, "cannot start: entry 3, which it follows, is failed"),
        ({"after": [9]}, "cannot start: entry 9, which it follows, is missing"),
        ({"num_gpus": 2}, "waiting for 2 GPUs: GPU 1 is lost"),
        ({"num_gpus": 3}, "waiting for 3 GPUs: this machine has 2"),
        (
            {"need": Need("gpu", 1, ["0"], 90 * GIB)},
            "waiting for 1 GPU: GPU 0 has 80.0 GiB of free memory, but 90.0 GiB are needed",
        ),
        ({"need": Need("cpu", 2)}, "waiting for 2 CPU slots: CPU slot 0 is used by the run b"),
    ],
)
def test_what_an_entry_waits_for(facts: dict[str, object], text: str) -> None:
    devices = [gpu(0), gpu(1, "is lost"), slot(0, "is used by the run b"), slot(1)]
    running = entry(2, starts=[Start(NOW, ["GPU-9"])])
    entries = [entry(1, **facts), running, entry(3, starts=ended("failed"))]  # type: ignore[arg-type]
    assert starts(entries, devices) == {}
    assert waits(entries, devices)[1].startswith(text)


def test_a_paused_queue_starts_nothing_and_says_so() -> None:
    assert starts([entry(1)], [gpu(0)], is_paused=True) == {}
    assert waits([entry(1)], [gpu(0)], is_paused=True)[1].startswith("the queue is paused")


@pytest.mark.parametrize(
    ("outcomes", "facts", "state"),
    [
        ([], {}, "waiting"),
        (["completed"], {"retries": 2}, "completed"),
        (["failed"], {}, "failed"),
        (["failed"], {"retries": 1}, "waiting"),
        (["failed", "failed"], {"retries": 1}, "failed"),
        (["failed", "completed"], {"retries": 1}, "completed"),
        (["stopped"], {"retries": 1}, "stopped"),
        (["not-started"], {}, "waiting"),
        (["not-started"] * 9, {}, "waiting"),
        (["failed", "not-started"], {"retries": 1}, "waiting"),
        (["completed", "not-started"], {}, "completed"),
        (["lost"], {}, "waiting"),
        (["lost"] * 3, {}, "waiting"),
        (["lost"] * 4, {}, "failed"),
        (["lost", "failed"], {}, "failed"),
        (["lost"], {"is_held": True}, "held"),
        (["lost"], {"is_removed": True}, "removed"),
    ],
)
def test_an_entry_starts_again_only_as_its_policy_says(
    outcomes: list[str], facts: dict[str, object], state: str
) -> None:
    tried = entry(1, starts=ended(*outcomes), **facts)  # type: ignore[arg-type]
    assert tried.state == state
    assert (starts([tried], [gpu(0)]) == {1: ["GPU-0"]}) == (state == "waiting")
