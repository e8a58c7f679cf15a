"""What ranks told of one step becomes one picture of it: rows, idle gaps, and a pipeline's bubble."""

from __future__ import annotations

import pytest

from rankdeck.events import Spans
from rankdeck.run.anatomy import AnatomyCollector, median_bubble, merge_shares

F, B = "forward", "backward"
WorkItem = tuple[str, int, float, float]


def make_share(
    rank: int,
    work: list[WorkItem],
    *,
    step: int = 4,
    start_time: float = 100.0,
    seconds: float = 1.0,
    followed: bool = False,
) -> Spans:
    """`work`: (name, microbatch, start in s, seconds) of the rank's one device."""
    names = sorted({name for name, *_ in work})
    return Spans(
        rank=rank,
        step=step,
        began=start_time,
        seconds=seconds,
        names=names,
        name=[names.index(name) for name, *_ in work],
        device=[rank] * len(work),
        start_us=[round(start_s * 1e6) for _, _, start_s, _ in work],
        duration_us=[round(seconds * 1e6) for *_, seconds in work],
        microbatch=[None if number < 0 else number for _, number, *_ in work],
        followed=followed,
    )


TWO_STAGES = [
    make_share(0, [(F, 0, 0.0, 0.1), (F, 1, 0.1, 0.1), (B, 0, 0.3, 0.1), ("step", -1, 0.5, 0.1)]),
    make_share(1, [(F, 0, 0.1, 0.1), (B, 0, 0.2, 0.1), (F, 1, 0.3, 0.1)]),
]


def test_a_pipelines_bubble_is_the_idle_time_between_its_stages() -> None:
    # Both compute 0.3 s in a window of 0.4 s; the optimizer's step is not the pipeline's.
    assert merge_shares(TWO_STAGES).bubble() == pytest.approx(0.25)


def test_without_a_flush_each_stage_is_measured_in_its_own_step() -> None:
    assert merge_shares(TWO_STAGES).bubble(flushes=False) == pytest.approx(0.7)


def test_a_step_without_microbatches_has_no_bubble() -> None:
    assert merge_shares([make_share(0, [("forward", -1, 0.0, 0.5)])]).bubble() is None


def test_a_pipeline_of_zero_length_has_no_bubble() -> None:
    anatomies = AnatomyCollector(world_size=1)
    assert anatomies.add(make_share(0, [(F, 0, 0.1, 0.0), (B, 0, 0.1, 0.0)])) is not None
    assert median_bubble([anatomies]) is None and median_bubble([anatomies], flushes=False) is None


def test_ranks_share_one_clock() -> None:
    late = make_share(1, [("forward", -1, 0.0, 0.1)], start_time=100.25)
    anatomy = merge_shares([late, make_share(0, [("forward", -1, 0.0, 0.1)])])
    assert [row.device for row in anatomy.rows] == [0, 1]
    assert anatomy.rows[1].spans[0].start_s == pytest.approx(0.25)
    assert anatomy.seconds == pytest.approx(1.25)


def test_idle_time_is_covered_by_no_phase() -> None:
    work = [("backward", -1, 0.1, 0.4), ("all-reduce", -1, 0.2, 0.4), ("step", -1, 0.8, 0.1)]
    (row,) = merge_shares([make_share(0, work)]).rows
    gaps = [(round(gap.start_s, 6), round(gap.end_s, 6)) for gap in row.idle(1.0)]
    assert gaps == [(0.0, 0.1), (0.6, 0.8), (0.9, 1.0)]


def test_a_step_is_complete_once_every_rank_has_reported() -> None:
    anatomies = AnatomyCollector(world_size=2)
    assert anatomies.add(TWO_STAGES[0]) is None and anatomies.last is None
    assert anatomies.add(TWO_STAGES[1]) is not None
    assert anatomies.last is not None and len(anatomies.last.rows) == 2
    assert median_bubble([anatomies]) == pytest.approx(0.25)


def test_a_step_slowed_by_the_ledger_is_replaced_by_any_other() -> None:
    anatomies = AnatomyCollector(world_size=1)
    work: list[WorkItem] = [("forward", 0, 0.0, 0.1)]
    anatomies.add(make_share(0, work, step=2, followed=True))
    assert anatomies.last is not None and anatomies.last.step == 2
    anatomies.add(make_share(0, work, step=4))
    anatomies.add(make_share(0, work, step=5, followed=True))
    assert anatomies.last.step == 4
