"""Below the dashboard: the time of the run to drag along, play, and the way back to now.

The words say the moment that is asked for, and where it is not read yet, which one is still shown.
"""

from __future__ import annotations

from PySide6.QtWidgets import QSizePolicy, QWidget

from rankdeck.base.units import format_count
from rankdeck.run.moments import step_at, stretches
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import push_button, row
from rankdeck_app.widgets.scrubber import Scrubber, TimeFigure, TimeStretch
from rankdeck_app.widgets.time_words import elapsed_label

Headline = tuple[str, str, str]


def time_figure(run: LiveRun) -> TimeFigure:
    """All attempts of the run, and the moment that is asked for."""
    machine, bounds = run.time, run.time.bounds
    if bounds is None:
        return TimeFigure(words=("not begun",))
    began, ended = bounds
    found = []
    for one in stretches(run.fold):
        share = (one.kept - one.first + 1) / (one.last - one.first + 1)
        kept = one.began + max(0.0, share) * (one.ended - one.began)
        found.append(TimeStretch(one.began - began, kept - began, one.ended - began))
    whole_s = round(ended - began, 1)
    at_s = None if machine.moment is None else machine.moment - began
    widest = f"{'8' * len(elapsed_label(whole_s))} · step {format_count(run.step or 0)} · attempt 8"
    return TimeFigure(whole_s, at_s, tuple(found), _words(run), widest)


def _words(run: LiveRun) -> tuple[str, ...]:
    machine, bounds = run.time, run.time.bounds
    assert bounds is not None
    if machine.moment is None:
        return f"now · {elapsed_label(bounds[1] - bounds[0])}", "now"
    at = elapsed_label(machine.moment - bounds[0])
    if machine.is_waiting:
        return f"{at} · reading…", at
    past = machine.past
    assert past is not None
    step = "no step yet" if past.step is None else f"step {format_count(past.step)}"
    attempt = "" if run.fold.num_attempts < 2 or past.attempt is None else f" · attempt {past.attempt + 1}"
    return f"{at} · {step}{attempt}", f"{at} · {step}", at


def looking_back(run: LiveRun) -> Headline:
    """(tone, message, advice) while somebody looks back."""
    machine, bounds = run.time, run.time.bounds
    assert machine.moment is not None and bounds is not None
    past, began = machine.past, bounds[0]
    at = elapsed_label(machine.moment - began)
    now = "Stop and what else acts on the run acts on it as it is now."
    if machine.is_waiting:
        held = "now" if past is None else elapsed_label(past.now - began)
        return "info", f"Going back to {at} after the start…", f"Until it is read, {held} is shown. {now}"
    assert past is not None
    step = "before its first step" if past.step is None else f"at step {format_count(past.step)}"
    again = ", which a later attempt trained again" if past.is_replaced else ""
    return "info", f"You look back at {at} after the start, {step}{again}.", now


class TimeBar(QWidget):
    """Moves the time machine of a run."""

    def __init__(self, run: LiveRun, theme: Theme) -> None:
        super().__init__()
        self._run, self._theme = run, theme
        machine = run.time
        self.scrubber = Scrubber(theme)
        self.scrubber.sought.connect(self._seek)
        self.scrubber.stepped.connect(machine.step_by)
        self.scrubber.skipped.connect(machine.skip)
        self.play = tool_button(theme, "play", "Play from the Start", machine.toggle_play)
        self.now = push_button("Now", "Back to what the run does now", machine.back_to_now, height=18)
        self._is_playing = False
        self.play.setFixedSize(22, 18)
        row(self.play, (self.scrubber, 1), self.now, on=self, spacing=8)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.show_moment()

    def _seek(self, seconds: float) -> None:
        bounds = self._run.time.bounds
        if bounds is not None:
            is_end = seconds >= self.scrubber.figure.whole_s
            self._run.time.go(bounds[1] if is_end else bounds[0] + seconds)

    def marks(self) -> tuple[float | None, float | None]:
        """(seconds since the start, step) of the moment that is asked for; None is now."""
        machine, bounds = self._run.time, self._run.time.bounds
        if machine.moment is None or bounds is None:
            return None, None
        past = None if machine.is_waiting else machine.past
        step = step_at(self._run.fold, machine.moment) if past is None else past.step
        return machine.moment - bounds[0], float(step or 0)

    def show_moment(self) -> None:
        machine = self._run.time
        self.scrubber.set_figure(time_figure(self._run))
        self.now.setEnabled(machine.moment is not None)
        if machine.is_playing != self._is_playing:
            self._is_playing = machine.is_playing
            icon, words = ("debug-pause", "Pause") if machine.is_playing else ("play", "Play")
            self.play.setIcon(self._theme.icon(icon))
            self.play.setToolTip(words)
            self.play.setAccessibleName(words)
