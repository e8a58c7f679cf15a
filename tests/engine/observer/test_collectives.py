"""Collectives that a script calls itself are counted, and stay what they are for everybody else."""

from __future__ import annotations

from rankdeck import events
from rankdeck.observer.collectives import Calls
from tests.helpers.telling import found, telling


def _sum(field: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for event in telling().of(events.Collectives):
        for name, value in getattr(event, field).items():
            totals[name] = totals.get(name, 0) + value
    return totals


def test_calls_bytes_and_seconds_are_told_by_name() -> None:
    # What torch.compile traced, and what an object collective calls inside, are not the script's calls.
    assert _sum("calls") == {"all_reduce": 3, "barrier": 1, "all_gather_object": 1, "broadcast": 1}
    assert _sum("num_bytes") == {"all_reduce": 3 * 8 * 4, "broadcast": 0}
    assert all(0 < seconds < 30 for seconds in _sum("seconds").values())


def test_a_rank_inside_one_says_so_in_its_heartbeat() -> None:
    assert found()["phase"] == "collective all_gather_object"[:24]


def test_the_functions_are_pickled_and_inspected_as_before() -> None:
    assert found()["pickled"] is True
    assert found()["signature"] == ["tensor", "op", "group", "async_op"]


def test_a_compiled_collective_stays_in_one_graph() -> None:
    assert found()["compiled"] == [3.0, 3.0]
    assert found()["frames"] == 1


def test_a_traceback_through_one_shows_what_it_shows_alone() -> None:
    assert found()["tracebacks"].count("Traceback") == 2
    assert "rankdeck/observer" not in found()["tracebacks"]


def test_nothing_called_is_nothing_told() -> None:
    calls = Calls()
    assert calls.take() is None
    calls.add("barrier", None, 0.25)
    assert calls.take() == {"calls": {"barrier": 1}, "num_bytes": {}, "seconds": {"barrier": 0.25}}
    assert calls.take() is None
