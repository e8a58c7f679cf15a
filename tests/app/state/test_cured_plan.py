"""What a cure would make of a run, in words that get fewer where there is less room."""

from __future__ import annotations

from rankdeck.run.plan_lines import FITS, LEAST, PlanLine, PlannedDevice
from rankdeck_app.state.cured_plan import CuredPlan

MIB = 2**20


def plan(**fields: object) -> CuredPlan:
    device = PlannedDevice(device=0, active_bytes=30 * MIB, total_bytes=31 * MIB)
    line = PlanLine(strategy="ddp", options={}, label="ddp", verdict=FITS, devices=[device])
    for name, value in fields.items():
        setattr(line, name, value)
    return CuredPlan("DDP", line)


def test_it_says_what_is_planned_and_that_it_is_predicted() -> None:
    assert plan().in_words(30 * MIB) == (
        "with DDP: 30.0 MiB on the fullest device, predicted",
        "with DDP: 30.0 MiB, predicted",
        "30.0 MiB, predicted",
    )
    # Of a bound no bar is drawn: the planner's own figure stands in.
    assert plan(is_bound=True, bound=LEAST).in_words(0)[0].startswith("with DDP: at least 31.0 MiB")


def test_what_is_not_known_is_said() -> None:
    assert CuredPlan("DDP").in_words(0)[0] == "with DDP: being planned…"
    assert CuredPlan("DDP", why_not="its code is not trusted").in_words(0) == (
        "with DDP: its code is not trusted", "with DDP: not known",
    )  # fmt: skip
