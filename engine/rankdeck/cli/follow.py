"""Reads a run's events as they come and shows them, until the run has ended and everything is read."""

from __future__ import annotations

import time
from collections.abc import Callable

from rankdeck.cli.display import Display
from rankdeck.run.report import RunFigures
from rankdeck.rundir import EventReader, RunDir

EVERY_S = 0.08


def follow(
    run: RunDir, display: Display, on_tick: Callable[[], bool] | None = None, attempt: int = 0
) -> RunFigures:
    """The figures of the run once it has ended. `on_tick` is asked in between; False leaves early.

    Events before `attempt` count, and are not shown.
    """
    figures, reader = RunFigures(), EventReader(run)
    display.open()
    try:
        while True:
            # The end is looked for before the events are read: after it nothing more is written.
            ended = run.outcome() != "running"
            found = reader.read()
            for writer, event in found:
                figures.feed(writer, event)
                if not attempt or (figures.started is not None and figures.started.attempt >= attempt):
                    display.event(writer, event, figures)
            display.tick(figures)
            if on_tick is not None and not on_tick():
                break
            if found:
                continue
            if ended:
                break
            time.sleep(EVERY_S)
    finally:
        display.close()
    return figures
