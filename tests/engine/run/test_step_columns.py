"""The shares of all ranks become one row per step, whatever order they come in."""

from __future__ import annotations

import math

from rankdeck.events import Steps
from rankdeck.run.step_columns import StepColumns


def share(
    rank: int,
    first: int,
    sums: list[float | None] | None,
    *,
    num_steps: int | None = None,
    count: float = 2.0,
    late_s: float = 0.0,
) -> Steps:
    """Consecutive steps of one rank that end a second after each other, `late_s` late."""
    length = num_steps if sums is None else len(sums)
    assert length is not None
    return Steps(
        rank=rank,
        first=first,
        loss_sum=sums,
        count=None if sums is None else [count] * length,
        lr=[0.1] * length,
        samples=[4] * length,
        step_s=[1.0 + late_s] * length,
        ended=[100.0 + first + index + late_s for index in range(length)],
    )


def columns(world_size: int | None, *events: Steps) -> StepColumns:
    found = StepColumns()
    found.world_size = world_size
    for event in events:
        found.add(event)
    return found


def test_the_loss_of_a_step_is_the_sum_of_sums_over_the_sum_of_counts() -> None:
    found = columns(2, share(0, 1, [2.0, 4.0]), share(1, 1, [6.0, 8.0], count=6.0))
    assert list(found.loss) == [1.0, 1.5]
    assert list(found.samples) == [8.0, 8.0]


def test_a_step_is_complete_once_every_rank_has_told_it() -> None:
    found = columns(2, share(0, 1, [2.0, 4.0, 6.0]), share(1, 1, [2.0]))
    assert len(found) == 1
    found.add(share(1, 2, [4.0, 6.0]))
    assert list(found.loss) == [1.0, 2.0, 3.0]


def test_rows_wait_until_the_number_of_ranks_is_known() -> None:
    found = columns(None, share(0, 1, [2.0]))
    assert len(found) == 0
    found.world_size = 1
    found.join()
    assert len(found) == 1


def test_a_rank_without_loss_counts_for_time_only() -> None:
    found = columns(2, share(0, 1, None, num_steps=2, late_s=0.5), share(1, 1, [2.0, 4.0]))
    assert list(found.loss) == [1.0, 2.0]
    assert list(found.samples) == [4.0, 4.0]
    assert list(found.ended) == [101.5, 102.5]
    assert list(found.step_s) == [1.5, 1.5]


def test_what_is_not_finite_or_has_no_target_is_unknown_and_no_zero() -> None:
    found = columns(1, share(0, 1, [None, 2.0]), share(0, 3, [0.0], count=0.0))
    assert math.isnan(found.loss[0]) and math.isnan(found.loss[2])
    assert found.loss[1] == 1.0


def test_lines_that_were_dropped_leave_unknown_rows() -> None:
    found = columns(1, share(0, 1, [2.0]), share(0, 4, [8.0]))
    assert len(found) == 4
    assert [math.isnan(value) for value in found.loss] == [False, True, True, False]
    assert found.row(3).step == 4 and found.row(-1) == found.row(3)


def test_a_gap_of_one_rank_keeps_the_times_of_the_others() -> None:
    found = columns(2, share(0, 1, [2.0, 2.0]), share(1, 2, [2.0]))
    assert math.isnan(found.loss[0]) and found.ended[0] == 101.0


def test_a_new_attempt_replaces_the_steps_that_it_repeats() -> None:
    found = columns(2, *(share(rank, 1, [2.0, 4.0, 6.0]) for rank in (0, 1)))
    found.add(share(0, 2, [20.0]))
    assert len(found) == 1
    found.add(share(1, 2, [20.0]))
    assert list(found.loss) == [1.0, 10.0]


def test_a_million_steps_are_folded_in_quickly_and_stay_small() -> None:
    found = columns(1)
    for first in range(1, 1_000_001, 1000):
        found.add(share(0, first, [1.0] * 1000))
    assert len(found) == 1_000_000
    assert found.loss.itemsize * len(found.loss) == 8_000_000


def test_an_attempt_that_only_one_rank_has_told_of_takes_no_time_yet() -> None:
    found = columns(2, share(0, 1, [2.0, 4.0]), share(1, 1, [2.0, 4.0]))
    found.begin_attempt(2)
    found.add(share(0, 3, [1.0]))
    assert len(found) == 2
    assert found.elapsed_s(1) == 1.0
