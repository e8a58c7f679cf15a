"""Who has not come to which collective, and whether all call the same ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankdeck.diagnose.stacks import CollectiveCall, calls_of, current, differing, missing, work_of


def call(number: int, kind: str = "all_reduce", shape: str = "4 Float", group: str = "0") -> CollectiveCall:
    return CollectiveCall(group, number, kind, shape)


def over(number: int) -> CollectiveCall:
    return CollectiveCall("0", number, "all_reduce", "4 Float", is_over=True)


def entry(**changes: Any) -> dict[str, Any]:
    told = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 6,
        "profiling_name": "gloo:_all_gather_base",
        "input_sizes": [[2, 3], []],
        "input_dtypes": ["Float", "Long"],
        "is_p2p": False,
        "retired": True,
    }
    return told | changes


def test_a_record_is_read_without_messages_between_two_ranks() -> None:
    record = json.dumps({"entries": [entry(), entry(is_p2p=True)]})
    assert calls_of(record) == [CollectiveCall("0", 6, "all_gather_base", "2x3 Float, 1 Long", is_over=True)]
    assert current(calls_of(record)) is None
    barrier = entry(profiling_name="gloo:barrier", input_sizes=[], input_dtypes=[], retired=False)
    assert current(calls_of(json.dumps({"entries": [barrier]}))) == CollectiveCall("0", 6, "barrier")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"entries": 3}', '{"entries": [{}]}'])
def test_what_is_no_record_has_no_calls(text: str) -> None:
    assert calls_of(text) == []


def test_the_first_number_that_is_not_the_same_everywhere_is_where_ranks_differ() -> None:
    assert differing({0: [over(5), call(6)], 1: [over(5), call(6)]}) == {}
    kinds = {0: [over(5), call(6)], 1: [over(5), call(6, "barrier", "")]}
    assert differing(kinds) == {0: call(6), 1: call(6, "barrier", "")}
    assert set(differing({0: [call(6)], 1: [call(6, shape="5 Float")]})) == {0, 1}
    gathers = {rank: [call(6, "gather", f"{rank} Float")] for rank in (0, 1)}
    assert differing(gathers) == {}, "ranks may pass tensors of their own shapes"
    assert differing({0: [call(6)], 1: [call(6, "barrier", "", group="1")]}) == {}


def test_whoever_has_not_come_to_a_number_is_missing() -> None:
    assert missing({0: [over(5), call(6)], 1: [over(5)], 2: [over(5), call(6)]}) == ([1], call(6))
    assert missing({0: [over(5), call(6)], 1: [over(5), call(6)]}) is None
    assert missing({0: [over(5), over(6)], 1: [over(5)]}) is None, "nobody waits for it"
    assert missing({0: [call(6)], 1: []}) is None, "nothing is known of it"
    assert missing({0: [over(6), call(7)], 1: [over(5), over(6)]}) == ([1], call(7)), "5 is no longer held"


def test_the_microbatch_that_a_rank_has_begun_last_is_told() -> None:
    told = work_of('{"entries": [], "microbatch": ["forward", 3]}')
    assert told == "forward of microbatch 3"
    for other in (
        "",
        "{}",
        '{"microbatch": null}',
        '{"microbatch": ["forward"]}',
        '{"microbatch": ["f", "x"]}',
    ):
        assert work_of(other) is None
