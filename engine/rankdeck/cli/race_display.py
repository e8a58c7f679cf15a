"""Displays of a running race: a line per finished entry, and a live line for the running one."""

from __future__ import annotations

import sys
import time

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rankdeck.base.units import format_duration
from rankdeck.cli import console
from rankdeck.cli.display import Display
from rankdeck.cli.formatting import bar
from rankdeck.cli.live import REDRAW_INTERVAL_S
from rankdeck.cli.race_tables import entry_line, race_introduction
from rankdeck.run.race import WAITING, Race, RaceEntry
from rankdeck.run.run_state import RunState


def estimate_remaining_s(race: Race, now_s: float) -> float | None:
    """Return the seconds left, assuming entries of equal duration; None before the first entry is done.

    `now_s` is the Unix time at which the running entry started.
    """
    done = sum(entry.is_over for entry in race.entries)
    if not done:
        return None
    waiting = sum(entry.state == WAITING for entry in race.entries)
    repeats = any(entry.repeats is not None for entry in race.entries)
    each_s = (now_s - race.began) / done
    # What is left: the running entry, the waiting ones, and the final repeat of an entry, if it is not listed
    # yet.
    return each_s * (1 + waiting + (0 if repeats else 1))


class RaceDisplay(Display):
    """Base display of a race. It shows nothing: `race --json` prints its result only at the end."""

    def __init__(self, race: Race) -> None:
        self.race = race

    def start_entry(self, entry: RaceEntry) -> None:
        """Handle an entry that is about to start."""

    def finish_entry(self, entry: RaceEntry) -> None:
        """Handle an entry that is over."""


class PlainRaceDisplay(RaceDisplay):
    """Display that prints a line per entry, for a pipe, a file or a log."""

    def __init__(self, race: Race) -> None:
        super().__init__(race)
        console.out().print(race_introduction(race), style="dim", soft_wrap=True)

    def finish_entry(self, entry: RaceEntry) -> None:
        console.out().print(entry_line(self.race, entry), soft_wrap=True)
        sys.stdout.flush()

    def show_message(self, text: str) -> None:
        console.out().print(text, style="dim")


class LiveRaceDisplay(PlainRaceDisplay):
    """Display for a terminal: a line per finished entry, with the running entry below."""

    def __init__(self, race: Race) -> None:
        super().__init__(race)
        self._spinner = Spinner("dots")
        self._entry: RaceEntry | None = None
        self._entry_started = self._last_drawn_s = 0.0
        self._live: Live | None = None

    def start_entry(self, entry: RaceEntry) -> None:
        self._entry, self._entry_started = entry, time.time()

    def open(self) -> None:
        # A new Live for each entry, because follow() opens and closes the display for each of them.
        self._live = Live(console=console.out(), auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show_message(self, text: str) -> None:
        (self._live.console if self._live is not None else console.out()).print(text, style="dim")

    def tick(self, state: RunState) -> None:
        now_s = time.monotonic()
        if self._live is None or self._entry is None or now_s - self._last_drawn_s < REDRAW_INTERVAL_S:
            return
        self._last_drawn_s = now_s
        text = Text(f"{self._entry.label}  ", style="bold", no_wrap=True, overflow="ellipsis")
        if state.step:
            text.append_text(bar(state.step / self.race.steps, style="green"))
            text.append(f" {state.step}/{self.race.steps}", style="not bold")
        else:
            phases = state.phases
            text.append(phases[min(phases)] if phases else "starting", style="cyan not bold")
        remaining_s = estimate_remaining_s(self.race, self._entry_started)
        if remaining_s is not None:
            text.append(f"  about {format_duration(remaining_s)} left", style="dim not bold")
        line = Table.grid(padding=(0, 1))
        line.add_row(self._spinner, text)
        self._live.update(line, refresh=True)


def make_race_display(race: Race, *, quiet: bool) -> RaceDisplay:
    """Return the display for stdout: none if `quiet`, live on a terminal, plain lines elsewhere."""
    if quiet:
        return RaceDisplay(race)
    return LiveRaceDisplay(race) if sys.stdout.isatty() else PlainRaceDisplay(race)
