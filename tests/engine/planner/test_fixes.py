"""Where nothing fits, a plan ends with what would fit, planned itself, or with how much is lacking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rankdeck.config import RunConfig, from_text
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.fixes import combined_fixes
from rankdeck.planner.pool import plan_candidates
from rankdeck.run.plan_lines import PlanLine, is_no_fit_advice

DEEP_MODEL = "gpt", "layers = 6, heads = 2, width = 32, context = 64, vocabulary = 64"
"""Activations are most of it."""
WIDE_MODEL = "mlp", "hidden = [512, 512, 512, 512, 512, 512, 512, 512]"
"""Weights are."""
ONE_LAYER_MODEL = "mlp", "hidden = [8192]"


def config(model: tuple[str, str], strategy: str = "single", batch: int = 16) -> RunConfig:
    text = f"""
model = {{ use = "{model[0]}", args = {{ {model[1]} }} }}
data = {{ use = "synthetic", args = {{ samples = 256 }} }}
strategy = {{ use = "{strategy}" }}
train = {{ global_batch = {batch} }}
"""
    return from_text(text, folder=Path.cwd())


def target(num_devices: int, capacity_bytes: int | None) -> Target:
    devices = (TargetDevice("Virtual", capacity_bytes),) * num_devices
    return Target(f"{num_devices} virtual devices", devices, like_cuda=False)


def plan_rows(base: RunConfig, on: Target, *rows: Candidate) -> list[PlanLine]:
    return list(plan_candidates(base, rows or [Candidate(base.strategy.use, configured=True)], on))


def fix_lines(base: RunConfig, on: Target, lines: Sequence[PlanLine]) -> list[PlanLine]:
    def plan(other: Target, rows: Sequence[Candidate]) -> Iterator[PlanLine]:
        return plan_candidates(base, rows, other)

    return list(combined_fixes(lines, base, on, plan))


def peak_bytes(base: RunConfig, on: Target, *rows: Candidate) -> int:
    (line,) = plan_rows(base, on, *rows)
    assert line.fullest_device is not None
    return line.fullest_device.total_bytes


def test_several_changes_are_combined() -> None:
    base, free = config(DEEP_MODEL), target(1, None)
    checkpointed = {"train.activation_checkpointing": True}
    accumulate = {"train.accumulate": 4}
    alone = [
        peak_bytes(base, free, Candidate("single", changes=changes)) for changes in (checkpointed, accumulate)
    ]
    both = peak_bytes(base, free, Candidate("single", changes=checkpointed | accumulate))
    assert both < 0.8 * min(alone)
    on = target(1, int(1.15 * both))
    (fix,) = fix_lines(base, on, plan_rows(base, on))
    assert fix.verdict == "fits" and fix.changes == checkpointed | accumulate and fix.configured
    assert (fix.advice or "").startswith(
        "single, train.activation_checkpointing = true, train.accumulate = 4 fits"
    )


def test_the_fewest_changes_are_chosen() -> None:
    base, free = config(DEEP_MODEL), target(1, None)
    checkpointed = {"train.activation_checkpointing": True}
    on = target(1, int(1.15 * peak_bytes(base, free, Candidate("single", changes=checkpointed))))
    (fix,) = fix_lines(base, on, plan_rows(base, on))
    assert fix.changes == checkpointed


def test_large_weights_are_sharded_over_more_devices() -> None:
    base = config(WIDE_MODEL)
    on = target(1, int(0.45 * peak_bytes(base, target(1, None))))
    (fix,) = fix_lines(base, on, plan_rows(base, on))
    assert fix.verdict in ("fits", "tight") and fix.strategy == "fsdp"
    assert fix.changes["devices.use"] == f"cpu:{len(fix.devices)}" and len(fix.devices) in (4, 8)
    assert f"on {len(fix.devices)} virtual devices" in (fix.advice or "")


def test_a_too_large_layer_reports_the_missing_memory() -> None:
    base = config(ONE_LAYER_MODEL)
    peak = peak_bytes(base, target(1, None))
    on = target(1, peak // 20)
    (last,) = fix_lines(base, on, plan_rows(base, on))
    assert is_no_fit_advice(last) and last.verdict == "does-not-fit"
    assert "cannot be trained on 1 virtual devices" in (
        last.advice or ""
    ) and "more on the fullest device" in (last.advice or "")


@pytest.mark.parametrize("capacity_bytes", [None, 2**40])
def test_no_fix_is_added_when_something_fits(capacity_bytes: int | None) -> None:
    base, on = config(WIDE_MODEL), target(1, capacity_bytes)
    assert fix_lines(base, on, plan_rows(base, on)) == []
