"""An alert comes for a difference that costs something, names its causes, and does not flicker."""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings.machine import ImbalanceAlert, causes
from rankdeck.run.imbalance import imbalance_of

MIB = 1 << 20
LABELS = {0: "Virtual 0", 1: "Virtual 1", 2: "Virtual 2"}
KINDS = {
    0: {"parameters": 10 * MIB, "optimizer": 20 * MIB, "gathered": 70 * MIB},
    1: {"parameters": 10 * MIB},
    2: {"parameters": 10 * MIB, "activations": 2 * MIB},
}


def look(alert: ImbalanceAlert, lead_mib: float, strategy: str = "dp") -> Problem | None:
    found = imbalance_of({0: int(lead_mib * MIB), 1: 10 * MIB, 2: 10 * MIB})
    return alert.look(found, LABELS, KINDS, strategy)


def test_it_says_how_far_of_what_and_what_to_do() -> None:
    problem = look(ImbalanceAlert(), 100)
    assert problem is not None and problem.severity == "warning"
    expected = "Virtual 0 holds 90.0 MiB more than the median of the others (10.0×): "
    assert problem.message == expected + "gathered outputs +70.0 MiB, optimizer +20.0 MiB."
    assert problem.advice is not None and "DDP" in problem.advice


def test_the_parts_sum_to_the_whole() -> None:
    kinds = {
        0: {"gathered": 90 * MIB, "optimizer": 30 * MIB},
        1: {"inputs": 20 * MIB},
        2: {"inputs": 20 * MIB},
    }
    found = imbalance_of({0: 120 * MIB, 1: 20 * MIB, 2: 20 * MIB})
    problem = ImbalanceAlert().look(found, LABELS, kinds, "dp")
    assert problem is not None and "holds 100.0 MiB more" in problem.message
    assert problem.message.endswith(
        ": gathered outputs +90.0 MiB, optimizer +30.0 MiB, other kinds −20.0 MiB."
    )


def test_even_devices_and_small_bytes_are_no_problem() -> None:
    assert look(ImbalanceAlert(), 14) is None
    tiny = imbalance_of({0: 9000, 1: 10})
    assert ImbalanceAlert().look(tiny, LABELS, {}, "dp") is None
    assert ImbalanceAlert().look(None, LABELS, {}, "single") is None


def test_it_stays_until_the_difference_is_clearly_gone() -> None:
    alert = ImbalanceAlert()
    assert look(alert, 14) is None
    assert look(alert, 16) is not None
    assert look(alert, 14) is not None, "1.4 is not yet calm"
    assert look(alert, 12) is None
    assert look(alert, 14) is None


def test_its_figures_follow_larger_changes_only() -> None:
    alert = ImbalanceAlert()
    first = look(alert, 100)
    assert look(alert, 102) is first
    assert look(alert, 120) is not first


def test_causes_are_what_the_lead_holds_above_the_others() -> None:
    assert causes(KINDS, 0) == [("gathered", 70 * MIB), ("optimizer", 20 * MIB)]
    assert causes({0: {"parameters": 1}}, 0) == [] and causes({}, 0) == []


def test_it_brings_the_cure_where_the_strategy_can_be_changed() -> None:
    found = imbalance_of({0: 100 * MIB, 1: 10 * MIB, 2: 10 * MIB})
    cures = [
        problem.cure
        for strategy, can_change in (("dp", True), ("dp", False), ("model", True))
        if (problem := ImbalanceAlert().look(found, LABELS, KINDS, strategy, can_change=can_change))
    ]
    assert cures == [{"strategy.use": "ddp"}, {}, {}]
