"""Read and show a run's events as they are written, until the run has ended and all events are read."""

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
    """Show a run until it has ended, and return its state.

    `on_tick` is called between reads; if it returns False, following stops early. Events of attempts before
    `attempt` update the state but are not shown.
    """
    # Displays show the newest values only, so no curves are built.
    state, reader = RunState(curves=False), EventReader(run)
    display.open()
    try:
        while True:
            # Check for the end before reading: nothing is written after the end, so no event is missed.
            ended = is_over(run)
            is_new = False
            for name, chunk in reader.batches():
                is_new = True
                batch = Batch(counts=reader.counts())
                batch.add(name, chunk)
                state.apply(batch)
                if parse_attempt(name) >= attempt:
                    for event in chunk:
                        display.show_event(name.rsplit(".", 2)[0], event, state)
            display.tick(state)
            if on_tick is not None and not on_tick():
                break
            # More may have been written meanwhile, so read again before sleeping or ending.
            if is_new:
                continue
            if ended:
                break
            time.sleep(POLL_INTERVAL_S)
    finally:
        display.close()
    return state


def choose_display(run: RunDir, *, progress: bool = True) -> Display:
    """Return the display for stdout: a live view on a terminal, plain lines elsewhere."""
    if not progress:
        return Display()
    if sys.stdout.isatty():
        from rankdeck.cli.live import LiveDisplay

        return LiveDisplay(run)
    from rankdeck.cli.display import PlainDisplay

    return PlainDisplay()
