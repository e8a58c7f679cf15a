"""Attach to a script's run until its end: forward signals and keys, and print problems on stderr.

Every signal and every Ctrl-C goes to the script, which may handle it and continue. Pressing Ctrl-C three
times within two seconds stops the run at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from rankdeck import events
from rankdeck.base.errors import RankdeckError
from rankdeck.cli import console
from rankdeck.cli.run_result import result_lines
from rankdeck.cli.wait import command_start_time, exit_status, print_run_path, signal_handler
from rankdeck.launch.control import is_over, send_signal, stop_if_alive, wait_for_end
from rankdeck.launch.streams import AttachedStreams
from rankdeck.run_dir import EventReader, RunDir

T = TypeVar("T")
_POLL_INTERVAL_S = 0.04
_READ_INTERVAL_S = 0.25
_TRIPLE_INTERRUPT_S = 2.0
SCRIPT_STOP_TIMEOUT_S = 45.0
"""Timeout for stopping a script, longer than the 30 s that a script has to exit by itself before it is
killed."""
_FORWARDED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
)


class ForegroundScript:
    """A script's run in the foreground; its problems are printed unless `prints_problems` is False."""

    def __init__(self, run: RunDir, keyboard: Keyboard | None, *, prints_problems: bool = True) -> None:
        self._run = run
        self._prints_problems = prints_problems
        self._stdout_readers = _StdoutReaders(run)
        self._keyboard = keyboard
        self._interrupts: deque[float] = deque(maxlen=3)
        # Only problems are printed. The ranks' files grow with every step and are not read for that.
        self._reader = EventReader(run, writers=("supervisor",))
        self.has_lost_output = False
        self._last_read_s = 0.0

    def wait(self) -> None:
        """Return once the run is over, its output is written and its problems are printed.

        Raises: BrokenPipeError: the reader of stdout went away and the script continued to write. The run has
            been stopped, because a script that wrote to the pipe directly would have been stopped too.
        """
        with _signal_pipe() as woken:
            try:
                while not is_over(self._run):
                    self._tick(woken)
                    if self._stdout_readers.has_written_since_close():
                        stop_if_alive(self._run)
                        wait_for_end(self._run, SCRIPT_STOP_TIMEOUT_S)
                        raise BrokenPipeError
            finally:
                if self._keyboard is not None:
                    self._keyboard.close()
        self._print_problems()

    def _tick(self, woken: int) -> None:
        keyboard = self._keyboard
        if keyboard is not None:
            # At each tick, because the shell may have moved this command to the foreground meanwhile.
            keyboard.enter_raw_mode()
            keyboard.send()
        sources = [woken] + ([keyboard.fd] if keyboard is not None and keyboard.is_raw else [])
        ready, _, _ = select.select(sources, [], [], _POLL_INTERVAL_S)
        # After a signal, keys wait for the next tick: the signal may have suspended this command, and `ready`
        # is then out of date.
        if woken in ready:
            for number in os.read(woken, 4096):
                self._on_signal(signal.Signals(number))
        elif keyboard is not None and keyboard.fd in ready:
            self._on_input(keyboard, keyboard.read())
        if time.monotonic() - self._last_read_s > _READ_INTERVAL_S:
            self._print_problems()

    def _on_input(self, keyboard: Keyboard, typed: bytes) -> None:
        # In raw mode the terminal makes no signals, so the suspend key is found here and reaches the script
        # as a signal.
        before, suspend, after = typed.partition(keyboard.suspend_key)
        keyboard.send(before)
        # The interrupt key is only counted here: the script's own terminal turns it into SIGINT.
        for _ in range(before.count(keyboard.interrupt_key)):
            self._count_interrupt()
        if suspend:
            self._suspend()
            if after:
                self._on_input(keyboard, after)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGTSTP:
            self._suspend()
        elif number == signal.SIGCONT:
            self._forward_signal(signal.SIGWINCH)  # the terminal may have been resized meanwhile
        else:
            self._forward_signal(number)
            if number == signal.SIGINT:
                self._count_interrupt()

    def _suspend(self) -> None:
        """Suspend the script and this command, as a shell expects of a job; on SIGCONT, continue both."""
        self._forward_signal(signal.SIGTSTP)
        if self._keyboard is not None:
            # The shell gets the terminal next and needs its line editing and echo.
            self._keyboard.restore_modes()
        # SIGSTOP, because SIGTSTP is caught and forwarded by this command.
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._keyboard is not None:
            self._keyboard.enter_raw_mode()
        self._forward_signal(signal.SIGCONT)

    def _count_interrupt(self) -> None:
        self._interrupts.append(time.monotonic())
        if len(self._interrupts) == 3 and self._interrupts[-1] - self._interrupts[0] < _TRIPLE_INTERRUPT_S:
            self._interrupts.clear()
            stop_if_alive(self._run, now=True)

    def _forward_signal(self, number: signal.Signals) -> None:
        try:
            send_signal(self._run, number)
        except (RankdeckError, OSError):
            pass  # the run is over, as the next poll notices

    def _print_problems(self) -> None:
        self._last_read_s = time.monotonic()
        for _, event in self._reader.read() if self._prints_problems else ():
            if isinstance(event, events.ProblemRaised):
                self.has_lost_output |= event.problem.code == events.OUTPUT_LOST
                # The rank's last lines are on the terminal already.
                _write_stderr(console.print_problem, msgspec.structs.replace(event.problem, last_lines=()))


class _StdoutReaders:
    """Watcher that checks whether this command's stdout, if it is a pipe, still has a reader."""

    def __init__(self, run: RunDir) -> None:
        self._logs_folder = run.logs_folder
        self._poll = select.poll()
        # With an empty mask, poll still reports POLLERR: the pipe has no reader left.
        self._poll.register(1, 0)
        self._bytes_at_close: int | None = None

    def has_written_since_close(self) -> bool:
        """Return whether the script has written output since the last reader of stdout closed the pipe."""
        if self._bytes_at_close is None:
            if any(event & select.POLLERR for _, event in self._poll.poll(0)):
                self._bytes_at_close = self._log_bytes()
            return False
        return self._log_bytes() > self._bytes_at_close

    def _log_bytes(self) -> int:
        return sum(log.stat().st_size for log in self._logs_folder.glob("rank-*.out"))


@contextlib.contextmanager
def _signal_pipe() -> Iterator[int]:
    """Yield a file descriptor from which the number of every forwarded signal can be read.

    Signals that were ignored when this command started (nohup) stay ignored.
    """
    woken, waking = os.pipe()
    # signal.set_wakeup_fd accepts only a non-blocking descriptor.
    for handle in (woken, waking):
        os.set_blocking(handle, False)
    signals = [number for number in _FORWARDED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    with signal_handler(lambda *_: None, *signals):
        # The handlers do nothing: Python writes the signal numbers to this pipe, and `_tick` selects on it.
        earlier = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(earlier)
            os.close(woken)
            os.close(waking)


def start_and_wait(start: Callable[..., RunDir], what: str, *, detach: bool, as_json: bool) -> int:
    """Start a script's run, print the text `what` and the run's path, and wait for the run's end unless
    detached.

    Return the script's exit status. `start` is a functools.partial of `start_script` or `rerun` from
    launch/start.py; this function passes the remaining arguments.
    """
    start_run = partial(
        start, detach=detach, command_line=["rankdeck", *sys.argv[1:]], started=command_start_time()
    )
    if detach:
        run = start_run()
        _print_note(f"{what}; run: {run.path}")
        return print_run_path(run, as_json=as_json)
    # If no output is a terminal, the script gets stdin unchanged.
    is_interactive = os.isatty(0) and (os.isatty(1) or os.isatty(2))
    keyboard = Keyboard() if is_interactive and not as_json else None
    if as_json:
        # Stdout is for the JSON document alone, so the script's output goes to its logs only.
        attached = AttachedStreams(stdout=None, stderr=None)
    else:
        attached = AttachedStreams(keyboard=None if keyboard is None else keyboard.read_end)
    run = start_run(attached=attached)
    _print_note(f"{what}; run: {run.path}")
    foreground_script = ForegroundScript(run, keyboard, prints_problems=not as_json)
    foreground_script.wait()
    if as_json:
        from rankdeck.run.summary_builder import summarize

        console.print_json(summarize(run).facts())
    else:
        for line in result_lines(run):
            _print_note(line)
    return exit_status(run) or int(foreground_script.has_lost_output)


def _print_note(note: str) -> None:
    _write_stderr(lambda text: console.err().print(text, style="dim", soft_wrap=True), note)


def _write_stderr(write: Callable[[T], None], what: T) -> None:
    """Write `what` to stderr; if its reader is gone, discard all further stderr output while the script
    continues."""
    try:
        write(what)
    except OSError:
        console.discard_output(2)


# The user's terminal while a script runs: every key goes to the script, and the modes are restored at the
# end. The script's rank 0 has a pseudo-terminal (streams.py) that edits lines, echoes, and turns Ctrl-C into
# a signal, so the user's terminal must do none of this. A background job changes neither the terminal's modes
# nor reads its input.

_CHUNK_BYTES = 1 << 12


class Keyboard:
    """Forwarder of the terminal's keys to the script through a pipe; `read_end` is the script's end of the
    pipe."""

    def __init__(self, handle: int = 0) -> None:
        self.fd = handle
        self.read_end, self._write_end = os.pipe()
        # A script that reads no input must not block this command.
        os.set_blocking(self._write_end, False)
        self._saved_modes: list[Any] | None = None
        self._pending = b""
        # Ctrl-Z and Ctrl-C, until `enter_raw_mode` reads the terminal's own settings.
        self.suspend_key, self.interrupt_key = b"\x1a", b"\x03"

    @property
    def is_raw(self) -> bool:
        return self._saved_modes is not None

    def enter_raw_mode(self) -> None:
        """Switch the terminal to raw mode if this command is in the foreground, so that every key is
        forwarded to the script."""
        # Changing the terminal from a background job would stop this command with SIGTTOU.
        if self.is_raw or not self._is_in_foreground():
            return
        try:
            before = termios.tcgetattr(self.fd)
            termios.tcsetattr(self.fd, termios.TCSANOW, _raw_modes(before))
        except termios.error:
            return  # the terminal is gone
        self._saved_modes = before
        self.interrupt_key, self.suspend_key = before[6][termios.VINTR], before[6][termios.VSUSP]

    def restore_modes(self) -> None:
        """Restore the terminal's modes, even if the script has changed them."""
        if self._saved_modes is None:
            return
        before, self._saved_modes = self._saved_modes, None
        try:
            # Not TCSAFLUSH, which would discard what the user has typed ahead.
            termios.tcsetattr(self.fd, termios.TCSADRAIN, before)
        except termios.error:
            pass

    def close(self) -> None:
        self.restore_modes()
        for handle in (self.read_end, self._write_end):
            try:
                os.close(handle)
            except OSError:
                pass

    def read(self) -> bytes:
        """Return the typed bytes; empty if there are none or the terminal is gone."""
        try:
            typed = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            typed = b""
        # At the end of input or an error the terminal is gone, and so is anything to restore.
        if not typed:
            self._saved_modes = None
        return typed

    def send(self, typed: bytes = b"") -> None:
        """Send typed bytes to the script; bytes that do not fit into its pipe stay pending."""
        self._pending += typed
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._write_end, self._pending) :]
        except BlockingIOError:
            pass
        except OSError:  # the script has closed its end
            self._pending = b""

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return False


def _raw_modes(modes: list[Any]) -> list[Any]:
    """Return terminal modes that deliver each key as it is pressed; output modes stay as they are."""
    raw = [*modes[:6], list(modes[6])]
    raw[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
    raw[3] &= ~(termios.ISIG | termios.ICANON | termios.ECHO | termios.IEXTEN)
    raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
    return raw
