"""A run as it was at a moment is what one reads who keeps only what was told until then."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest

from rankdeck import events
from rankdeck.run import run_history as past_module
from rankdeck.run.batch import Batch
from rankdeck.run.run_history import RunHistory, offset_step_time, step_at, step_intervals
from rankdeck.run.run_state import RunState
from rankdeck.run_dir import EventReader, RunDir, parse_attempt
from tests.engine.run.test_run_state import random_run, state_fields, write_restored
from tests.helpers.written_run import WrittenRun, write_backdated

NUM_RUNS = 10
START_TIME = 1_700_000_000.0


def spread_events(run: RunDir, choose: random.Random) -> float:
    """Give every line a time of its own, as if the attempts had followed each other; the end of them."""
    end = START_TIME
    for attempt in sorted({parse_attempt(path.name) for path in run.events_folder.iterdir()}):
        start = end + 5.0
        for path in sorted(run.events_folder.glob(f"*.{attempt}.jsonl")):
            t, lines, ended_before = start, [], start
            for line in path.read_bytes().splitlines():
                event = events.decode(line)
                assert event is not None
                t += choose.uniform(0.05, 2.0)
                if isinstance(event, events.Steps):
                    since = max(ended_before, t - 1.5)
                    ended = sorted(choose.uniform(since, t) for _ in event.ended)
                    event, ended_before = msgspec.structs.replace(event, ended=ended), ended[-1]
                lines.append((t, event))
            write_backdated(path, lines)
            end = max(end, t)
    return end


def filtered_state(run: RunDir, end_time: float, *, splits: bool = True) -> RunState:
    """The oracle: everything is read, and what is younger is thrown away."""
    state, batch = RunState(), Batch()
    for name, new_events in EventReader(run).batches():
        batch.add(name, list(_events_until(new_events, end_time, splits)))
    state.apply(batch)
    return state


def _events_until(
    all_events: list[events.AnyEvent], timestamp: float, splits: bool
) -> Iterator[events.AnyEvent]:
    for event in all_events:
        if event.t <= timestamp:
            yield event
        elif splits and isinstance(event, events.Steps):
            num = sum(ended <= timestamp for ended in event.ended)
            cut = {
                name: value[:num]
                for name, value in msgspec.structs.asdict(event).items()
                if isinstance(value, list)
            }
            if num:
                yield msgspec.structs.replace(event, **cut)


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    """So that a short run is read in many pieces, and places are kept on the way."""
    with (
        mock.patch.object(past_module, "_CHUNK_BYTES", 700),
        mock.patch.object(past_module, "_MIN_SNAPSHOT_INTERVAL_BYTES", 1500),
    ):
        yield


def test_the_state_at_any_time_equals_filtered_events(tmp_path: Path) -> None:
    """Forwards and backwards, resumed runs too."""
    num_resumed = 0
    for seed in range(NUM_RUNS):
        choose = random.Random(seed)
        run, num_attempts = random_run(tmp_path / str(seed), choose)
        end = spread_events(run.dir, choose)
        past = RunHistory(run.dir)
        num_resumed += num_attempts > 1
        for _ in range(6):
            timestamp = choose.uniform(START_TIME, end + 2)
            state = past.state_at(timestamp)
            assert state is not None
            expected, actual = (
                state_fields(filtered_state(run.dir, timestamp), run.dir),
                state_fields(state, run.dir),
            )
            for key in expected:
                np.testing.assert_equal(
                    actual[key], expected[key], err_msg=f"{key} of seed {seed}, {timestamp}"
                )
        run.lose()
    assert num_resumed > 2


def test_without_splitting_lines_the_state_differs(tmp_path: Path) -> None:
    """The negative control: an oracle that forgets that steps end before their line is written."""
    num_wrong = 0
    for seed in range(15):
        choose = random.Random(seed)
        run, _ = random_run(tmp_path / str(seed), choose)
        end = spread_events(run.dir, choose)
        past = RunHistory(run.dir)
        for _ in range(4):
            timestamp = choose.uniform(START_TIME, end)
            state = past.state_at(timestamp)
            assert state is not None
            num_wrong += state.step != filtered_state(run.dir, timestamp, splits=False).step
        run.lose()
    assert num_wrong > 2


def test_a_returned_state_does_not_change(tmp_path: Path) -> None:
    choose = random.Random(5)
    run, _ = random_run(tmp_path, choose)
    end = spread_events(run.dir, choose)
    past = RunHistory(run.dir)
    early = past.state_at((START_TIME + end) / 2)
    assert early is not None
    before = state_fields(early, run.dir)
    late = past.state_at(end)
    assert late is not None and late.num_events > early.num_events
    np.testing.assert_equal(state_fields(early, run.dir), before)
    run.lose()


def test_before_the_first_event_the_state_is_empty(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    state = RunHistory(run.dir).state_at(run.started)
    assert state is not None and state.step is None and not state.devices
    run.start()
    run.write_steps(0, 1, [3.0])
    past = RunHistory(run.dir)
    for timestamp in (run.started + 60, 0.0):
        state = past.state_at(timestamp)
        assert state is not None
        assert (state.started is None, state.step) == ((False, 1) if timestamp else (True, None))
    run.lose()


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    run.write_steps(0, 1, [3.0, 2.0])
    run.lose()
    path = run.dir.events_folder / "rank-0.0.jsonl"
    path.write_bytes(b'\xff\xfe no line\n{"kind":"steps"\n' + path.read_bytes() + b'{"kind":"st')
    state = RunHistory(run.dir).state_at(run.started + 60)
    assert state is not None and state.step == 2


def test_an_interrupted_read_returns_none_and_the_next_is_right(tmp_path: Path) -> None:
    run, _ = random_run(tmp_path, random.Random(20))
    end = spread_events(run.dir, random.Random(20))
    past = RunHistory(run.dir)
    for num_asked in (0, 1):
        left = threading.Semaphore(num_asked)
        assert past.state_at(end, lambda left=left: left.acquire(blocking=False)) is None
        timestamp = (START_TIME + end) / 2
        state = past.state_at(timestamp)
        assert state is not None
        np.testing.assert_equal(
            state_fields(state, run.dir), state_fields(filtered_state(run.dir, timestamp), run.dir)
        )
    run.lose()


def test_steps_trained_again_are_separate_intervals(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    run.write_steps(0, 1, [5.0, 4.0, 3.0, 2.0])
    first = run.started
    run.started += 100
    run.start(attempt=1)
    write_restored(run, 0, 2, 1)
    run.write_steps(0, 3, [30.0, 20.0], attempt=1)
    state = filtered_state(run.dir, run.started + 60)
    old, new = step_intervals(state)
    assert (old.attempt, old.first, old.last, old.last_kept) == (0, 1, 4, 2)
    assert (new.attempt, new.first, new.last, new.last_kept) == (1, 3, 4, 4)
    assert old.ended == pytest.approx(first + 0.04) and new.started == pytest.approx(run.started + 0.03)
    assert offset_step_time(state, first + 0.045, 1) == pytest.approx(new.ended, abs=0.02), (
        "step 3 again comes next"
    )
    assert offset_step_time(state, new.started, -1) == pytest.approx(old.ended + 1, abs=0.02)
    assert offset_step_time(state, first, -1) is None and offset_step_time(state, run.started + 9, 1) is None
    assert [step_at(state, at) for at in (first, first + 0.035, new.ended)] == [None, 3, 4]
    assert not step_intervals(RunState()) and offset_step_time(RunState(), first, 1) is None
    run.lose()
