"""Run the sampler (`rankdeck devices --follow --json`), a process that reads GPU metrics, locally or over
ssh.

A separate process queries the driver, because NVML calls can block and have crashed when a GPU was lost. If
the process ends or is silent for too long, it is restarted after a pause that doubles each time. If there is
no driver, it is not restarted until `start` is called again. gpus.py turns the sampler's lines into the
current state.
"""

from __future__ import annotations

import math
import time

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.phrases import phrase
from rankdeck.run.series import Series
from rankdeck.telemetry.readings import METRICS, DevicesLine, NoticeLine, SampleLine, decode, throttle_reasons
from rankdeck_app.language import tr, translate
from rankdeck_app.state.engine_process import Engine, EngineStream, parse_problems

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
STABLE_AFTER_S = 60.0
"""Lifetime of a sampler process after which the restart pause is reset to its minimum."""
HANG_TIMEOUT_S = 30.0
"""Time without output after which the sampler is killed: while there are devices, a working sampler is never
silent for that long, even if the driver hangs."""
EXIT_NO_DRIVER = 3
_COMMAND = ("devices", "--follow", "--json")


class DeviceFeed(QObject):
    """Sampler process, restarted as needed.

    `line_received` carries one of the sampler's lines (readings.py). `unavailable` carries a sentence that
    explains why there will be no lines. `connection_failed` carries the reason why a host did not answer; the
    connection is retried.
    """

    line_received = Signal(object)
    unavailable = Signal(str)
    connection_failed = Signal(str)

    def __init__(self, engine: Engine, parent: QObject | None = None, *, host: str = "") -> None:
        super().__init__(parent)
        self._engine = engine
        self._command = ("--host", host, *_COMMAND) if host else _COMMAND
        self._stream: EngineStream | None = None
        self._started_s = 0.0
        self._pause_s = MIN_PAUSE_S
        self._last_message = self._refusal = ""
        self._has_devices = False
        self._restart_timer = QTimer(self, singleShot=True)
        self._restart_timer.timeout.connect(self._start_process)
        self._silence_timer = QTimer(self, singleShot=True, interval=round(1e3 * HANG_TIMEOUT_S))
        self._silence_timer.timeout.connect(self._on_silence)

    def start(self) -> None:
        """Start the sampler at once, without the restart pause, unless it is already running."""
        self._pause_s = MIN_PAUSE_S
        if self._stream is None:
            self._start_process()

    def close(self) -> None:
        self._restart_timer.stop()
        self._silence_timer.stop()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()
            stream.deleteLater()

    def _start_process(self) -> None:
        self._restart_timer.stop()
        self._started_s = time.monotonic()
        self._last_message = self._refusal = ""
        self._stream = self._engine.stream(self._command)
        self._stream.lines_received.connect(self._on_lines)
        self._stream.finished.connect(self._on_ended)

    def _on_lines(self, lines: list[bytes]) -> None:
        for data in lines:
            line = decode(data)
            if line is None:
                problems = parse_problems(data.decode(errors="replace"))
                self._refusal = problems[0].sentence if problems else self._refusal
                continue
            if isinstance(line, DevicesLine):
                self._has_devices = bool(line.devices)
            elif isinstance(line, NoticeLine):
                self._last_message = translate(line.message, line.phrases)
            self.line_received.emit(line)
        if self._has_devices:
            self._silence_timer.start()

    def _on_silence(self) -> None:
        if self._stream is not None:
            self._last_message = tr("No GPU readings arrived for {seconds:.0f} s.", seconds=HANG_TIMEOUT_S)
            self._stream.kill()

    def _on_ended(self, exit_code: int, _: str, err: str) -> None:
        stream, self._stream = self._stream, None
        self._silence_timer.stop()
        if stream is not None:
            stream.deleteLater()
        if exit_code == EXIT_NO_DRIVER and not self._refusal:
            self.unavailable.emit(self._last_message)
            return
        if time.monotonic() - self._started_s > STABLE_AFTER_S:
            self._pause_s = MIN_PAUSE_S
        if self._refusal:
            self.connection_failed.emit(self._refusal)
        else:
            # After a crash, the last line on stderr says more than the last notice.
            output = err.strip().splitlines()
            why = self._last_message if self._last_message and not output else (output[-1] if output else "")
            message = phrase(
                "The GPU monitor stopped. It will restart in {pause:.0f} s.", pause=self._pause_s
            )
            notice = NoticeLine(t=time.time(), code="restarted", message=message, advice=why or None)
            self.line_received.emit(notice)
        self._restart_timer.start(round(1e3 * self._pause_s))
        # Doubled only now, because the notice above has announced the current pause.
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)


# Every metric of every GPU since the app started reading, as series from which any window can be drawn. x is
# seconds since that start. If nothing was read until the metric became stale, or the device had no value, a
# NaN splits the curve, so that no line is drawn through unmeasured time. Older data are coarser (series.py),
# so memory stays bounded: about 150 kB per metric after a day.

THROTTLED = "throttled"
_RAW_POINTS, _TIER_BINS = 4_096, 2_048


class DeviceHistory:
    """Time series of every metric of every GPU, built from the sampler's lines."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def series(self, uuid: str, metric: str) -> Series:
        """Return the series of a device's metric; empty if the metric was never read."""
        series = self._series.get((uuid, metric))
        if series is None:
            series = self._series[(uuid, metric)] = Series(_RAW_POINTS, _TIER_BINS)
        return series

    def add(self, line: SampleLine, now_s: float) -> None:
        """Add a line of samples received at `now_s`, in seconds since the history's start."""
        for entry in line.devices:
            for metric, reading in entry.readings.items():
                if metric not in METRICS:
                    continue
                series = self.series(entry.uuid, metric)
                if reading.state == "value" and reading.value is not None:
                    at_s = now_s - reading.age_s
                    self._append(series, metric, at_s, float(reading.value))
                    if metric == "throttle":
                        slowed = float(bool(throttle_reasons(int(reading.value))))
                        self._append(self.throttled_series(entry.uuid), metric, at_s, slowed)
                # A single NaN ends the curve; more would only take memory.
                elif series.last_y is not None and math.isfinite(series.last_y):
                    series.append(now_s, math.nan)

    def throttled_series(self, uuid: str) -> Series:
        """Return a series that is 1 while a device is throttled (see `throttle_reasons`), and 0 otherwise."""
        return self.series(uuid, THROTTLED)

    def _append(self, series: Series, metric: str, at_s: float, value: float) -> None:
        stale_after_s = METRICS[metric].stale_after_s
        last_s = series.last_x
        if last_s is not None and at_s - last_s > stale_after_s:
            # The curve ends where its last value became stale.
            series.append_many((last_s + stale_after_s, at_s), (math.nan, value))
        else:
            series.append(at_s, value)
