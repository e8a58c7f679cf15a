"""Collectives that a script calls itself are counted, and stay what they are for everybody else."""

from __future__ import annotations

from rankdeck import events
from rankdeck.observer.collectives import CollectiveCalls
from tests.helpers.logging_script import expected_values, logging_run


def _sum(field: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for event in logging_run().events_of_type(events.Collectives):
        for name, value in getattr(event, field).items():
            totals[name] = totals.get(name, 0) + value
    return totals


def test_events_hold_calls_bytes_and_seconds_by_collective() -> None:
    # What torch.compile traced, and what an object collective calls inside, are not the script's calls.
    assert _sum("calls") == {"all_reduce": 3, "barrier": 1, "all_gather_object": 1, "broadcast": 1}
    assert _sum("num_bytes") == {"all_reduce": 3 * 8 * 4, "broadcast": 0}
    assert all(0 < seconds < 30 for seconds in _sum("seconds").values())


def test_the_heartbeat_names_the_running_collective() -> None:
    assert expected_values()["phase"] == "collective all_gather_object"[:24]


def test_wrapped_functions_keep_their_pickle_name_and_signature() -> None:
    assert expected_values()["pickled"] is True
    assert expected_values()["signature"] == ["tensor", "op", "group", "async_op"]


def test_a_compiled_collective_stays_in_one_graph() -> None:
    assert expected_values()["compiled"] == [3.0, 3.0]
    assert expected_values()["frames"] == 1


def test_tracebacks_show_no_frames_of_the_observer() -> None:
    assert expected_values()["tracebacks"].count("Traceback") == 2
    assert "rankdeck/observer" not in expected_values()["tracebacks"]


def test_no_calls_make_no_event() -> None:
    calls = CollectiveCalls()
    assert calls.take() is None
    calls.add("barrier", None, 0.25)
    assert calls.take() == {"calls": {"barrier": 1}, "num_bytes": {}, "seconds": {"barrier": 0.25}}
    assert calls.take() is None
