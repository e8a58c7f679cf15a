"""Whoever looks back sees what was told until then, is answered at once, and leaves nothing behind."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.time_machine import TimeMachine
from tests.helpers.looked_back import (
    BETWEEN_S,
    KEPT,
    NUM_STEPS,
    STEP_S,
    again_at,
    bytes_of,
    loss_of,
    write_resumed,
)
from tests.helpers.waiting import wait_until, with_load
from tests.helpers.written_run import WrittenRun

ANSWER_S = 0.05


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRun]:
    run = write_resumed(tmp_path / "runs")
    yield run
    run.lose()


@pytest.fixture
def live(qtbot: QtBot, written: WrittenRun) -> Iterator[LiveRun]:
    live = LiveRun(written.path)
    live.start()
    read(live)
    yield live
    live.close()
    wait_until(lambda: not readers())


def read(live: LiveRun) -> None:
    def is_read() -> bool:
        live.drain()
        return live.outcome is not None and not live.has_more

    wait_until(is_read)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("past of")]


def at(qtbot: QtBot, machine: TimeMachine, moment: float) -> None:
    machine.go(moment)
    qtbot.waitUntil(lambda: not machine.is_waiting)


def test_a_moment_shows_what_was_known_then_and_nothing_younger(
    qtbot: QtBot, written: WrittenRun, live: LiveRun
) -> None:
    assert live.shown is live and live.step == NUM_STEPS
    ran_s = NUM_STEPS * STEP_S + 1
    for step in (33, 12):
        at(qtbot, live.time, written.started + step * STEP_S + 0.2)
        past = live.shown
        assert past is not live and past.step == step and past.elapsed_s == pytest.approx(step * STEP_S + 0.2)
        sampled = step // 5 * 5
        assert [past.total_bytes_of(device) for device in past.devices] == [
            bytes_of(sampled, 0),
            bytes_of(sampled, 1),
        ]
        assert past.fold.anatomy is not None and past.fold.anatomy.step == sampled
        assert past.fold.losses.last_y == pytest.approx(loss_of(step, 0), rel=1e-5), (
            "as it was before it was trained again"
        )
        assert [problem.code for problem in past.problems] == (["slow"] if step >= 30 else [])
        assert past.is_live and past.devices[0].utilisation == pytest.approx(step / 100)
    at(qtbot, live.time, written.started + NUM_STEPS * STEP_S + 3)
    assert (live.shown.outcome, live.shown.step) == ("stopped", NUM_STEPS)
    assert live.shown.elapsed_s == pytest.approx(ran_s), "it lies stopped"
    at(qtbot, live.time, again_at(written) + 0.05)
    assert (live.shown.outcome, live.shown.step) == ("running", NUM_STEPS), "nothing is restored yet"
    at(qtbot, live.time, again_at(written) + 0.3)
    assert live.shown.step == KEPT and live.shown.elapsed_s == pytest.approx(ran_s + 0.3)
    assert live.since_start_s is not None and live.elapsed_s is not None
    assert live.since_start_s - live.elapsed_s == pytest.approx(BETWEEN_S - 1, abs=0.5), "between attempts"


def test_before_the_first_step_figures_are_unknown_and_not_zero(
    qtbot: QtBot, written: WrittenRun, live: LiveRun
) -> None:
    at(qtbot, live.time, written.started + 0.2)
    past = live.shown
    assert (past.step, past.loss, past.samples_per_s, past.fold.anatomy, past.imbalance) == (None,) * 5
    assert [past.total_bytes_of(device) for device in past.devices] == [None, None]


def test_steps_that_were_trained_again_are_drawn_as_they_were(
    qtbot: QtBot, written: WrittenRun, live: LiveRun
) -> None:
    at(qtbot, live.time, written.started + 10 * STEP_S)
    assert live.shown.charted is live, "what lies before and after is seen too"
    at(qtbot, live.time, written.started + 30 * STEP_S + 0.1)
    assert live.shown.charted is live.shown
    machine = live.time
    machine.step_by(1)
    qtbot.waitUntil(lambda: not machine.is_waiting)
    assert live.shown.step == 31 and live.shown.loss == pytest.approx(loss_of(31, 0), abs=1)
    at(qtbot, machine, written.started + NUM_STEPS * STEP_S + BETWEEN_S / 2)
    machine.step_by(1)
    qtbot.waitUntil(lambda: not machine.is_waiting)
    assert (live.shown.step, machine.past and machine.past.attempt) == (KEPT + 1, 1), (
        "over the gap, once more"
    )


def test_a_drag_is_answered_at_once_and_ends_where_it_was_let_go(
    qtbot: QtBot, written: WrittenRun, live: LiveRun
) -> None:
    choose, slowest_s = random.Random(1), 0.0
    for _ in range(200):
        begin = time.thread_time()
        live.time.go(choose.uniform(written.started, again_at(written)))
        slowest_s = max(slowest_s, time.thread_time() - begin)
    assert slowest_s < with_load(ANSWER_S)
    assert len(readers()) == 1
    at(qtbot, live.time, written.started + 7 * STEP_S + 0.1)
    assert live.shown.step == 7


def test_until_a_moment_is_read_the_one_before_is_held(
    qtbot: QtBot, written: WrittenRun, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(qtbot, live.time, written.started + 30 * STEP_S + 0.1)
    held, gate = live.shown, threading.Event()
    reader = live.time._reader
    assert reader is not None
    read_at = reader.read
    monkeypatch.setattr(reader, "read", lambda moment: read_at(moment) if gate.wait(10) else None)
    live.time.go(written.started + 3 * STEP_S + 0.1)
    assert live.time.is_waiting and live.shown is held
    gate.set()
    qtbot.waitUntil(lambda: live.shown.step == 3)


def test_now_is_the_end_of_the_line_and_keeps_nothing(
    qtbot: QtBot, written: WrittenRun, live: LiveRun
) -> None:
    told: list[str] = []
    live.time.moved.connect(lambda: told.append("moved"))
    live.time.arrived.connect(lambda: told.append("arrived"))
    assert not readers() and live.time.bounds is not None
    at(qtbot, live.time, written.started + 5)
    past = weakref.ref(live.time.past)
    live.time.go(time.time() + 60)
    gc.collect()
    assert past() is None, "nothing is kept"
    assert live.time.moment is None and live.shown is live
    assert told == ["moved", "arrived", "moved", "arrived"]
    wait_until(lambda: not readers())
    live.time.back_to_now()
    assert len(told) == 4, "one is there already"


def test_it_plays_to_the_end(
    qtbot: QtBot, written: WrittenRun, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankdeck_app.state.time_machine._WHOLE_PLAY_S", 0.5)
    steps: list[int | None] = []
    live.time.arrived.connect(lambda: steps.append(live.shown.step))
    live.time.toggle_play()
    assert live.time.is_playing
    qtbot.waitUntil(lambda: live.time.moment is None)
    assert not live.time.is_playing and len(set(steps)) > 2
    live.time.toggle_play()
    live.time.toggle_play()
    assert live.time.moment is not None and not live.time.is_playing, "a pause stays where it is"


def test_play_goes_on_from_a_moment_that_was_reached_and_after_a_pause(
    qtbot: QtBot, written: WrittenRun, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankdeck_app.state.time_machine._WHOLE_PLAY_S", 2.0)
    machine = live.time
    at(qtbot, machine, written.started + 5)
    for _ in range(2):
        qtbot.waitUntil(lambda: not machine._timer.isActive())
        began = machine.moment or 0.0
        machine.toggle_play()
        qtbot.waitUntil(lambda began=began: machine.moment is None or machine.moment > began)
        machine.toggle_play()
        assert machine.moment is not None and not machine.is_playing


@pytest.mark.parametrize("has_word", [True, False], ids=["ended", "killed"])
def test_a_run_that_is_over_has_a_past_and_an_end(qtbot: QtBot, tmp_path: Path, has_word: bool) -> None:
    written = write_resumed(tmp_path / "runs")
    if has_word:
        written.end()
    written.lose()
    live = LiveRun(written.path)
    live.start()
    read(live)
    last = again_at(written) + (NUM_STEPS - KEPT) * STEP_S
    assert live.time.bounds is not None
    assert live.time.bounds[1] >= last and (has_word or live.time.bounds[1] < last + 1)
    at(qtbot, live.time, again_at(written) + 5.1)
    assert live.shown.is_live and not live.is_live and live.shown.step == KEPT + 10
    live.close()


def test_an_empty_run_has_no_past(qtbot: QtBot, tmp_path: Path) -> None:
    written = WrittenRun(tmp_path / "runs")
    live = LiveRun(written.path)
    live.start()
    read(live)
    acts: list[Callable[[], object]] = [
        lambda: live.time.go(5.0), live.time.go_to_start, live.time.toggle_play,
        lambda: live.time.step_by(-1), lambda: live.time.skip(-10),
    ]  # fmt: skip
    for act in acts:
        act()
        assert live.time.moment is None and live.time.bounds is None and not readers()
    live.close()
    written.lose()
