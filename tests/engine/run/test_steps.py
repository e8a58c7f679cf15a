"""The shares of all ranks become one row per step, whatever order they come in."""

from __future__ import annotations

import msgspec
import numpy as np

from rankdeck.events import Steps
from rankdeck.run.curves import StepCurves
from rankdeck.run.step_blocks import StepJoiner, to_blocks
from rankdeck.run.step_table import COLUMNS, StepTable


def make_steps(
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


class JoinedSteps:
    """The rows that a joiner makes of events, in a table."""

    def __init__(self, world_size: int | None, *events: Steps) -> None:
        self.joiner, self.table = StepJoiner(), StepTable()
        self.joiner.world_size = world_size
        self.add(*events)

    def add(self, *events: Steps) -> None:
        for event in events:
            for block in to_blocks([event])[0]:
                self.joiner.add(block)
        for rows in self.joiner.join():
            self.table.append(rows)

    def __getattr__(self, name: str) -> list[float]:
        return [None if value != value else value for value in self.table.column(name).tolist()]


def test_the_loss_of_a_step_is_the_sum_of_sums_over_the_sum_of_counts() -> None:
    result = JoinedSteps(2, make_steps(0, 1, [2.0, 4.0]), make_steps(1, 1, [6.0, 8.0], count=6.0))
    assert result.loss == [1.0, 1.5]
    assert result.samples == [8.0, 8.0]


def test_a_step_is_complete_once_every_rank_has_reported() -> None:
    result = JoinedSteps(2, make_steps(0, 1, [2.0, 4.0, 6.0]), make_steps(1, 1, [2.0]))
    assert result.step == [1]
    result.add(make_steps(1, 2, [4.0, 6.0]))
    assert result.loss == [1.0, 2.0, 3.0]


def test_rows_wait_for_the_number_of_ranks() -> None:
    result = JoinedSteps(None, make_steps(0, 1, [2.0]))
    assert result.step == []
    result.joiner.world_size = 1
    result.add()
    assert result.step == [1]


def test_a_rank_without_loss_counts_for_time_only() -> None:
    result = JoinedSteps(2, make_steps(0, 1, None, num_steps=2, late_s=0.5), make_steps(1, 1, [2.0, 4.0]))
    assert result.loss == [1.0, 2.0]
    assert result.samples == [4.0, 4.0]
    assert result.ended == [101.5, 102.5]
    assert result.step_s == [1.5, 1.5]


def test_a_non_finite_loss_is_unknown_and_not_zero() -> None:
    result = JoinedSteps(1, make_steps(0, 1, [None, 2.0]), make_steps(0, 3, [0.0], count=0.0))
    assert result.loss == [None, 1.0, None]


def test_dropped_lines_are_unknown_rows() -> None:
    result = JoinedSteps(1, make_steps(0, 1, [2.0]), make_steps(0, 4, [8.0]))
    assert result.step == [1, 2, 3, 4]
    assert result.loss == [1.0, None, None, 4.0]


def test_gradient_norms_are_of_the_first_rank_that_reports_them() -> None:
    lines = make_steps(0, 1, [2.0, 2.0, 2.0])
    clipped = msgspec.structs.replace(make_steps(1, 1, [2.0, 2.0]), grad_norm=[1.5, None])
    result = JoinedSteps(2, lines, clipped)
    [(steps, norms)] = result.joiner.take_norms()
    assert steps.tolist() == [1.0] and norms.tolist() == [1.5] and not result.joiner.take_norms()
    result.add(msgspec.structs.replace(make_steps(1, 3, [2.0]), grad_norm=[0.5]))
    [(steps, norms)] = result.joiner.take_norms()
    assert steps.tolist() == [3.0] and norms.tolist() == [0.5]


def test_norm_curves_are_cut_with_their_steps() -> None:
    curves = StepCurves(100, 0, None)
    curves.append_norms(
        [(np.array([1.0, 3.0]), np.array([1.5, 0.5])), (np.array([3.0, 4.0]), np.array([9.0, 2.0]))]
    )
    assert [x.tolist() for x in curves.norms.points()] == [[1.0, 3.0, 4.0], [1.5, 0.5, 2.0]]
    curves.cut(3)
    assert curves.norms.last_x == 3.0


def test_a_gap_of_one_rank_keeps_the_times_of_the_others() -> None:
    result = JoinedSteps(2, make_steps(0, 1, [2.0, 2.0]), make_steps(1, 2, [2.0]))
    assert result.loss[0] is None and result.ended[0] == 101.0


def test_a_million_steps_are_joined_fast_in_bounded_memory() -> None:
    result = JoinedSteps(1)
    for first in range(1, 1_000_001, 1000):
        result.add(make_steps(0, first, [1.0] * 1000))
    assert len(result.table) == 1_000_000
    assert result.table.rows.nbytes <= 2**18 * 8 * len(COLUMNS)


def test_step_numbers_with_gaps_are_cheap() -> None:
    result = JoinedSteps(2, make_steps(0, 400_000_000, [1.0]), make_steps(1, 2**51, [1.0]))
    assert result.step == [400_000_000]
    assert to_blocks(
        [
            make_steps(0, 2**60, [1.0]),
            make_steps(0, 0, [1.0]),
            make_steps(-1, 1, [1.0]),
            make_steps(2**40, 1, [1.0]),
        ]
    ) == (
        [],
        4,
    )


def test_columns_of_unequal_length_are_unknown_at_the_end() -> None:
    line = Steps(rank=0, first=1, loss_sum=[2.0, 4.0, 6.0], count=[2.0], lr=[], samples=[4, 4], ended=[1.0])
    result = JoinedSteps(1, line)
    assert result.step == [1, 2]
    assert result.loss == [1.0, None] and result.ended == [1.0, None] and result.lr == [None, None]


def test_a_number_out_of_range_is_rejected() -> None:
    line = Steps(rank=0, first=1, samples=[10**400], ended=[1.0], step_s=[1.0], lr=[1.0])
    assert to_blocks([line]) == ([], 1)


def test_lines_in_one_batch_or_singly_are_equal() -> None:
    lines = [make_steps(0, first, [None if first == 3 else 2.0, 4.0]) for first in range(1, 9, 2)]
    (expected,), _ = to_blocks(lines)
    apart = [block for line in lines for block in to_blocks([line])[0]]
    np.testing.assert_array_equal(expected.values, np.concatenate([block.values for block in apart], axis=1))


def test_repeated_steps_of_a_rank_are_rejected() -> None:
    result = JoinedSteps(1, make_steps(0, 1, [2.0, 4.0]), make_steps(0, 2, [20.0, 40.0]))
    assert result.loss == [1.0, 2.0, 20.0] and result.joiner.num_refused == 1


def test_dropped_rows_leave_marks_and_bins() -> None:
    small, full = StepTable(max_rows=100), StepTable(max_rows=None)
    rows = np.stack([np.arange(1.0, 1001.0), *[np.full(1000, 2.0)] * 4, 50 + np.arange(1000.0)])
    for start in range(0, 1000, 7):
        for table in (small, full):
            table.append(rows[:, start : start + 7])
    assert (len(small), small.rows.shape[1], len(full.marks)) == (1000, 100, 0)
    assert small.marks[-1].row == 899 and small.dropped_samples == 1800.0
    assert small.dropped_times.sum() == 899
    assert abs(small.bin_times()[small.dropped_times.argmax()] - 1.0) < 0.01
    small._MAX_MARKS = 8
    for _ in range(5):
        rows[0] += 1000
        small.append(rows)
        assert 2 <= len(small.marks) <= 8, "half of them go when there are too many"
