"""Start a sampler, watch it, and restart it when it ends.

If the driver's library crashes, only the sampler ends. The next sampler starts after a pause that doubles
each time (1 s to 60 s), and skips the device that the crashed sampler was reading, until the list of devices
changes or a sampler finds no driver. A sampler whose call does not return is killed. Only two functions
block: `wait_for_lines`, up to its timeout, and `stop`, up to its grace time.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.telemetry.crash_marker import EVENTS, CallMark, CrashMarker
from rankdeck.telemetry.readings import AnySamplerLine, NoticeLine, decode
from rankdeck.telemetry.sampler import EXIT_CHANGED, EXIT_UNRESPONSIVE

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
HEALTHY_AFTER_S = 60.0
"""Lifetime after which a sampler counts as healthy: when it ends, the next pause is FIRST_PAUSE_S again."""
HANG_TIMEOUT_S = 30.0
_SUSPENDED_S = 5.0
"""Time between two polls above which this process and the sampler are assumed to have been suspended."""
_EXIT_NO_DRIVER = 3
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
"""Signals that a crash of the library causes. Any other signal comes from outside the sampler and is not
caused by a device."""
_EXIT_FAILED = 1
"""Exit code after an error in the sampler's own code while it read a device; reading the device again would
fail in the same way."""
_EVENT_WAIT_FUNCTION = "wait_for_event"
_CHUNK_BYTES = 1 << 16
_HUNG_TEXTS = (
    tr_noop("NVIDIA's driver has not answered for {silence:.0f} s. Readings resume in {pause:.0f} s."),
    tr_noop(
        "NVIDIA's driver has not answered a query of {device} for {silence:.0f} s. Readings "
        "resume in {pause:.0f} s."
    ),
)
"""Messages about a sampler that hung: one without the device that it was querying, one with the device."""
_CRASHED_TEXTS = (
    tr_noop("NVIDIA's library crashed ({signal}). Readings resume in {pause:.0f} s."),
    tr_noop(
        "NVIDIA's library crashed ({signal}) while it queried {device}. Readings resume in {pause:.0f} s."
    ),
)
_EVENT_CRASH_TEXT = tr_noop(
    "NVIDIA's library crashed ({signal}) while it waited for events, which are no longer "
    "reported. Readings resume in {pause:.0f} s."
)
_KILLED_TEXT = tr_noop("The sampler was killed by {signal}. Readings resume in {pause:.0f} s.")
_EXITED_TEXTS = (
    tr_noop("The sampler exited with status {code}. Readings resume in {pause:.0f} s."),
    tr_noop(
        "The sampler exited with status {code} while it queried {device}. Readings resume in {pause:.0f} s."
    ),
)


class SamplerProcess:
    """A sampler process that is started with `arguments`, watched and restarted.

    `piped`: the sampler's lines are read with `wait_for_lines`; otherwise the sampler writes events of a run,
    and is restarted even if it finds no driver. `exit_code` is set once the sampler has ended and will not be
    restarted, for example because the first sampler found no driver. A device that has not answered for
    `hang_timeout_s` is skipped.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        *,
        piped: bool,
        hang_timeout_s: float = HANG_TIMEOUT_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._arguments = list(arguments)
        self._piped = piped
        self._skip: list[str] = []
        self._hang_timeout_s = hang_timeout_s
        self._first_pause_s = self._pause_s = first_pause_s
        self._restart_at_s = 0.0
        self._started_s = self._polled_s = self._resumed_s = 0.0
        self._has_worked = not piped
        self._last_code = 0
        self._buffer = b""
        self._at_eof = False
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._crash_marker = CrashMarker.create()
        self.exit_code: int | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def _start(self) -> None:
        self._crash_marker.clear()
        self._at_eof = False
        command = [sys.executable, "-P", "-m", "rankdeck.telemetry.sampler", *self._arguments]
        command += ["--last-call", str(self._crash_marker.fd), "--parent", str(os.getpid())]
        for device in self._skip:
            command += ["--skip", device]
        if self._last_code == _EXIT_NO_DRIVER:
            command.append("--told")
        self._started_s = self._polled_s = self._resumed_s = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._piped else subprocess.DEVNULL,
            pass_fds=[self._crash_marker.fd],
        )

    def poll(self) -> list[NoticeLine]:
        """Check whether the sampler is alive, restart it when due, and return notices about any change."""
        self._unreaped = [process for process in self._unreaped if process.poll() is None]
        if self.exit_code is not None:
            return []
        if self._process is None:
            if time.monotonic() >= self._restart_at_s:
                try:
                    self._start()
                except OSError:  # such as a process limit; it may work later
                    self._restart_at_s = time.monotonic() + MAX_PAUSE_S
            return []
        code = self._process.poll()
        note = self._crash_marker.read()
        self._has_worked = self._has_worked or note.age_s is not None
        if code is not None:
            # First let `wait_for_lines` read the sampler's last lines up to the end of the pipe.
            return [] if self._piped and not self._at_eof else self._handle_exit(code, note)
        now_s = time.monotonic()
        if now_s - self._polled_s > _SUSPENDED_S:
            # After a suspension the mark is old through no fault of the driver.
            self._resumed_s = now_s
        self._polled_s = now_s
        silent_s = now_s - self._started_s if note.age_s is None else note.age_s
        # Without a device in the mark NVML is still opening, which takes seconds if GPUs sleep.
        after_s = self._hang_timeout_s if note.device else HANG_TIMEOUT_S
        if min(silent_s, now_s - self._resumed_s) > after_s:
            self._process.kill()  # stays behind if stuck in the kernel
            return self._handle_exit(-signal.SIGKILL, note, is_hung=True)
        return []

    def _handle_exit(self, code: int, note: CallMark, *, is_hung: bool = False) -> list[NoticeLine]:
        assert self._process is not None
        if code == 0 or (code == _EXIT_NO_DRIVER and not self._has_worked):
            self.exit_code = code
            return []
        lived_s = time.monotonic() - self._started_s
        self._unreaped.append(self._process)
        self._close_pipe()
        self._process = None
        if code == EXIT_CHANGED:
            self._restart_at_s = 0.0
            self._skip.clear()
            return []
        if code == _EXIT_NO_DRIVER:
            self._skip.clear()
        left_out = self._skip_cause(code, note, is_hung=is_hung)
        self._pause_s = self._first_pause_s if lived_s > HEALTHY_AFTER_S else self._pause_s
        self._restart_at_s = time.monotonic() + self._pause_s
        message = self._exit_text(code, note, left_out, is_hung=is_hung)
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
        was_told, self._last_code = code == self._last_code == _EXIT_NO_DRIVER, code
        if was_told or code == EXIT_UNRESPONSIVE:
            return []  # the lost devices were reported before
        advice = phrase("If it happens again, check whether nvidia-smi responds.")
        # EVENTS is not a GPU, so the advice about a skipped GPU does not apply to it.
        if left_out and left_out != EVENTS:
            advice = phrase("Rankdeck skips that GPU from now on; the machine may need a restart.")
        return [NoticeLine(code="restarted", message=message, advice=advice)]

    def _skip_cause(self, code: int, note: CallMark, *, is_hung: bool) -> str:
        """Return the device (or EVENTS) that made this sampler crash or hang, and that the next sampler must
        skip; "" if there is none."""
        has_crashed = -code in _CRASH_SIGNALS
        if has_crashed and self._crash_marker.has_crashed_in(_EVENT_WAIT_FUNCTION):
            cause = EVENTS
        else:
            cause = note.device if is_hung or has_crashed or code == _EXIT_FAILED else ""
        if cause and cause not in self._skip:
            self._skip.append(cause)
        return cause

    def wait_for_lines(self, timeout_s: float) -> list[AnySamplerLine]:
        """Return the lines that have arrived; empty if none arrives in time."""
        process = self._process
        if process is None or process.stdout is None:
            time.sleep(timeout_s)
            return []
        handle = process.stdout.fileno()
        if not select.select([handle], [], [], timeout_s)[0]:
            return []
        chunk = os.read(handle, _CHUNK_BYTES)
        if not chunk:
            self._at_eof = True
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass
            return []
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [fact for line in lines if (fact := decode(line)) is not None]

    def _close_pipe(self) -> None:
        self._buffer = b""
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _exit_text(self, code: int, note: CallMark, left_out: str, *, is_hung: bool) -> str:
        """Describe how the sampler ended and when the next one starts; if `left_out`, the device that the
        next sampler skips, is not empty, also name the last call."""
        arguments: dict[str, object] = {"pause": self._pause_s}
        if left_out:
            name = f"GPU {note.device[1:]}" if note.device.startswith("#") else note.device
            arguments["device"] = name + (note.call and f" ({note.call})")
        if is_hung:
            silence_s = self._hang_timeout_s if left_out else HANG_TIMEOUT_S
            return phrase(_HUNG_TEXTS[bool(left_out)], silence=silence_s, **arguments)
        if code >= 0:
            return phrase(_EXITED_TEXTS[bool(left_out)], code=code, **arguments)
        arguments["signal"] = signal.Signals(-code).name
        if left_out == EVENTS:
            return phrase(_EVENT_CRASH_TEXT, **arguments)
        return phrase(
            _CRASHED_TEXTS[bool(left_out)] if -code in _CRASH_SIGNALS else _KILLED_TEXT, **arguments
        )

    def stop(self, grace_s: float = 0.5) -> None:
        """Stop the sampler: send SIGTERM, so that it can list the devices' processes once more, and kill it
        if it has not ended after `grace_s`."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
            if process.stdout is not None:
                process.stdout.close()
        for left in [*self._unreaped, *([process] if process is not None else [])]:
            try:
                left.wait(grace_s)
            except subprocess.TimeoutExpired:
                pass  # inside the driver for good: init will reap it
        self._unreaped = []
        if self.exit_code is None:
            self.exit_code = 0
        self._crash_marker.close()
