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
from tests.helpers.resumed_run import (
    LAST_KEPT,
    NUM_STEPS,
    PAUSE_S,
    STEP_S,
    bytes_of,
    loss_of,
    second_start_time,
    write_resumed,
)
from tests.helpers.waiting import scale_timeout, wait_until
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
    drain_all(live)
    yield live
    live.close()
    wait_until(lambda: not reader_threads())


def drain_all(live: LiveRun) -> None:
    def is_read() -> bool:
        live.drain()
        return live.outcome is not None and not live.has_unread

    wait_until(is_read)


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("past of")]


def go_and_wait(qtbot: QtBot, machine: TimeMachine, time_s: float) -> None:
    machine.go_to(time_s)
    qtbot.waitUntil(lambda: not machine.is_loading)


def test_a_past_time_shows_only_earlier_events(qtbot: QtBot, written: WrittenRun, live: LiveRun) -> None:
    assert live.viewed is live and live.step == NUM_STEPS
    ran_s = NUM_STEPS * STEP_S + 1
    for step in (33, 12):
        go_and_wait(qtbot, live.time_machine, written.started + step * STEP_S + 0.2)
        past = live.viewed
        assert past is not live and past.step == step and past.elapsed_s == pytest.approx(step * STEP_S + 0.2)
        sampled = step // 5 * 5
        assert [past.device_bytes(device) for device in past.devices] == [
            bytes_of(sampled, 0),
            bytes_of(sampled, 1),
        ]
        assert past.state.anatomy is not None and past.state.anatomy.step == sampled
        assert past.state.losses.last_y == pytest.approx(loss_of(step, 0), rel=1e-5), (
            "as it was before it was trained again"
        )
        assert [problem.code for problem in past.problems] == (["slow"] if step >= 30 else [])
        assert past.is_live and past.devices[0].utilisation == pytest.approx(step / 100)
    go_and_wait(qtbot, live.time_machine, written.started + NUM_STEPS * STEP_S + 3)
    assert (live.viewed.outcome, live.viewed.step) == ("stopped", NUM_STEPS)
    assert live.viewed.elapsed_s == pytest.approx(ran_s), "it lies stopped"
    go_and_wait(qtbot, live.time_machine, second_start_time(written) + 0.05)
    assert (live.viewed.outcome, live.viewed.step) == ("running", NUM_STEPS), "nothing is restored yet"
    go_and_wait(qtbot, live.time_machine, second_start_time(written) + 0.3)
    assert live.viewed.step == LAST_KEPT and live.viewed.elapsed_s == pytest.approx(ran_s + 0.3)
    assert live.since_start_s is not None and live.elapsed_s is not None
    assert live.since_start_s - live.elapsed_s == pytest.approx(PAUSE_S - 1, abs=0.5), "between attempts"


def test_before_the_first_step_metrics_are_unknown(qtbot: QtBot, written: WrittenRun, live: LiveRun) -> None:
    go_and_wait(qtbot, live.time_machine, written.started + 0.2)
    past = live.viewed
    assert (past.step, past.loss, past.samples_per_s, past.state.anatomy, past.imbalance) == (None,) * 5
    assert [past.device_bytes(device) for device in past.devices] == [None, None]


def test_replaced_steps_are_drawn_as_first_trained(qtbot: QtBot, written: WrittenRun, live: LiveRun) -> None:
    go_and_wait(qtbot, live.time_machine, written.started + 10 * STEP_S)
    assert live.viewed.charted_run is live, "what lies before and after is seen too"
    go_and_wait(qtbot, live.time_machine, written.started + 30 * STEP_S + 0.1)
    assert live.viewed.charted_run is live.viewed
    machine = live.time_machine
    machine.step_by(1)
    qtbot.waitUntil(lambda: not machine.is_loading)
    assert live.viewed.step == 31 and live.viewed.loss == pytest.approx(loss_of(31, 0), abs=1)
    go_and_wait(qtbot, machine, written.started + NUM_STEPS * STEP_S + PAUSE_S / 2)
    machine.step_by(1)
    qtbot.waitUntil(lambda: not machine.is_loading)
    assert (live.viewed.step, machine.past_run and machine.past_run.attempt) == (LAST_KEPT + 1, 1), (
        "over the gap, once more"
    )


def test_dragging_is_fast_and_ends_at_the_released_time(
    qtbot: QtBot, written: WrittenRun, live: LiveRun
) -> None:
    choose, slowest_s = random.Random(1), 0.0
    for _ in range(200):
        start_s = time.thread_time()
        live.time_machine.go_to(choose.uniform(written.started, second_start_time(written)))
        slowest_s = max(slowest_s, time.thread_time() - start_s)
    assert slowest_s < scale_timeout(ANSWER_S)
    assert len(reader_threads()) == 1
    go_and_wait(qtbot, live.time_machine, written.started + 7 * STEP_S + 0.1)
    assert live.viewed.step == 7


def test_the_previous_past_stays_while_loading(
    qtbot: QtBot, written: WrittenRun, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_and_wait(qtbot, live.time_machine, written.started + 30 * STEP_S + 0.1)
    past, gate = live.viewed, threading.Event()
    reader = live.time_machine._reader
    assert reader is not None
    read_at = reader.read
    monkeypatch.setattr(reader, "read", lambda time_s: read_at(time_s) if gate.wait(10) else None)
    live.time_machine.go_to(written.started + 3 * STEP_S + 0.1)
    assert live.time_machine.is_loading and live.viewed is past
    gate.set()
    qtbot.waitUntil(lambda: live.viewed.step == 3)


def test_returning_to_now_releases_the_reader(qtbot: QtBot, written: WrittenRun, live: LiveRun) -> None:
    signals: list[str] = []
    live.time_machine.time_changed.connect(lambda: signals.append("moved"))
    live.time_machine.past_loaded.connect(lambda: signals.append("arrived"))
    assert not reader_threads() and live.time_machine.bounds is not None
    go_and_wait(qtbot, live.time_machine, written.started + 5)
    past = weakref.ref(live.time_machine.past_run)
    live.time_machine.go_to(time.time() + 60)
    gc.collect()
    assert past() is None, "nothing is kept"
    assert live.time_machine.viewed_time is None and live.viewed is live
    assert signals == ["moved", "arrived", "moved", "arrived"]
    wait_until(lambda: not reader_threads())
    live.time_machine.go_to_now()
    assert len(signals) == 4, "one is there already"


def test_playback_reaches_the_end(
    qtbot: QtBot, written: WrittenRun, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankdeck_app.state.time_machine._PLAYBACK_S", 0.5)
    steps: list[int | None] = []
    live.time_machine.past_loaded.connect(lambda: steps.append(live.viewed.step))
    live.time_machine.toggle_play()
    assert live.time_machine.is_playing
    qtbot.waitUntil(lambda: live.time_machine.viewed_time is None)
    assert not live.time_machine.is_playing and len(set(steps)) > 2
    live.time_machine.toggle_play()
    live.time_machine.toggle_play()
    assert live.time_machine.viewed_time is not None and not live.time_machine.is_playing, (
        "a pause stays where it is"
    )


def test_playback_resumes_after_a_pause(
    qtbot: QtBot, written: WrittenRun, live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankdeck_app.state.time_machine._PLAYBACK_S", 2.0)
    machine = live.time_machine
    go_and_wait(qtbot, machine, written.started + 5)
    for _ in range(2):
        qtbot.waitUntil(lambda: not machine._timer.isActive())
        start_time = machine.viewed_time or 0.0
        machine.toggle_play()
        qtbot.waitUntil(
            lambda resumed_at=start_time: machine.viewed_time is None or machine.viewed_time > resumed_at
        )
        machine.toggle_play()
        assert machine.viewed_time is not None and not machine.is_playing


@pytest.mark.parametrize("has_word", [True, False], ids=["ended", "killed"])
def test_an_ended_run_has_a_past(qtbot: QtBot, tmp_path: Path, has_word: bool) -> None:
    written = write_resumed(tmp_path / "runs")
    if has_word:
        written.end()
    written.lose()
    live = LiveRun(written.path)
    live.start()
    drain_all(live)
    last = second_start_time(written) + (NUM_STEPS - LAST_KEPT) * STEP_S
    assert live.time_machine.bounds is not None
    assert live.time_machine.bounds[1] >= last and (has_word or live.time_machine.bounds[1] < last + 1)
    go_and_wait(qtbot, live.time_machine, second_start_time(written) + 5.1)
    assert live.viewed.is_live and not live.is_live and live.viewed.step == LAST_KEPT + 10
    live.close()


def test_an_empty_run_has_no_past(qtbot: QtBot, tmp_path: Path) -> None:
    written = WrittenRun(tmp_path / "runs")
    live = LiveRun(written.path)
    live.start()
    drain_all(live)
    acts: list[Callable[[], object]] = [
        lambda: live.time_machine.go_to(5.0), live.time_machine.go_to_start, live.time_machine.toggle_play,
        lambda: live.time_machine.step_by(-1), lambda: live.time_machine.skip(-10),
    ]  # fmt: skip
    for act in acts:
        act()
        assert (
            live.time_machine.viewed_time is None
            and live.time_machine.bounds is None
            and not reader_threads()
        )
    live.close()
    written.lose()
