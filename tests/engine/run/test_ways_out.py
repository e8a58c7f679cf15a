"""The ways out are what the planner says needs less, the best first, one of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, TIGHT, PlanLine, PlannedDevice
from rankdeck.run.ways_out import kept_lines, ways_file, ways_out
from tests.helpers.written_run import MIB, WrittenRun

CAPACITY = 100 * MIB


def line(strategy: str, size: int, verdict: str = FITS, **more: Any) -> PlanLine:
    capacity = more.pop("capacity", CAPACITY)
    device = PlannedDevice(device=0, active_bytes=size * MIB, total_bytes=size * MIB, capacity_bytes=capacity)
    more = {"options": {}, **more}
    return PlanLine(strategy=strategy, label=strategy, verdict=verdict, devices=[device], **more)


OWN = line("dp", 120, DOES_NOT_FIT, configured=True)


def test_what_fits_comes_first_and_each_kind_once() -> None:
    found = ways_out(
        [
            OWN,
            line("ddp", 97, TIGHT),
            line("fsdp", 60, options={"reshard": False}),
            line("fsdp", 40),
            line("dp", 50, configured=True, changes={"train.precision": "bf16"}),
            line("dp", 70, configured=True, changes={"train.accumulate": 2}),
            line("single", 130, DOES_NOT_FIT),
            PlanLine(strategy="tensor", options={}, label="tensor", verdict=CANNOT),
        ]
    )
    # bf16 computes something else: it comes after what does not.
    assert [way.cure for way in found] == [
        {"strategy.use": "fsdp"}, {"train.accumulate": 2}, {"train.precision": "bf16"},
    ]  # fmt: skip
    assert [way.headroom for way in found] == ["60.0 MiB to spare", "30.0 MiB to spare", "50.0 MiB to spare"]
    assert (found[0].words, found[0].verdict, found[0].saves_bytes) == ("FSDP", "fits", 80 * MIB)


def test_without_a_capacity_only_the_difference_is_told_and_nothing_may_need_less() -> None:
    own, less = line("dp", 120, configured=True, capacity=None), line("ddp", 80, capacity=None)
    (way,) = ways_out([own, less])
    assert (way.headroom, way.verdict) == ("40.0 MiB less than now", "")
    assert ways_out([own]) == ways_out([less]) == ways_out([]) == []
    (lacking,) = ways_out([OWN, line("ddp", 110, DOES_NOT_FIT)])
    assert (lacking.headroom, lacking.verdict) == ("lacks 10.0 MiB", "does not fit")


def test_what_was_planned_is_kept_for_the_attempt_it_was_planned_for(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", "hungry")
    run.end("failed", 1)
    assert kept_lines(run.dir) is None
    ways_file(run.dir).write_bytes(b"".join(map(plan_lines.encode, [OWN, line("ddp", 80)])))
    kept = kept_lines(run.dir)
    assert kept is not None and [one.strategy for one in kept] == ["dp", "ddp"]
    ways_file(run.dir).write_bytes(b"\xff\xfe no plan")
    assert kept_lines(run.dir) is None
