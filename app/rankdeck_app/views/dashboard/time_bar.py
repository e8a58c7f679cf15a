"""The bar below the dashboard: a time slider, a play button, and a button that returns to the present.

The requested time is shown next to the slider, marked "reading…" until the run's state at that time has been
read.
"""

from __future__ import annotations

from PySide6.QtWidgets import QSizePolicy, QWidget

from rankdeck.base.units import format_count, format_duration
from rankdeck.run.run_history import step_at, step_intervals
from rankdeck_app.language import tr
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.past_run import PastRun
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import push_button, row
from rankdeck_app.widgets.scrubber import AttemptInterval, Scrubber, ScrubberData

Headline = tuple[str, str, str]
_MIN_TIME_LENGTH = len("8.8 s")
"""Minimum width of a displayed time, in characters."""


def scrubber_data(run: LiveRun) -> ScrubberData:
    """Return the slider's data: all attempts of the run and the requested time."""
    machine, bounds = run.time_machine, run.time_machine.bounds
    if bounds is None:
        return ScrubberData(texts=(tr("not started"),))
    start, end = bounds
    attempts = []
    for interval in step_intervals(run.state):
        # A later attempt repeated the steps after `last_kept`. Steps are assumed to take equal time.
        share = (interval.last_kept - interval.first + 1) / (interval.last - interval.first + 1)
        kept_until = interval.started + max(0.0, share) * (interval.ended - interval.started)
        attempts.append(AttemptInterval(interval.started - start, kept_until - start, interval.ended - start))
    # Rounded, because the end of a live run moves in every frame and only different data are drawn.
    total_s = round(end - start, 1)
    at_s = None if machine.viewed_time is None else machine.viewed_time - start
    step = tr("step {step}", step=format_count(run.step or 0))
    widest_time = "8" * max(_MIN_TIME_LENGTH, len(format_duration(total_s)))
    widest = " · ".join([widest_time, step, tr("attempt {number}", number=8)])
    return ScrubberData(total_s, at_s, tuple(attempts), _time_texts(run), widest)


def _time_texts(run: LiveRun) -> tuple[str, ...]:
    machine, bounds = run.time_machine, run.time_machine.bounds
    assert bounds is not None
    if machine.viewed_time is None:
        now = tr("end") if run.is_over else tr("now")
        return f"{now} · {format_duration(bounds[1] - bounds[0])}", now
    at = format_duration(machine.viewed_time - bounds[0])
    if machine.is_loading:
        return " · ".join([at, tr("reading…")]), at
    past = machine.past_run
    assert past is not None
    step = tr("no step yet") if past.step is None else tr("step {step}", step=format_count(past.step))
    texts = [at, step]
    if run.state.num_attempts >= 2 and past.attempt is not None:
        texts.append(tr("attempt {number}", number=past.attempt))
    return " · ".join(texts), f"{at} · {step}", at


def time_travel_headline(run: LiveRun) -> Headline:
    """Return (tone, message, advice) for the banner while an earlier time is viewed."""
    machine, bounds = run.time_machine, run.time_machine.bounds
    assert machine.viewed_time is not None and bounds is not None
    past, start = machine.past_run, bounds[0]
    at = format_duration(machine.viewed_time - start)
    now = "" if run.is_over else tr("Stop and other actions apply to the run's current state.")
    # While playing, every frame is loaded first, and the headline would flicker.
    if machine.is_loading and (past is None or not machine.is_playing):
        shown_text = (
            tr("The current state is shown until loading finishes.")
            if past is None
            else tr(
                "Until loading finishes, the page shows the run as it was {time} after its start.",
                time=format_duration(past.now - start),
            )
        )
        return (
            "info",
            tr("Going back to {time} after the run's start…", time=at),
            f"{shown_text} {now}".strip(),
        )
    assert past is not None
    return "info", _viewed_time_text(at, past), now


def _viewed_time_text(at: str, past: PastRun) -> str:
    if past.step is None:
        return tr("Viewing the run {time} after its start, before its first step.", time=at)
    step = format_count(past.step)
    if past.is_replaced:
        return tr(
            "Viewing the run {time} after its start, at step {step}, which a later attempt repeated.",
            time=at,
            step=step,
        )
    return tr("Viewing the run {time} after its start, at step {step}.", time=at, step=step)


class TimeBar(QWidget):
    """Slider and buttons that change the time at which a run is viewed."""

    def __init__(self, run: LiveRun, theme: Theme) -> None:
        super().__init__()
        self._run, self._theme = run, theme
        machine = run.time_machine
        self.scrubber = Scrubber(theme)
        self.scrubber.seek_requested.connect(self._seek)
        self.scrubber.step_requested.connect(machine.step_by)
        self.scrubber.skip_requested.connect(machine.skip)
        self.play_button = tool_button(theme, "play", tr("Play from the Start"), machine.toggle_play)
        self.now_button = push_button(
            tr("Now"), tr("Return to the run's current state"), machine.go_to_now, height=18
        )
        self._is_playing = False
        self.play_button.setFixedSize(22, 18)
        row(self.play_button, (self.scrubber, 1), self.now_button, on=self, spacing=8)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.show_viewed_time()

    def _seek(self, seconds: float) -> None:
        bounds = self._run.time_machine.bounds
        if bounds is not None:
            # The scrubber's total is rounded, so its end may be shortly before the run's.
            is_end = seconds >= self.scrubber.data.total_s
            self._run.time_machine.go_to(bounds[1] if is_end else bounds[0] + seconds)

    def marks(self) -> tuple[float | None, float | None]:
        """Return the requested time as (seconds since the start, step); both None if it is the present."""
        machine, bounds = self._run.time_machine, self._run.time_machine.bounds
        if machine.viewed_time is None or bounds is None:
            return None, None
        past = None if machine.is_loading else machine.past_run
        # Until the past is loaded, the live run's step times place the mark, so that it follows a drag.
        step = step_at(self._run.state, machine.viewed_time) if past is None else past.step
        return machine.viewed_time - bounds[0], float(step or 0)

    def show_viewed_time(self) -> None:
        machine = self._run.time_machine
        self.scrubber.set_data(scrubber_data(self._run))
        if machine.viewed_time is None and self.now_button.hasFocus():
            self.play_button.setFocus()  # otherwise Qt focuses the next widget, where Space may start a run
        self.now_button.setEnabled(machine.viewed_time is not None)
        if machine.is_playing != self._is_playing:
            self._is_playing = machine.is_playing
            text = tr("Pause") if machine.is_playing else tr("Play")
            self.play_button.setIcon(self._theme.icon("debug-pause" if machine.is_playing else "play"))
            self.play_button.setToolTip(text)
            self.play_button.setAccessibleName(text)
