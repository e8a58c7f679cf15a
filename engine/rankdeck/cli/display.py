"""Displays with which `train` and `watch` show a run in progress.

On a terminal they show a live view (live.py), in a pipe plain lines, and with `watch --json` the events
themselves. follow.py chooses and feeds a display, which never blocks.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rankdeck import events
from rankdeck.base.units import format_duration
from rankdeck.cli import console
from rankdeck.cli.formatting import evaluation_text, loss_text, progress_parts
from rankdeck.run.anatomy import SIMULATED_TIME
from rankdeck.run.run_state import RunState
from rankdeck.run.summary import TrainingData
from rankdeck.run.verified import verified_text

if TYPE_CHECKING:
    from rankdeck.run.run_state import RunState


class Display:
    """Base display, active from `open` to `close`. It shows nothing and is used for `train --json`."""

    age_s: float | None = None
    """Age of the shown state, if it comes from a host that is not answering."""

    def open(self) -> None:
        pass

    def show_event(self, writer: str, event: events.AnyEvent, state: RunState) -> None:
        """Show an event of `writer`, such as "rank-0"; `state` already includes the event."""

    def tick(self, state: RunState) -> None:
        """Update the display; called several times a second, with or without new events."""

    def show_message(self, text: str) -> None:
        """Show a message from the command itself."""

    def close(self) -> None:
        pass


class JsonDisplay(Display):
    """Display that prints every event and its writer as a JSON line."""

    def show_event(self, writer: str, event: events.AnyEvent, state: RunState) -> None:
        # The writer is spliced into the encoded line, because an event has no field for it.
        sys.stdout.write(f'{{"writer":"{writer}",{events.encode(event).decode()[1:]}')

    def tick(self, state: RunState) -> None:
        sys.stdout.flush()


# A run as plain lines, for a pipe, a file or a CI log: at most one line of progress a second.

PROGRESS_INTERVAL_S = 1.0


class PlainDisplay(Display):
    """Display that prints plain lines on stdout; problems go to stderr as soon as they are reported."""

    def __init__(self) -> None:
        self._last_printed_s = 0.0
        self._printed_step = 0
        self._phase = "starting"  # printed with the number of ranks

    def show_event(self, writer: str, event: events.AnyEvent, state: RunState) -> None:
        match event:
            case events.RunStarted():
                pace = f", {SIMULATED_TIME}" if event.pace == "simulated" else ""
                self.show_message(
                    f"starting {event.world_size} rank{'s' if event.world_size > 1 else ''}{pace}"
                )
            case events.Phase() if event.rank == 0 and event.phase != self._phase:
                self._phase = event.phase
                self.show_message(
                    ", ".join(filter(None, (event.phase, TrainingData(event.samples, event.left_out).text())))
                )
            case events.Verified():
                self.show_message(verified_text(event))
            # The line of the evaluated step comes first. `state` may include later steps, whose lines must
            # wait.
            case events.Evaluation():
                self._print_progress(state, up_to=event.step)
                self.show_message(evaluation_text(event))
            # Problems go to stderr; in a log of both streams they must follow the lines that came before.
            case events.ProblemRaised():
                sys.stdout.flush()
                console.print_problem(state.with_host(event.problem))

    def tick(self, state: RunState) -> None:
        if time.monotonic() - self._last_printed_s >= PROGRESS_INTERVAL_S:
            self._print_progress(state)

    def _print_progress(self, state: RunState, up_to: int | None = None) -> None:
        """Print a line for the newest complete step, or for step `up_to` if that step is older."""
        newest = state.step or 0
        step = min(newest, up_to) if up_to is not None else newest
        row = state.row_at(step) if step > self._printed_step else None
        if row is None:
            return
        planned = state.num_steps_planned
        if not planned:
            texts = progress_parts(state)
        else:
            rate, left_s = state.recent_samples_per_s(), state.remaining_s()
            texts = [f"step {step}/{planned}", f"loss {loss_text(row.loss)}"]
            if rate is not None:
                texts.append(f"{rate:.1f} samples/s")
            if left_s is not None and left_s > 0:
                texts.append(f"{format_duration(left_s)} left")
        self.show_message("  ".join(texts))
        self._last_printed_s, self._printed_step = time.monotonic(), step

    def show_message(self, text: str) -> None:
        sys.stdout.write(console.replace_control_characters(text) + "\n")
        sys.stdout.flush()
