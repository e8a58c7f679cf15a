"""Fixes are what a configuration can take; of a run out of memory what needs less, the best first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import Problem
from rankdeck.config import RunConfig, from_dict
from rankdeck.diagnose.fixes import (
    apply_changes,
    cli_options,
    fixes_file,
    planned_fixes,
    read_planned_lines,
    with_fix,
)
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, TIGHT, PlanLine, PlannedDevice
from tests.helpers.written_run import MIB, WrittenRun

FOLDER = Path("/somewhere")
CAPACITY = 100 * MIB


def line(strategy: str, size: int, verdict: str = FITS, **more: Any) -> PlanLine:
    capacity = more.pop("capacity", CAPACITY)
    device = PlannedDevice(device=0, active_bytes=size * MIB, total_bytes=size * MIB, capacity_bytes=capacity)
    more = {"options": {}, **more}
    return PlanLine(strategy=strategy, label=strategy, verdict=verdict, devices=[device], **more)


OWN = line("dp", 120, DOES_NOT_FIT, configured=True)


def test_fixes_that_fit_come_first_and_once() -> None:
    fixes = planned_fixes(
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
    assert [fix.changes for fix in fixes] == [
        {"strategy.use": "fsdp"}, {"train.accumulate": 2}, {"train.precision": "bf16"},
    ]  # fmt: skip
    assert [fix.headroom for fix in fixes] == ["60.0 MiB to spare", "30.0 MiB to spare", "50.0 MiB to spare"]
    assert (fixes[0].text, fixes[0].verdict, fixes[0].saves_bytes) == ("FSDP", "fits", 80 * MIB)


def test_without_a_capacity_fixes_show_the_difference() -> None:
    current, less = line("dp", 120, configured=True, capacity=None), line("ddp", 80, capacity=None)
    (fix,) = planned_fixes([current, less])
    assert (fix.headroom, fix.verdict) == ("40.0 MiB less than now", "")
    assert planned_fixes([current]) == planned_fixes([less]) == planned_fixes([]) == []
    (lacking,) = planned_fixes([OWN, line("ddp", 110, DOES_NOT_FIT)])
    assert (lacking.headroom, lacking.verdict) == ("10.0 MiB short", "does not fit")


def test_planned_lines_are_saved_per_attempt(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", "hungry")
    run.end("failed", 1)
    assert read_planned_lines(run.dir) is None
    fixes_file(run.dir).write_bytes(b"".join(map(plan_lines.encode, [OWN, line("ddp", 80)])))
    lines = read_planned_lines(run.dir)
    assert lines is not None and [row.strategy for row in lines] == ["dp", "ddp"]
    fixes_file(run.dir).write_bytes(b"\xff\xfe no plan")
    assert read_planned_lines(run.dir) is None


def small_config(**tables: Any) -> RunConfig:
    settings = {"model": {"use": "gpt"}, "data": {"use": "text"}, "devices": {"use": "cpu:2"}, **tables}
    return from_dict(settings, folder=FOLDER)


@pytest.mark.parametrize(
    ("code", "tables", "expected"),
    [
        ("out-of-memory", {}, {"train.activation_checkpointing": True}),
        ("over-capacity", {"train": {"activation_checkpointing": True}}, {"train.accumulate": 2}),
        ("out-of-memory", {"model": {"use": "mine.py:model"}}, {"train.accumulate": 2}),
        # Nothing is left to cut: the one device's excess goes.
        (
            "out-of-memory",
            {
                "train": {"activation_checkpointing": True, "global_batch": 2},
                "strategy": {"use": "dp"},
            },
            {"strategy.use": "ddp"},
        ),
        ("unused-parameters", {"strategy": {"use": "ddp"}}, {"strategy.find_unused_parameters": True}),
        ("unused-parameters", {"strategy": {"use": "dp"}}, {}),
        ("shared-memory", {"data": {"use": "text", "workers": 2}}, {"data.workers": 0}),
        ("shared-memory", {}, {}),
        ("loss-not-finite", {"train": {"clip_norm": 1.0}}, {}),
        ("rank-killed", {}, {}),
    ],
)
def test_a_problem_includes_its_fix(code: str, tables: dict[str, Any], expected: dict[str, Any]) -> None:
    config = small_config(**tables)
    problem = with_fix(Problem(code, "It failed."), config)
    assert problem.cure == expected and problem.message == "It failed."
    if expected:
        fixed = apply_changes(config, expected).to_dict()
        for dotted, value in expected.items():
            section, _, name = dotted.partition(".")
            assert fixed[section][name] == value


def test_rejected_fixes_are_dropped_and_strategies_replaced() -> None:
    config = small_config(strategy={"use": "dp", "parallel_loss": True})
    assert with_fix(Problem("config", "No.", cure={"train.global_batch": 3}), config).cure == {}
    fixed = apply_changes(config, {"strategy.use": "fsdp", "strategy.reshard": False})
    assert fixed.strategy.use == "fsdp" and fixed.strategy.options["reshard"] is False
    assert "parallel_loss" not in fixed.strategy.options
    assert cli_options({"strategy.use": "ddp", "train.accumulate": 2}) == [
        "--strategy", "ddp", "--set", "train.accumulate=2",
    ]  # fmt: skip
    assert cli_options({"train.precision": "bf16", "a.b": True}) == [
        "--set", 'train.precision="bf16"', "--set", "a.b=true",
    ]  # fmt: skip
