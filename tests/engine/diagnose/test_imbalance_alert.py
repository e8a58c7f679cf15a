"""An alert comes for a difference that costs something, names its causes, and does not flicker."""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings.machine import ImbalanceAlert, excess_by_kind
from rankdeck.run.imbalance import find_imbalance

MIB = 1 << 20
LABELS = {0: "Virtual 0", 1: "Virtual 1", 2: "Virtual 2"}
KINDS = {
    0: {"parameters": 10 * MIB, "optimizer": 20 * MIB, "gathered": 70 * MIB},
    1: {"parameters": 10 * MIB},
    2: {"parameters": 10 * MIB, "activations": 2 * MIB},
}


def update_alert(alert: ImbalanceAlert, lead_mib: float, strategy: str = "dp") -> Problem | None:
    imbalance = find_imbalance({0: int(lead_mib * MIB), 1: 10 * MIB, 2: 10 * MIB})
    return alert.update(imbalance, LABELS, KINDS, strategy)


def test_the_alert_has_excess_causes_and_advice() -> None:
    problem = update_alert(ImbalanceAlert(), 100)
    assert problem is not None and problem.severity == "warning"
    expected = "Virtual 0 holds 90.0 MiB more than the median of the other devices (10.0×): "
    assert problem.message == expected + "gathered outputs +70.0 MiB, optimizer +20.0 MiB."
    assert problem.advice is not None and "DDP" in problem.advice


def test_the_causes_sum_to_the_excess() -> None:
    kinds = {
        0: {"gathered": 90 * MIB, "optimizer": 30 * MIB},
        1: {"inputs": 20 * MIB},
        2: {"inputs": 20 * MIB},
    }
    imbalance = find_imbalance({0: 120 * MIB, 1: 20 * MIB, 2: 20 * MIB})
    problem = ImbalanceAlert().update(imbalance, LABELS, kinds, "dp")
    assert problem is not None and "holds 100.0 MiB more" in problem.message
    assert problem.message.endswith(
        ": gathered outputs +90.0 MiB, optimizer +30.0 MiB, other kinds −20.0 MiB."
    )


def test_even_devices_and_small_excess_raise_no_alert() -> None:
    assert update_alert(ImbalanceAlert(), 14) is None
    tiny = find_imbalance({0: 9000, 1: 10})
    assert ImbalanceAlert().update(tiny, LABELS, {}, "dp") is None
    assert ImbalanceAlert().update(None, LABELS, {}, "single") is None


def test_the_alert_stays_until_the_ratio_is_clearly_lower() -> None:
    alert = ImbalanceAlert()
    assert update_alert(alert, 14) is None
    assert update_alert(alert, 16) is not None
    assert update_alert(alert, 14) is not None, "1.4 is not yet calm"
    assert update_alert(alert, 12) is None
    assert update_alert(alert, 14) is None


def test_the_alert_ignores_small_changes() -> None:
    alert = ImbalanceAlert()
    first = update_alert(alert, 100)
    assert update_alert(alert, 102) is first
    assert update_alert(alert, 120) is not first


def test_causes_are_the_excess_of_the_lead_device() -> None:
    assert excess_by_kind(KINDS, 0) == [("gathered", 70 * MIB), ("optimizer", 20 * MIB)]
    assert excess_by_kind({0: {"parameters": 1}}, 0) == [] and excess_by_kind({}, 0) == []


def test_the_alert_includes_a_fix_when_the_strategy_can_change() -> None:
    imbalance = find_imbalance({0: 100 * MIB, 1: 10 * MIB, 2: 10 * MIB})
    cures = [
        problem.cure
        for strategy, can_change in (("dp", True), ("dp", False), ("model", True))
        if (problem := ImbalanceAlert().update(imbalance, LABELS, KINDS, strategy, can_change=can_change))
    ]
    assert cures == [{"strategy.use": "ddp"}, {}, {}]
