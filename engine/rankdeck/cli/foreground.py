"""Stays with the run of a script until its end: passes on signals and keys, and tells problems on stderr.

Every signal and every Ctrl-C is the script's own: one that handles it goes on. Only the third within two
seconds is taken for "stop it now".
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
from rankdeck.base.units import format_duration
from rankdeck.cli import console
from rankdeck.cli.formatting import loss_range_text, non_finite_loss_text
from rankdeck.cli.wait import command_start_time, exit_status, print_run_path, signal_handler
from rankdeck.launch.control import is_over, send_signal, stop_if_alive, wait_for_end
from rankdeck.launch.streams import AttachedStreams
from rankdeck.run_dir import EventReader, RunDir

T = TypeVar("T")
_POLL_INTERVAL_S = 0.04
_READ_INTERVAL_S = 0.25
_TRIPLE_INTERRUPT_S = 2.0
SCRIPT_STOP_TIMEOUT_S = 45.0
"""A script has 30 s to end in its own way before it is ended."""
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
    """One command and its run. Without `tells` nothing is said on the way."""

    def __init__(self, run: RunDir, keyboard: Keyboard | None, *, prints_problems: bool = True) -> None:
        self._run = run
        self._prints_problems = prints_problems
        self._stdout_readers = _StdoutReaders(run)
        self._keyboard = keyboard
        self._interrupts: deque[float] = deque(maxlen=3)
        self._reader = EventReader(run, writers=("supervisor",))
        self.has_lost_output = False
        self._last_read_s = 0.0

    def wait(self) -> None:
        """Return once the run is over, everything it wrote is written and its problems are told.

        Raises: BrokenPipeError where whoever read stdout had gone and the script went on writing; it has been
        stopped, since it would have noticed by itself.
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
            keyboard.enter_raw_mode()
            keyboard.send()
        sources = [woken] + ([keyboard.fd] if keyboard is not None and keyboard.is_raw else [])
        ready, _, _ = select.select(sources, [], [], _POLL_INTERVAL_S)
        if woken in ready:
            for number in os.read(woken, 4096):
                self._on_signal(signal.Signals(number))
        elif keyboard is not None and keyboard.fd in ready:
            self._on_input(keyboard, keyboard.read())
        if time.monotonic() - self._last_read_s > _READ_INTERVAL_S:
            self._print_problems()

    def _on_input(self, keyboard: Keyboard, typed: bytes) -> None:
        before, suspend, after = typed.partition(keyboard.suspend_key)
        keyboard.send(before)
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
            self._forward_signal(signal.SIGWINCH)  # the terminal may have another size by now
        else:
            self._forward_signal(number)
            if number == signal.SIGINT:
                self._count_interrupt()

    def _suspend(self) -> None:
        """Stop script and command, as a shell expects of a job; go on with both when it says so."""
        self._forward_signal(signal.SIGTSTP)
        if self._keyboard is not None:
            self._keyboard.restore_modes()
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
            pass  # it is over, which the next look finds

    def _print_problems(self) -> None:
        self._last_read_s = time.monotonic()
        for _, event in self._reader.read() if self._prints_problems else ():
            if isinstance(event, events.ProblemRaised):
                self.has_lost_output |= event.problem.code == events.OUTPUT_LOST
                # The last lines of a rank have been shown as it wrote them.
                _write_stderr(console.print_problem, msgspec.structs.replace(event.problem, last_lines=()))


class _StdoutReaders:
    """Whoever reads this command's stdout, where that is a pipe."""

    def __init__(self, run: RunDir) -> None:
        self._logs_folder = run.logs_folder
        self._poll = select.poll()
        self._poll.register(1, 0)
        self._bytes_at_close: int | None = None

    def has_written_since_close(self) -> bool:
        """Whether the script has written something since the last one went."""
        if self._bytes_at_close is None:
            if any(event & select.POLLERR for _, event in self._poll.poll(0)):
                self._bytes_at_close = self._log_bytes()
            return False
        return self._log_bytes() > self._bytes_at_close

    def _log_bytes(self) -> int:
        return sum(log.stat().st_size for log in self._logs_folder.glob("rank-*.out"))


@contextlib.contextmanager
def _signal_pipe() -> Iterator[int]:
    """A descriptor that is told the number of every signal that came. What whoever started this command had
    ignored (nohup) stays ignored.
    """
    woken, waking = os.pipe()
    for handle in (woken, waking):
        os.set_blocking(handle, False)
    heard = [number for number in _FORWARDED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    with signal_handler(lambda *_: None, *heard):
        earlier = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(earlier)
            os.close(woken)
            os.close(waking)


def start_and_wait(start: Callable[..., RunDir], what: str, *, detach: bool, as_json: bool) -> int:
    """Start the run of a script, say `what` runs and where the run is, and stay until its end unless
    detached; the exit status is the script's. `start` is `start_script` or `run_again` of launch/start.py,
    but for what this command knows."""
    begin = partial(
        start, detach=detach, command_line=["rankdeck", *sys.argv[1:]], started=command_start_time()
    )
    if detach:
        run = begin()
        _print_note(f"{what}; run: {run.path}")
        return print_run_path(run, as_json=as_json)
    # Where no output is a terminal, stdin is the script's as it is.
    is_interactive = os.isatty(0) and (os.isatty(1) or os.isatty(2))
    keyboard = Keyboard() if is_interactive and not as_json else None
    if as_json:
        attached = AttachedStreams(stdout=None, stderr=None)
    else:
        attached = AttachedStreams(keyboard=None if keyboard is None else keyboard.read_end)
    run = begin(attached=attached)
    _print_note(f"{what}; run: {run.path}")
    staying = ForegroundScript(run, keyboard, prints_problems=not as_json)
    staying.wait()
    if as_json:
        from rankdeck.run.summary_builder import summarize

        console.print_json(summarize(run).facts())
    else:
        _print_note(result_line(run))
    return exit_status(run) or int(staying.has_lost_output)


def _print_note(words: str) -> None:
    _write_stderr(lambda text: console.err().print(text, style="dim", soft_wrap=True), words)


def _write_stderr(say: Callable[[T], None], what: T) -> None:
    """Whoever reads stderr may be gone; a script that writes nothing there goes on, and so does this."""
    try:
        say(what)
    except OSError:
        console.discard_output(2)


def result_line(run: RunDir) -> str:
    """'completed after 0:12, 200 steps, loss 2.3021 to 0.0123 at step 198; rankdeck show 20260101-train'."""
    if not run.path.exists():
        from rankdeck.run.problems import lost_problem

        return lost_problem(run).message
    from rankdeck.run.row import EVENTS_LOST_TEXT, outcome_label

    end, status = run.exit_record(), exit_status(run)
    state = outcome_label(run.outcome(), None if end is None else end.reason)
    words = [state if not status or end is None else f"{end.outcome} with exit status {status}"]
    lost = f"\n{end.reason}" if end is not None and state == EVENTS_LOST_TEXT else ""
    started = run.environment().get("started")
    if end is not None and isinstance(started, (int, float)):
        words[0] += f" after {format_duration(end.ended - started)}"
    if any(run.events_folder.glob("rank-*.jsonl")):
        from rankdeck.run.summary_builder import summarize

        summary = summarize(run)
        words += filter(None, [non_finite_loss_text(summary)])
        if steps := summary.steps:
            words.append(f"{steps} step{'s' if steps != 1 else ''}")
        if summary.loss.last is not None:
            words.append(f"loss {loss_range_text(summary)}")
    return f"{', '.join(words)}; rankdeck show {run.name}{lost}"


# The person's terminal while a script has it: every key goes to the script, and modes are put back after
# it.
#
# The script's rank 0 has a terminal of its own (streams.py), which edits lines, echoes, and turns Ctrl-C
# into a signal; so the person's own does none of this meanwhile. It is taken only while the shell lets this
# command have it: a job in the background touches neither its modes nor what is typed.

_CHUNK_BYTES = 1 << 12


class Keyboard:
    """What is typed, passed on through a pipe; `read_end` is the script's."""

    def __init__(self, handle: int = 0) -> None:
        self.fd = handle
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._saved_modes: list[Any] | None = None
        self._pending = b""
        self.suspend_key, self.interrupt_key = b"\x1a", b"\x03"

    @property
    def is_raw(self) -> bool:
        return self._saved_modes is not None

    def enter_raw_mode(self) -> None:
        """Pass on every key from here on, if this command is in the foreground."""
        if self.is_raw or not self._is_in_foreground():
            return
        try:
            before = termios.tcgetattr(self.fd)
            termios.tcsetattr(self.fd, termios.TCSANOW, _raw_modes(before))
        except termios.error:
            return  # it is gone
        self._saved_modes = before
        self.interrupt_key, self.suspend_key = before[6][termios.VINTR], before[6][termios.VSUSP]

    def restore_modes(self) -> None:
        """The modes as they were, whatever the script did to them."""
        if self._saved_modes is None:
            return
        before, self._saved_modes = self._saved_modes, None
        try:
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
        """What was typed; empty when the terminal is gone."""
        try:
            typed = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            typed = b""
        if not typed:
            self._saved_modes = None
        return typed

    def send(self, typed: bytes = b"") -> None:
        """To the script; what its pipe has no room for waits."""
        self._pending += typed
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._write_end, self._pending) :]
        except BlockingIOError:
            pass
        except OSError:  # the script's side has ended
            self._pending = b""

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return False


def _raw_modes(modes: list[Any]) -> list[Any]:
    """Keys come as they are pressed; output is treated as before."""
    raw = [*modes[:6], list(modes[6])]
    raw[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
    raw[3] &= ~(termios.ISIG | termios.ICANON | termios.ECHO | termios.IEXTEN)
    raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
    return raw
