"""What `train` and `watch` show while a run goes on.

On a terminal a picture that is redrawn (live.py), piped plain lines, with `watch --json` the
events themselves. A display is picked and fed by follow.py and never waits.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rankdeck import events
from rankdeck.base.units import format_duration
from rankdeck.cli import console
from rankdeck.cli.words import evaluation_in_words, loss_in_words, progress_without_plan
from rankdeck.run.anatomy import SIMULATED_TIME
from rankdeck.run.fold import Fold
from rankdeck.run.summary import TrainingData
from rankdeck.run.verified import verified_text

if TYPE_CHECKING:
    from rankdeck.run.fold import Fold


class Display:
    """Shown from `open` to `close`. This one shows nothing: `train --json` speaks once, at the end."""

    age_s: float | None = None
    """How old what is shown is, where it comes from a host that does not answer."""

    def open(self) -> None:
        pass

    def event(self, writer: str, event: events.AnyEvent, fold: Fold) -> None:
        """One event, already folded into `fold`."""

    def tick(self, fold: Fold) -> None:
        """Several times a second, whether or not there was an event."""

    def say(self, words: str) -> None:
        """A remark of the command's own."""

    def close(self) -> None:
        pass


class JsonLines(Display):
    """Every event as a JSON line with its writer."""

    def event(self, writer: str, event: events.AnyEvent, fold: Fold) -> None:
        sys.stdout.write(f'{{"writer":"{writer}",{events.encode(event).decode()[1:]}')

    def tick(self, fold: Fold) -> None:
        sys.stdout.flush()


# A run as plain lines, for a pipe, a file or a CI log: at most one line of progress a second.

EVERY_S = 1.0


class PlainLines(Display):
    """Lines on stdout; problems on stderr as they come."""

    def __init__(self) -> None:
        self._printed_s = 0.0
        self._printed_step = 0
        self._phase = "starting"  # said with the number of ranks already

    def event(self, writer: str, event: events.AnyEvent, fold: Fold) -> None:
        match event:
            case events.RunStarted():
                pace = f", {SIMULATED_TIME}" if event.pace == "simulated" else ""
                self.say(f"starting {event.world_size} rank{'s' if event.world_size > 1 else ''}{pace}")
            case events.Phase() if event.rank == 0 and event.phase != self._phase:
                self._phase = event.phase
                self.say(
                    ", ".join(filter(None, (event.phase, TrainingData(event.samples, event.left_out).text())))
                )
            case events.Verified():
                self.say(verified_text(event))
            case events.Evaluation():
                self._progress(fold, up_to=event.step)
                self.say(evaluation_in_words(event))
            case events.ProblemRaised():
                sys.stdout.flush()
                console.problem(fold.placed(event.problem))

    def tick(self, fold: Fold) -> None:
        if time.monotonic() - self._printed_s >= EVERY_S:
            self._progress(fold)

    def _progress(self, fold: Fold, up_to: int | None = None) -> None:
        """A line for the newest complete step, or for step `up_to` where that is one."""
        newest = fold.step or 0
        step = min(newest, up_to) if up_to is not None else newest
        row = fold.row_at(step) if step > self._printed_step else None
        if row is None:
            return
        planned = fold.num_steps_planned
        if not planned:
            words = progress_without_plan(fold)
        else:
            rate, left_s = fold.recent_samples_per_s(), fold.remaining_s()
            words = [f"step {step}/{planned}", f"loss {loss_in_words(row.loss)}"]
            if rate is not None:
                words.append(f"{rate:.1f} samples/s")
            if left_s is not None and left_s > 0:
                words.append(f"{format_duration(left_s)} left")
        self.say("  ".join(words))
        self._printed_s, self._printed_step = time.monotonic(), step

    def say(self, words: str) -> None:
        sys.stdout.write(console.harmless(words) + "\n")
        sys.stdout.flush()
