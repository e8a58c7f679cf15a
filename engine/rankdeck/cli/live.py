"""Show a run on a terminal: a progress line and a bar per device, redrawn several times a second.

All bars share one scale, so that a device with more memory in use stands out. Messages (evaluations,
problems) scroll above the live view.
"""

from __future__ import annotations

import sys
import time

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from rankdeck import events
from rankdeck.base.units import format_bytes, format_count, format_duration
from rankdeck.cli import console
from rankdeck.cli.display import Display
from rankdeck.cli.formatting import (
    bar,
    evaluation_text,
    kinds_text,
    loss_text,
    one_line,
    progress_parts,
)
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.anatomy import SIMULATED_TIME
from rankdeck.run.devices import DeviceState
from rankdeck.run.run_state import RunState
from rankdeck.run.verified import verified_text
from rankdeck.run_dir import RunDir

REDRAW_INTERVAL_S = 0.125


class LiveDisplay(Display):
    """Live view of a run. Only `tick` redraws it; rich's automatic refresh is off."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._console = console.out()
        self._spinner = Spinner("dots")
        self._last_drawn_s = 0.0
        # Redirect stderr only if it is a terminal: a log file must keep its lines.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            # The summary printed at the end takes the view's place.
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
        )

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def show_event(self, writer: str, event: events.AnyEvent, state: RunState) -> None:
        match event:
            case events.Verified():
                self.show_message(verified_text(event))
            case events.Evaluation():
                self.show_message(evaluation_text(event))
            case events.ProblemRaised():
                console.print_problem(state.with_host(event.problem))

    def show_message(self, text: str) -> None:
        self._console.print(text, style="dim")

    def tick(self, state: RunState) -> None:
        if time.monotonic() - self._last_drawn_s >= REDRAW_INTERVAL_S:
            bars = [device_bars(state)] if state.devices else []
            title = _title_line(self._run, state)
            if self.age_s is not None:
                title.append(f"  {format_duration(self.age_s)} old", style="yellow")
            picture = Group(title, self._progress_line(state), *bars)
            self._live.update(picture, refresh=True)
            self._last_drawn_s = time.monotonic()

    def _progress_line(self, state: RunState) -> RenderableType:
        last = state.last_row
        if last is None:
            self._spinner.update(text=Text(_phase_text(state), style="cyan"))
            return self._spinner
        planned = state.num_steps_planned
        if not planned:
            step, *rest = progress_parts(state)
            return Text(step, style="bold").append("".join(f"  {word}" for word in rest), style="not bold")
        line = bar(last.step / planned, style="green")
        line.append(f" {format_count(last.step)}/{format_count(planned)}", style="bold")
        line.append(f"  loss {loss_text(last.loss)}")
        rate, left_s = state.recent_samples_per_s(), state.remaining_s()
        if rate is not None:
            line.append(f"  {format_count(rate)} samples/s")
        if left_s:
            line.append(f"  {format_duration(left_s)} left", style="dim")
        # After its last step a run still evaluates and saves; without the phase the full bar would look like
        # a hang.
        if last.step >= planned:
            line.append(f"  {_phase_text(state)}", style="cyan")
        return line


def _title_line(run: RunDir, state: RunState) -> Text:
    title = Text(one_line(run.title), style="bold", no_wrap=True, overflow="ellipsis")
    strategy = state.started.strategy if state.started is not None else None
    if strategy is not None:
        card = STRATEGIES.get(strategy)
        title.append(f"  {card.title if card else strategy}", style="cyan")
    elif state.script.lead_observation is not None and state.script.lead_observation.wrapper:
        title.append(f"  {one_line(state.script.lead_observation.wrapper)} (observed)", style="cyan")
    if state.source:
        title.append(f"  {state.source}", style="dim")
    if state.started is not None and state.started.pace == "simulated":
        title.append(f"  {SIMULATED_TIME}", style="dim")
    return title


def _phase_text(state: RunState) -> str:
    if state.script.is_observed and set(state.phases.values()) <= {"started"}:
        return "no optimizer step yet"
    if not state.phases:
        return "starting ranks" if state.started else "starting"
    return state.phases[min(state.phases)]


def device_bars(state: RunState) -> Group:
    """Return a row per device: a memory bar, current and peak bytes, utilisation, and largest memory kinds.

    All bars share one scale. A bar is bright up to the current bytes and dim from there up to the peak. Rows
    are truncated on narrow terminals.
    """
    devices = list(state.devices.values())
    full_bytes = max((_scale_bytes(device) for device in devices), default=0)
    imbalance = state.imbalance()
    lead = imbalance.device if imbalance is not None and imbalance.is_notable else None
    cells = [_device_cells(device) for device in devices]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = []
    for device, texts in zip(devices, cells, strict=True):
        label, now, peak, busy, kinds = (word.rjust(width) for word, width in zip(texts, widths, strict=True))
        style = "yellow" if device.device == lead else "blue"
        row = Text(f"{label.strip().ljust(widths[0])}  ", style="bold", no_wrap=True, overflow="ellipsis")
        row.append_text(_memory_bar(device, full_bytes, style))
        row.append(f"  {now}", style="default not bold")
        row.append(f"  {peak}", style=f"{style} not bold")
        row.append(f"  {busy}  ", style="default not bold")
        row.append(kinds.strip(), style="default dim not bold")
        rows.append(row)
    return Group(*rows)


def _device_cells(device: DeviceState) -> tuple[str, str, str, str, str]:
    """Return the texts of a device's row: label, current bytes, peak, utilisation, kinds."""
    now = _current_bytes(device)
    return (
        f"{device.device} {device.info.title if device.info else ''}".rstrip(),
        "?" if now is None else format_bytes(now),
        _peak_text(device),
        "" if device.utilisation is None else f"{device.utilisation * 100:.0f} %",
        kinds_text(dict(device.peak_by_kind or device.live_by_kind or {})),
    )


def _peak_text(device: DeviceState) -> str:
    if device.is_owners_only:
        return "owners seen"
    return "" if device.peak_bytes is None else f"peak {format_bytes(device.peak_bytes)}"


def _current_bytes(device: DeviceState) -> int | None:
    # Live tensors are the run's own, while a GPU's used bytes include other processes.
    return device.live_bytes if device.live_bytes is not None else device.used_bytes


def _scale_bytes(device: DeviceState) -> int:
    return max(device.live_bytes or 0, device.peak_bytes or 0, device.used_bytes or 0)


def _memory_bar(device: DeviceState, full_bytes: int, style: str) -> Text:
    now, peak = _current_bytes(device) or 0, device.peak_bytes or 0
    if not full_bytes:
        return bar(0.0, style=style)
    return bar(now / full_bytes, style=style, peak=max(now, peak) / full_bytes)
