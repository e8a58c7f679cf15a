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
from rankdeck.run import past as past_module
from rankdeck.run.batch import Batch
from rankdeck.run.fold import Fold
from rankdeck.run.past import Past, beside, step_at, stretches
from rankdeck.rundir import EventReader, RunDir, attempt_of
from tests.engine.run.test_fold import any_run, restored, state
from tests.helpers.written_run import WrittenRun, backdated

NUM_RUNS = 10
BEGAN = 1_700_000_000.0


def spread_out(run: RunDir, choose: random.Random) -> float:
    """Give every line a time of its own, as if the attempts had followed each other; the end of them."""
    end = BEGAN
    for attempt in sorted({attempt_of(path.name) for path in run.events_folder.iterdir()}):
        begin = end + 5.0
        for path in sorted(run.events_folder.glob(f"*.{attempt}.jsonl")):
            t, lines, ended_before = begin, [], begin
            for line in path.read_bytes().splitlines():
                event = events.decode(line)
                assert event is not None
                t += choose.uniform(0.05, 2.0)
                if isinstance(event, events.Steps):
                    since = max(ended_before, t - 1.5)
                    ended = sorted(choose.uniform(since, t) for _ in event.ended)
                    event, ended_before = msgspec.structs.replace(event, ended=ended), ended[-1]
                lines.append((t, event))
            backdated(path, lines)
            end = max(end, t)
    return end


def told_by(run: RunDir, moment: float, *, splits: bool = True) -> Fold:
    """The oracle: everything is read, and what is younger is thrown away."""
    fold, batch = Fold(), Batch()
    for name, found in EventReader(run).batches():
        batch.add(name, list(_until(found, moment, splits)))
    fold.apply(batch)
    return fold


def _until(found: list[events.AnyEvent], moment: float, splits: bool) -> Iterator[events.AnyEvent]:
    for event in found:
        if event.t <= moment:
            yield event
        elif splits and isinstance(event, events.Steps):
            num = sum(ended <= moment for ended in event.ended)
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
        mock.patch.object(past_module, "_LEAST_APART_BYTES", 1500),
    ):
        yield


def test_any_moment_of_any_run_is_what_was_told_until_then(tmp_path: Path) -> None:
    """Forwards and backwards, resumed runs too."""
    num_resumed = 0
    for seed in range(NUM_RUNS):
        choose = random.Random(seed)
        run, num_attempts = any_run(tmp_path / str(seed), choose)
        end = spread_out(run.dir, choose)
        past = Past(run.dir)
        num_resumed += num_attempts > 1
        for _ in range(6):
            moment = choose.uniform(BEGAN, end + 2)
            fold = past.fold_at(moment)
            assert fold is not None
            expected, seen = state(told_by(run.dir, moment), run.dir), state(fold, run.dir)
            for key in expected:
                np.testing.assert_equal(seen[key], expected[key], err_msg=f"{key} of seed {seed}, {moment}")
        run.lose()
    assert num_resumed > 2


def test_lines_that_are_taken_as_a_whole_would_show_other_steps(tmp_path: Path) -> None:
    """The negative control: an oracle that forgets that steps end before their line is written."""
    num_wrong = 0
    for seed in range(15):
        choose = random.Random(seed)
        run, _ = any_run(tmp_path / str(seed), choose)
        end = spread_out(run.dir, choose)
        past = Past(run.dir)
        for _ in range(4):
            moment = choose.uniform(BEGAN, end)
            fold = past.fold_at(moment)
            assert fold is not None
            num_wrong += fold.step != told_by(run.dir, moment, splits=False).step
        run.lose()
    assert num_wrong > 2


def test_what_is_given_away_does_not_change(tmp_path: Path) -> None:
    choose = random.Random(5)
    run, _ = any_run(tmp_path, choose)
    end = spread_out(run.dir, choose)
    past = Past(run.dir)
    early = past.fold_at((BEGAN + end) / 2)
    assert early is not None
    before = state(early, run.dir)
    late = past.fold_at(end)
    assert late is not None and late.num_events > early.num_events
    np.testing.assert_equal(state(early, run.dir), before)
    run.lose()


def test_before_anything_nothing_is_known_and_an_empty_run_has_no_past(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    fold = Past(run.dir).fold_at(run.started)
    assert fold is not None and fold.step is None and not fold.devices
    run.begin()
    run.steps(0, 1, [3.0])
    past = Past(run.dir)
    for moment in (run.started + 60, 0.0):
        fold = past.fold_at(moment)
        assert fold is not None
        assert (fold.started is None, fold.step) == ((False, 1) if moment else (True, None))
    run.lose()


def test_a_damaged_file_and_bytes_that_are_no_text_cost_their_lines_only(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.begin()
    run.steps(0, 1, [3.0, 2.0])
    run.lose()
    path = run.dir.events_folder / "rank-0.0.jsonl"
    path.write_bytes(b'\xff\xfe no line\n{"kind":"steps"\n' + path.read_bytes() + b'{"kind":"st')
    fold = Past(run.dir).fold_at(run.started + 60)
    assert fold is not None and fold.step == 2


def test_a_moment_that_is_no_longer_wanted_is_given_up_and_the_next_one_is_right(tmp_path: Path) -> None:
    run, _ = any_run(tmp_path, random.Random(20))
    end = spread_out(run.dir, random.Random(20))
    past = Past(run.dir)
    for num_asked in (0, 1):
        left = threading.Semaphore(num_asked)
        assert past.fold_at(end, lambda left=left: left.acquire(blocking=False)) is None
        moment = (BEGAN + end) / 2
        fold = past.fold_at(moment)
        assert fold is not None
        np.testing.assert_equal(state(fold, run.dir), state(told_by(run.dir, moment), run.dir))
    run.lose()


def test_steps_that_were_trained_again_are_stretches_of_their_own(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.begin()
    run.steps(0, 1, [5.0, 4.0, 3.0, 2.0])
    first = run.started
    run.started += 100
    run.begin(attempt=1)
    restored(run, 0, 2, 1)
    run.steps(0, 3, [30.0, 20.0], attempt=1)
    fold = told_by(run.dir, run.started + 60)
    old, new = stretches(fold)
    assert (old.attempt, old.first, old.last, old.kept) == (0, 1, 4, 2)
    assert (new.attempt, new.first, new.last, new.kept) == (1, 3, 4, 4)
    assert old.ended == pytest.approx(first + 0.04) and new.began == pytest.approx(run.started + 0.03)
    assert beside(fold, first + 0.045, 1) == pytest.approx(new.ended, abs=0.02), "step 3 again comes next"
    assert beside(fold, new.began, -1) == pytest.approx(old.ended + 1, abs=0.02)
    assert beside(fold, first, -1) is None and beside(fold, run.started + 9, 1) is None
    assert [step_at(fold, at) for at in (first, first + 0.035, new.ended)] == [None, 3, 4]
    assert not stretches(Fold()) and beside(Fold(), first, 1) is None
    run.lose()
