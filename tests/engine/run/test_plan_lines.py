"""Lines of a plan: verdicts, marks, and the way through JSON."""

from __future__ import annotations

from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import PlanLine, PlannedDevice, StepTime

GIB = 2**30


def line(
    label: str, *total_gib: float, low_s: float = 1.0, high_s: float = 2.0, capacity_gib: int = 24
) -> PlanLine:
    devices = [
        PlannedDevice(
            device=index,
            active_bytes=round(total * GIB),
            total_bytes=round(total * GIB),
            capacity_bytes=capacity_gib * GIB,
        )
        for index, total in enumerate(total_gib)
    ]
    verdict, reason = plan_lines.verdict_of(devices)
    step = StepTime(low_s=low_s, high_s=high_s)
    return PlanLine(
        strategy=label,
        options={},
        label=label,
        verdict=verdict,
        reason=reason,
        devices=devices,
        step=step,
    )


def test_the_fullest_device_decides() -> None:
    found = line("dp", 25, 3)
    assert found.verdict == "does-not-fit"
    assert found.reason == "device 0 lacks 1.0 GiB: it would need 25.0 GiB."
    assert line("ddp", 23, 3).verdict == "tight"
    assert line("fsdp", 12, 3).verdict == "fits"


def test_other_processes_take_room() -> None:
    device = PlannedDevice(
        device=1, active_bytes=0, total_bytes=20 * GIB, capacity_bytes=24 * GIB, others_bytes=6 * GIB
    )
    verdict, reason = plan_lines.verdict_of([device])
    assert verdict == "does-not-fit"
    assert reason is not None and "beside 6.0 GiB of other processes" in reason


def test_without_a_capacity_everything_fits() -> None:
    assert plan_lines.verdict_of([PlannedDevice(device=0, active_bytes=1, total_bytes=10**15)]) == (
        "fits",
        None,
    )


def test_virtual_devices_share_what_this_machine_has_left() -> None:
    devices = [PlannedDevice(device=index, active_bytes=1, total_bytes=6 * GIB) for index in range(4)]
    assert plan_lines.verdict_of(devices, 24 * GIB) == ("fits", None)
    verdict, reason = plan_lines.verdict_of(devices, 23 * GIB)
    assert verdict == "does-not-fit"
    assert reason == "The devices need 24.0 GiB of this machine's memory together, which has 23.0 GiB left."


def test_recommended_is_the_fastest_that_fits_and_of_equals_the_smallest() -> None:
    lines = [
        line("single", 30, low_s=4, high_s=8),
        line("dp", 20, 5, low_s=2, high_s=4),
        line("ddp", 12, 12, low_s=1, high_s=2),
        line("fsdp", 8, 8, low_s=1.2, high_s=2.4),
        line("model", 4, 4, low_s=5, high_s=9),
    ]
    found = plan_lines.marks(lines)
    assert lines[found.cheapest or 0].label == "model"
    assert lines[found.recommended or 0].label == "fsdp"


def test_nothing_is_recommended_where_nothing_fits() -> None:
    found = plan_lines.marks([line("single", 30), line("dp", 40)])
    assert found.recommended is None and found.cheapest == 0


def test_a_line_survives_json() -> None:
    before = line("ddp", 1.5)
    assert plan_lines.decode(plan_lines.encode(before)) == before
