"""Reads a run's events as they come and shows them, until the run has ended and everything is read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rankdeck.cli.display import Display
from rankdeck.launch.control import is_over
from rankdeck.run.batch import Batch
from rankdeck.run.run_state import RunState
from rankdeck.run_dir import EventReader, RunDir, parse_attempt

POLL_INTERVAL_S = 0.08


def follow(
    run: RunDir, display: Display, on_tick: Callable[[], bool] | None = None, attempt: int = 0
) -> RunState:
    """The fold of the run once it has ended. `on_tick` is asked in between; False leaves early.

    Events before `attempt` count, and are not shown.
    """
    fold, reader = RunState(curves=False), EventReader(run)
    display.open()
    try:
        while True:
            # The end is looked for before the events are read: after it nothing more is written.
            ended = is_over(run)
            is_new = False
            for name, chunk in reader.batches():
                is_new = True
                batch = Batch(counts=reader.counts())
                batch.add(name, chunk)
                fold.apply(batch)
                if parse_attempt(name) >= attempt:
                    for event in chunk:
                        display.show_event(name.rsplit(".", 2)[0], event, fold)
            display.tick(fold)
            if on_tick is not None and not on_tick():
                break
            if is_new:
                continue
            if ended:
                break
            time.sleep(POLL_INTERVAL_S)
    finally:
        display.close()
    return fold


def choose_display(run: RunDir, *, progress: bool = True) -> Display:
    """The display for where stdout goes."""
    if not progress:
        return Display()
    if sys.stdout.isatty():
        from rankdeck.cli.live import LiveDisplay

        return LiveDisplay(run)
    from rankdeck.cli.display import PlainDisplay

    return PlainDisplay()
