"""Who has not come to which collective, and whether all call the same ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankdeck.diagnose.stacks import (
    CollectiveCall,
    current_call,
    find_mismatch,
    find_missing_ranks,
    parse_calls,
    parse_microbatch,
)


def call(number: int, kind: str = "all_reduce", shape: str = "4 Float", group: str = "0") -> CollectiveCall:
    return CollectiveCall(group, number, kind, shape)


def finished_call(number: int) -> CollectiveCall:
    return CollectiveCall("0", number, "all_reduce", "4 Float", is_finished=True)


def entry(**changes: Any) -> dict[str, Any]:
    fields = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 6,
        "profiling_name": "gloo:_all_gather_base",
        "input_sizes": [[2, 3], []],
        "input_dtypes": ["Float", "Long"],
        "is_p2p": False,
        "retired": True,
    }
    return fields | changes


def test_point_to_point_messages_are_skipped() -> None:
    record = json.dumps({"entries": [entry(), entry(is_p2p=True)]})
    assert parse_calls(record) == [
        CollectiveCall("0", 6, "all_gather_base", "2x3 Float, 1 Long", is_finished=True)
    ]
    assert current_call(parse_calls(record)) is None
    barrier = entry(profiling_name="gloo:barrier", input_sizes=[], input_dtypes=[], retired=False)
    assert current_call(parse_calls(json.dumps({"entries": [barrier]}))) == CollectiveCall("0", 6, "barrier")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"entries": 3}', '{"entries": [{}]}'])
def test_invalid_records_have_no_calls(text: str) -> None:
    assert parse_calls(text) == []


def test_a_mismatch_is_the_first_number_with_different_calls() -> None:
    assert find_mismatch({0: [finished_call(5), call(6)], 1: [finished_call(5), call(6)]}) == {}
    kinds = {0: [finished_call(5), call(6)], 1: [finished_call(5), call(6, "barrier", "")]}
    assert find_mismatch(kinds) == {0: call(6), 1: call(6, "barrier", "")}
    assert set(find_mismatch({0: [call(6)], 1: [call(6, shape="5 Float")]})) == {0, 1}
    gathers = {rank: [call(6, "gather", f"{rank} Float")] for rank in (0, 1)}
    assert find_mismatch(gathers) == {}, "ranks may pass tensors of their own shapes"
    assert find_mismatch({0: [call(6)], 1: [call(6, "barrier", "", group="1")]}) == {}


def test_a_rank_that_has_not_entered_a_collective_is_missing() -> None:
    assert find_missing_ranks(
        {0: [finished_call(5), call(6)], 1: [finished_call(5)], 2: [finished_call(5), call(6)]}
    ) == ([1], call(6))
    assert find_missing_ranks({0: [finished_call(5), call(6)], 1: [finished_call(5), call(6)]}) is None
    assert find_missing_ranks({0: [finished_call(5), finished_call(6)], 1: [finished_call(5)]}) is None, (
        "nobody waits for it"
    )
    assert find_missing_ranks({0: [call(6)], 1: []}) is None, "nothing is known of it"
    assert find_missing_ranks({0: [finished_call(6), call(7)], 1: [finished_call(5), finished_call(6)]}) == (
        [1],
        call(7),
    ), "5 is no longer held"


def test_the_last_started_microbatch_is_parsed() -> None:
    text = parse_microbatch('{"entries": [], "microbatch": ["forward", 3]}')
    assert text == "forward of microbatch 3"
    for other in (
        "",
        "{}",
        '{"microbatch": null}',
        '{"microbatch": ["forward"]}',
        '{"microbatch": ["f", "x"]}',
    ):
        assert parse_microbatch(other) is None
