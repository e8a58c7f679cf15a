"""The steps of a person's own script, whose ranks go as they like."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankdeck import events
from rankdeck.run.batch import Batch
from rankdeck.run.run_state import RunState, read_run_state
from rankdeck.run_dir import EventReader, RunDir
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WrittenScript]:
    run = WrittenScript(tmp_path / "runs")
    run.start_script(2)
    yield run
    run.lose()


def losses_of(state: RunState) -> list[float | None]:
    return [None if loss != loss else loss for loss in state.column("loss").tolist()]


def states_in_any_order(run: RunDir) -> Iterator[RunState]:
    """The run read a file at a time, in every order of its files, and line by line in turn."""
    chunks = list(EventReader(run).batches())
    for order in itertools.permutations(chunks):
        state = RunState()
        for name, new_events in order:
            batch = Batch()
            batch.add(name, new_events)
            state.apply(batch)
        yield state
    state = RunState()
    for lines in itertools.zip_longest(
        *([(name, event) for event in new_events] for name, new_events in chunks)
    ):
        batch = Batch()
        for name, event in filter(None, lines):
            batch.add(name, [event])
        state.apply(batch)
    yield state


def test_the_loss_of_a_step_is_the_mean_over_its_ranks(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [2.0, None, 6.0, None], samples=8)
    run.write_step_line(1, 1, [4.0, 5.0, None, None], samples=8)
    state = read_run_state(run.dir)
    assert losses_of(state) == [3.0, 5.0, 6.0, None]
    assert state.column("samples").tolist() == [16.0] * 4
    assert state.newest_value("loss") == (3, 6.0) and state.step == 4


def test_a_step_does_not_wait_for_a_rank_without_steps(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [2.0, 1.0])
    assert losses_of(read_run_state(run.dir)) == [2.0, 1.0]
    assert read_run_state(run.dir).step == 2


def test_ranks_started_by_the_script_count(run: WrittenScript) -> None:
    for rank in range(4):
        run.observe_rank(rank, world_size=4)
        run.write_step_line(rank, 1, [float(rank)])
    state = read_run_state(run.dir)
    assert losses_of(state) == [1.5] and sorted(state.script.observations) == [0, 1, 2, 3]


def test_a_rank_at_another_pace_is_not_joined(run: WrittenScript) -> None:
    """Rank 1 takes a step in 20 s, and ended its second one when rank 0 was at its 80th."""
    run.write_step_line(0, 1, [1.0] * 100)
    run.write_step_line(1, 1, [9.0] * 3, step_s=20.0, late_s=-19.0)
    state = read_run_state(run.dir)
    assert losses_of(state) == [5.0] + [1.0] * 99
    assert {rank: rank_steps.num_steps for rank, rank_steps in state.script.steps_by_rank.items()} == {
        0: 100,
        1: 3,
    }


def test_the_lowest_rank_leads_unless_another_has_twice_its_steps(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [1.0, 1.0])
    run.write_step_line(1, 1, [1.0, 1.0, 3.0, 3.0])
    assert read_run_state(run.dir).step == 2
    run.write_step_line(1, 5, [3.0])
    state = read_run_state(run.dir)
    assert state.step == 5 and losses_of(state) == [1.0, 1.0, 3.0, 3.0, 3.0]


def test_the_state_does_not_depend_on_the_reading_order(run: WrittenScript) -> None:
    for first in range(1, 200, 20):
        run.write_step_line(0, first, [1.0 / (first + at) if at % 3 else None for at in range(20)], samples=4)
        run.write_step_line(1, first, [2.0 / (first + at) for at in range(20)], samples=4, late_s=0.2)
        if first < 100:
            run.write_step_line(2, first, [3.0] * 20, late_s=0.1)
    states = list(states_in_any_order(run.dir))
    assert len(states) == 25
    expected = states[0]
    assert expected.step == 200 and len(expected.losses) == 200
    for state in states:
        for name in ("step", "loss", "samples", "ended"):
            np.testing.assert_array_equal(state.column(name), expected.column(name))
        for name in ("losses", "loss_ema", "rates", "rate_ema"):
            for mine, theirs in zip(
                getattr(state, name).points(), getattr(expected, name).points(), strict=True
            ):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        assert state.samples_per_s() == expected.samples_per_s()


def _state_with_curves(run: RunDir) -> RunState:
    state = RunState()
    batch = Batch()
    for name, new_events in EventReader(run).batches():
        batch.add(name, new_events)
    state.apply(batch)
    return state


def test_curves_connect_the_sampled_steps(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [4.0, None, None, 1.0], grad_norm=0.5)
    state = _state_with_curves(run.dir)
    assert [values.tolist() for values in state.losses.points()] == [[1.0, 4.0], [4.0, 1.0]]
    assert [values.tolist() for values in state.grad_norms.points()] == [[1.0, 4.0], [0.5, 0.5]]
    assert state.script.step_rates.points()[1].tolist() == [2.0] * 4
    assert np.isnan(state.rates.points()[1]).all()


@pytest.mark.parametrize(("every", "within"), [(1, 0.02), (10, 0.1), (25, 0.8)])
def test_the_average_of_sampled_losses_is_over_steps(run: WrittenScript, every: int, within: float) -> None:
    """Of a line that falls by 0.01 a step it is as late as if each step were told."""
    run.write_step_line(0, 1, [10 - 0.01 * step if step % every == 0 else None for step in range(1, 601)])
    smoothed = float(_state_with_curves(run.dir).loss_ema.points()[1][-1])
    assert smoothed == pytest.approx(10 - 0.01 * 551, abs=within)


def test_the_sample_rate_is_known_only_with_observed_samples(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [1.0] * 10, step_s=0.25)
    state = read_run_state(run.dir)
    assert state.samples_per_s() is None and state.recent_samples_per_s() is None
    assert state.steps_per_s() == pytest.approx(4.0) and state.recent_steps_per_s() == pytest.approx(4.0)
    assert state.remaining_s() is None and state.num_steps_planned is None
    run.write_step_line(0, 11, [1.0] * 90, step_s=0.25, samples=8)
    assert read_run_state(run.dir).samples_per_s() == pytest.approx(32.0)


def test_the_wait_share_is_that_of_the_slowest_loader(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [1.0] * 10, wait_s=0.1)
    run.write_step_line(1, 1, [1.0] * 10, wait_s=0.2)
    state = read_run_state(run.dir)
    assert state.script.wait_share == pytest.approx(0.4)
    assert state.last_row is not None and state.last_row.wait_s == 0.1


def test_restarted_step_counts_continue_and_repeats_are_rejected(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [5.0, 4.0])
    run.write_step_line(0, 2, [4.0])
    run.write_step_line(0, 1, [3.0, 2.0], late_s=10.0)
    run.write_step_line(0, 3, [1.0], late_s=10.0)
    state = read_run_state(run.dir)
    assert losses_of(state) == [5.0, 4.0, 3.0, 2.0, 1.0] and state.num_rejected == 1


def test_a_restart_replaces_its_steps(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [5.0, 4.0, 3.0])
    run.start_script(2, attempt=1)
    assert read_run_state(run.dir).step == 3
    run.write_step_line(0, 1, [2.0], attempt=1)
    state = read_run_state(run.dir)
    assert losses_of(state) == [2.0] and state.num_attempts == 2


@pytest.mark.parametrize(
    "columns",
    [
        {"loss_sum": [1.0], "ended": [1.0, 2.0], "step_s": [0.5]},
        {"loss_sum": [1.0, 2.0], "count": [1.0], "ended": [1.0, 2.0], "step_s": [], "wait_s": [0.1]},
        {"samples": [10**400], "ended": [1.0], "step_s": [1.0]},
        {"samples": [10**30], "ended": [1.0], "step_s": [1.0]},
        {"first": 2**60, "ended": [1.0], "step_s": [1.0]},
        {"first": 2**51, "ended": [1.0], "step_s": [1.0]},
        {"ended": [-1e308, 1e308], "step_s": [-5.0, 0.0], "wait_s": [1e308, 1e308]},
        {"lr": [None], "samples": [None]},
    ],
)
def test_invalid_step_columns_are_rejected(run: WrittenScript, columns: dict[str, object]) -> None:
    run.write_step_line(0, 1, [1.0, 0.5])
    run.writer("rank-0").write(events.Steps(rank=0, **{"first": 3, **columns}))  # type: ignore[arg-type]
    run.writer("rank-1").write(events.Steps(rank=1, **{"first": 1, **columns}))  # type: ignore[arg-type]
    run.write_step_line(0, 5, [0.25])
    for state in states_in_any_order(run.dir):
        assert 0.25 in losses_of(state) or state.num_rejected
        for metric in (state.steps_per_s, state.samples_per_s, state.step_times, state.recent_steps_per_s):
            metric()
        assert state.first_loss() is not None


def test_a_standalone_process_is_no_part_of_the_run(run: WrittenScript) -> None:
    """A forked child of rank 0 steps at the same time; ranks of a process group belong together."""
    for rank, world_size in ((0, None), (1, None), (2, None), (3, 4)):
        run.observe_rank(rank, world_size=world_size)
        run.write_step_line(rank, 1, [float(rank)] * 4, samples=8)
    for state in states_in_any_order(run.dir):
        assert losses_of(state) == [(0 + 1 + 3) / 3] * 4
        assert state.column("samples").tolist() == [24.0] * 4
        assert state.script.standalone_ranks == [2]


def test_a_standalone_process_counts_if_it_trains_alone(run: WrittenScript) -> None:
    run.observe_rank(0)
    run.write_step_line(0, 1, [9.0])
    run.observe_rank(2)
    run.write_step_line(2, 1, [3.0, 2.0, 1.0])
    for state in states_in_any_order(run.dir):
        assert losses_of(state) == [3.0, 2.0, 1.0]
