"""Schedules that are over too early or step too rarely are reported, with the step; healthy ones are not."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_SCRIPT = """
import math
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
x = torch.randn(32, 8)
groups = [{{"params": net[0].parameters()}}, {{"params": net[2].parameters()}}]
optimizer = torch.optim.SGD({parameters}, {rate})
schedule = {schedule}
for step in range({steps}):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), x[:, :1]).backward()
    optimizer.step()
    {after}
"""
_STEP = "schedule.step()"
_TWICE = "schedule.step(); schedule.step()"
_PER_EPOCH = "if step % 20 == 19: schedule.step()"


def _script(
    schedule: str, steps: int, after: str = _STEP, parameters: str = "net.parameters()", rate: str = "0.01"
) -> str:
    return _SCRIPT.format(schedule=schedule, steps=steps, after=after, parameters=parameters, rate=rate)


_LINEAR = "schedules.LambdaLR(optimizer, lambda n: max(0.0, 1 - n / 60))"
_WARM = "schedules.LambdaLR(optimizer, lambda n: min(n / 10, max(0.0, (60 - n) / 50)))"
_BY_HAND = "optimizer.param_groups[0]['lr'] = "

_CASES: dict[str, tuple[str, set[str]]] = {
    "twice per step": (_script(_LINEAR, 60, _TWICE), {"scheduler-steps-often"}),
    "per micro-batch": (
        _script("schedules.PolynomialLR(optimizer, 60)", 60, "for _ in range(4): schedule.step()"),
        {"scheduler-steps-often"},
    ),
    "a cosine twice": (
        _script("schedules.CosineAnnealingLR(optimizer, 100)", 100, _TWICE), {"scheduler-steps-often"},
    ),
    "too short": (_script(_LINEAR, 90), {"rate-zero"}),
    "too short after a warm-up": (_script(_WARM, 90), {"rate-zero"}),
    "too short in sequence": (
        _script(
            "schedules.SequentialLR(optimizer, [schedules.LinearLR(optimizer, 0.1, total_iters=10), "
            "schedules.PolynomialLR(optimizer, 50)], [10])", 100,
        ),
        {"rate-zero"},
    ),
    "too short by hand": (
        _script("None", 90, _BY_HAND + "0.01 * max(0, 1 - step / 59)"), {"rate-zero"},
    ),
    "too short as a tensor": (_script(_LINEAR, 90, rate="torch.tensor(0.01)"), {"rate-zero"}),
    "too short in epochs": (_script("schedules.PolynomialLR(optimizer, 3)", 100, _PER_EPOCH), {"rate-zero"}),
    "steps per epoch": (
        _script("schedules.CosineAnnealingLR(optimizer, 60)", 60, _PER_EPOCH), {"scheduler-steps-rarely"},
    ),
    "a sequence per epoch": (
        _script(
            "schedules.SequentialLR(optimizer, [schedules.LinearLR(optimizer, 0.1, total_iters=10), "
            "schedules.CosineAnnealingLR(optimizer, 50)], [10])", 60, _PER_EPOCH,
        ),
        {"scheduler-steps-rarely"},
    ),
    "a sequence of epochs": (
        _script(
            "schedules.SequentialLR(optimizer, [schedules.LinearLR(optimizer, 0.1, total_iters=1), "
            "schedules.CosineAnnealingLR(optimizer, 2)], [1])", 60, _PER_EPOCH,
        ),
        set(),
    ),
    "a sequence without an end": (
        _script(
            "schedules.SequentialLR(optimizer, [schedules.LinearLR(optimizer, 0.1, total_iters=10), "
            "schedules.ExponentialLR(optimizer, 0.9)], [10])", 60, _PER_EPOCH,
        ),
        set(),
    ),
    "never above zero": (
        _script("schedules.LambdaLR(optimizer, lambda n: min(1, (n + 1) // 1000))", 120), {"rate-zero"},
    ),
    "never above zero in a short run": (
        _script("None", 40, "", "groups", "0.0"), {"rate-zero"},
    ),
    "at zero for a few steps": (_script("None", 15, "", rate="0.0"), set()),
    "half the groups at zero": (
        _script("None", 40, _BY_HAND + "0.0; optimizer.param_groups[1]['lr'] = 0.1", "groups"), set(),
    ),
    "halved in each step": (_script("schedules.StepLR(optimizer, 1, 0.5)", 90), {"rate-zero"}),
    "a long warm-up of epochs": (
        _script(
            "schedules.LambdaLR(optimizer, lambda n: min(1, n / 2))", 80, "if step == 60: schedule.step()"
        ),
        set(),
    ),
    "decays to a thousandth": (_script("schedules.ExponentialLR(optimizer, 0.92)", 100), set()),
    "as long": (_script(_LINEAR, 60), set()),
    "as long after a warm-up": (_script(_WARM, 60), set()),
    "a few steps too short": (_script(_LINEAR, 64), set()),
    "long enough for two steps": (
        _script("schedules.LambdaLR(optimizer, lambda n: max(0.0, 1 - n / 120))", 60, _TWICE), set(),
    ),
    "a warm-up from zero by epochs": (
        _script("schedules.LambdaLR(optimizer, lambda n: min(1, n / 2))", 100, _PER_EPOCH), set(),
    ),
    "warm restarts": (_script("schedules.CosineAnnealingWarmRestarts(optimizer, 10)", 100), set()),
    "cosine cycles": (_script("schedules.CosineAnnealingLR(optimizer, 10)", 100), set()),
    "cosine cycles of epochs": (
        _script("schedules.CosineAnnealingLR(optimizer, 2)", 130, _PER_EPOCH), set(),
    ),
    "a triangle": (_script("schedules.CyclicLR(optimizer, 0.0, 0.1, 5)", 100), set()),
    "a frozen group": (
        _script("None", 100, _BY_HAND + "0.01 * max(0, 1 - step / 20)", parameters="groups"), set(),
    ),
    "a frozen phase": (
        _script("None", 100, _BY_HAND + "0.01 if step < 20 or step > 70 else 0.0"), set(),
    ),
    "stopped early": (_script("schedules.CosineAnnealingLR(optimizer, 100)", 60, _PER_EPOCH), set()),
    "a warm-up per micro-batch": (
        _script(
            "schedules.LinearLR(optimizer, 0.1, total_iters=60)", 60, "for _ in range(4): schedule.step()"
        ),
        set(),
    ),
    "one cycle": (_script("schedules.OneCycleLR(optimizer, 0.1, total_steps=61)", 60), set()),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {name.replace(" ", "_"): script for name, (script, _) in _CASES.items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("schedules"))


def _anomalies(processes: dict[str, ObservedProcess], name: str) -> list[events.Anomaly]:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0, process.stderr
    assert process.disabled_parts() == {}
    return process.events_of_type(events.Anomaly)


@pytest.mark.parametrize("name", _CASES)
def test_only_schedules_that_do_not_fit_are_reported(
    processes: dict[str, ObservedProcess], name: str
) -> None:
    assert {event.code for event in _anomalies(processes, name)} == _CASES[name][1]


@pytest.mark.parametrize(
    ("name", "step", "ratio", "length", "counter"),
    [
        ("twice per step", 31, 2, 0, 60),
        ("per micro-batch", 16, 4, 60, 60),
        ("too short", 61, 1, 0, 60),
        ("too short in epochs", 61, None, 3, 3),
    ],
)  # fmt: skip
def test_the_first_step_at_zero_is_exact(
    processes: dict[str, ObservedProcess], name: str, step: int, ratio: int | None, length: int, counter: int
) -> None:
    (event,) = _anomalies(processes, name)
    numbers = event.numbers
    assert (event.step, numbers["length"], numbers["counter"]) == (step, length, counter)
    assert ratio is None or numbers["ratio"] == ratio
    assert event.line.endswith(".py:11")  # where the schedule was created
