"""The app's own sampler: `rankdeck devices --follow --json`, started, watched and ended by it; of another
host over ssh.

A process of its own asks the driver, never the app: a lost GPU has crashed NVML, and calls can block. When it
ends, or says nothing for long, the next one begins after a pause that doubles; without a driver it ends for
good, until somebody asks again. gpus.py makes of the lines what is true now.
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
"""A sampler that has lived as long is a good one: the next pause is the first again."""
HANG_TIMEOUT_S = 30.0
"""With devices to read, the stream is never silent for so long: not even while its driver is."""
EXIT_NO_DRIVER = 3
_COMMAND = ("devices", "--follow", "--json")


class DeviceFeed(QObject):
    """`line_received` carries a line (readings.py); `unavailable` why there will be none, in one sentence;
    `connection_failed` why a host did not answer, which is asked again.
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
        """Begin, or begin anew at once; one that reads devices already goes on."""
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
            self._last_message = tr(
                "Readings of GPUs have not come for {seconds:.0f} s.", seconds=HANG_TIMEOUT_S
            )
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
            output = err.strip().splitlines()
            why = self._last_message if self._last_message and not output else (output[-1] if output else "")
            message = phrase(
                "What reads the GPUs has ended. It begins again in {pause:.0f} s.", pause=self._pause_s
            )
            told = NoticeLine(t=time.time(), code="restarted", message=message, advice=why or None)
            self.line_received.emit(told)
        self._restart_timer.start(round(1e3 * self._pause_s))
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)


# Every metric of every GPU since the app began to look, as series that any window can be drawn of.
#
# x is seconds since then. Where nothing was read for longer than the metric stays true, or the device had
# no value, a NaN parts the curve: a line is never drawn through what nobody measured. The further back, the
# coarser (series.py), so memory stays bounded: about 150 kB a metric after a day.

THROTTLED = "throttled"
_RAW_POINTS, _TIER_BINS = 4_096, 2_048


class DeviceHistory:
    """Fed with the sampler's samples."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def series(self, uuid: str, metric: str) -> Series:
        """The metric of the device; empty where it was never read."""
        series = self._series.get((uuid, metric))
        if series is None:
            series = self._series[(uuid, metric)] = Series(_RAW_POINTS, _TIER_BINS)
        return series

    def add(self, line: SampleLine, now_s: float) -> None:
        """`now_s`: when the line came, in seconds since the beginning."""
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
                elif series.last_y is not None and math.isfinite(series.last_y):
                    series.append(now_s, math.nan)

    def throttled_series(self, uuid: str) -> Series:
        """1 while anything that is worth telling lowers the clocks, 0 while nothing does."""
        return self.series(uuid, THROTTLED)

    def _append(self, series: Series, metric: str, at_s: float, value: float) -> None:
        stale_after_s = METRICS[metric].stale_after_s
        last_s = series.last_x
        if last_s is not None and at_s - last_s > stale_after_s:
            series.append_many((last_s + stale_after_s, at_s), (math.nan, value))
        else:
            series.append(at_s, value)
