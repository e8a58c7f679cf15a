"""Wait for a run that this command has started.

Ctrl-C (or SIGTERM) requests an orderly stop and waits for it. A second signal stops the run at once, and
after a third the command returns without waiting.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.rendezvous import print_join_address

if TYPE_CHECKING:
    from rankdeck.cli.display import Display
    from rankdeck.launch.multi_host_role import MultiHostRole
    from rankdeck.remote.remote_run import RemoteRun
    from rankdeck.run.run_state import RunState
    from rankdeck.run_dir import RunDir


EXIT_INTERRUPTED = 130


def command_start_time() -> float:
    """Return this process's start time (Unix seconds), from which the time to the first step is measured."""
    try:
        # The process name in parentheses may contain spaces and parentheses. After it, the 20th value is the
        # start time.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return time.time()
    # Not psutil's create_time: it adds the ticks to the boot time of /proc/stat, which is up to a second off.
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def detach_or_wait(
    run: RunDir, several: MultiHostRole | None = None, *, detach: bool, as_json: bool, attempt: int = 0
) -> int:
    """Print the address, if any, at which other hosts join. Then print the run's path if `detach` is set;
    otherwise, show the run, starting with `attempt`, until the run ends.

    Return the exit code.
    """
    print_join_address(run, several, attempt, quiet=detach and as_json)
    if not detach:
        from rankdeck.cli.follow import choose_display

        return wait_for_run(run, choose_display(run, progress=not as_json), as_json=as_json, attempt=attempt)
    is_head = several is not None and several.listener is not None
    return print_run_path(
        run, several.join_address(run.name, attempt) if several and is_head else None, as_json=as_json
    )


def print_run_path(run: RunDir, join_address: str | None = None, *, as_json: bool) -> int:
    """Print the run's path and return the exit code. If `as_json` is True, print a JSON object, which also
    has the `join_address` at which other hosts join."""
    if as_json:
        facts = {"run": run.name, "path": str(run.path)}
        console.print_json(facts if join_address is None else facts | {"place": join_address})
    else:
        typer.echo(run.path)
    return 0


def wait_for_run(run: RunDir, display: Display, *, as_json: bool, attempt: int = 0) -> int:
    """Show the run, starting with `attempt`, until the run ends, and return the exit code.

    If the reader of the output closes the pipe, the run is stopped.
    """
    from rankdeck.cli.follow import follow
    from rankdeck.launch.control import stop_if_alive, wait_for_end

    interrupts = InterruptCounter(partial(stop_if_alive, run), display.show_message)
    with interrupts.count_signals():
        try:
            state = follow(run, display, interrupts.handle_pending, attempt)
        except BrokenPipeError:
            stop_if_alive(run)
            wait_for_end(run, timeout_s=30.0)
            raise
        # Still inside the context, so that a late Ctrl-C does not cut off the summary.
        return print_outcome(run, state, as_json=as_json, interrupted=interrupts.count > 0)


def print_outcome(run: RunDir, state: RunState, *, as_json: bool, interrupted: bool) -> int:
    """Print the run's summary and return the command's exit code."""
    from rankdeck.cli.summary import print_summary
    from rankdeck.run.summary_builder import summarize

    summary = summarize(run, state)
    if as_json:
        console.print_json(summary.facts())
    else:
        print_summary(summary, shown_problems=state.problems)
    # A run that has completed in spite of Ctrl-C is a success.
    if interrupted and summary.outcome != "completed":
        return EXIT_INTERRUPTED
    return exit_status(run)


def exit_status(run: RunDir) -> int:
    """Return an ended run's exit status: a script's own status, as a shell reports it, or else the exit code
    that the run recorded."""
    from rankdeck.run.problems import script_status_of

    if (status := script_status_of(run)) is not None:
        return status
    end = run.exit_record()
    return end.exit_code if end is not None else 1


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first SIGINT or SIGTERM, and ignore later ones.

    Cleanup can thus stop the started processes without being interrupted.
    """
    has_come = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        if not has_come:
            has_come = True
            raise KeyboardInterrupt

    with signal_handler(interrupt, signal.SIGINT, signal.SIGTERM):
        yield


@contextlib.contextmanager
def signal_handler(
    handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals
) -> Iterator[None]:
    """Install `handler` for the signals `numbers` for the duration of the `with` block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class InterruptCounter:
    """Counter of Ctrl-C and SIGTERM; `handle_pending` acts on the signals outside the signal handler."""

    def __init__(self, stop: Callable[[bool], object], show_message: Callable[[str], None]) -> None:
        self._stop = stop
        self._show_message = show_message
        self._num_handled = 0
        self.count = 0

    def count_signals(self) -> contextlib.AbstractContextManager[None]:
        return signal_handler(self._on_signal, signal.SIGINT, signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def handle_pending(self) -> bool:
        """Act on the signals received since the last call; return False after the third signal."""
        # The first signal stops the run in order, the second at once; the third only ends this command.
        while self._num_handled < min(self.count, 2):
            self._num_handled += 1
            now = self._num_handled == 2
            self._show_message("stopping now" if now else "stopping; press Ctrl-C again to stop at once")
            self._stop(now)
        return self.count < 3


# Ctrl-C for a run on another host: the command leaves only after the host's answer, or with a warning about
# what may still be running there.

ANSWER_TIMEOUT_S = 15.0
"""Seconds that an exiting command waits for the host to confirm that the run has stopped."""


def warn_still_running(host: str, run: str = "") -> None:
    """Print a warning that `run` may still be running on the host, and the command that stops it.

    If `run` is empty, warn that the remote command may still be running, and print the command that lists
    the host's runs.
    """
    if run:
        message = phrase(
            "{host} has not confirmed that the run has stopped, so the run may still be active. To "
            "stop it: rankdeck --host {host} stop {run}",
            host=host,
            run=run,
        )
    else:
        message = phrase(
            "{host} has not confirmed that the command has ended. To list the runs there: "
            "rankdeck --host {host} runs",
            host=host,
        )
    console.err().print(message, soft_wrap=True)


class RemoteStop:
    """Handler of Ctrl-C for a run on another host.

    The first two presses ask the host to stop the run; after the third, the command returns once the host has
    stopped the run, or after a timeout. If `display` is None, messages go to stderr.
    """

    def __init__(self, followed: RemoteRun, path: str, num_interrupts: int) -> None:
        self._remote_run, self._path = followed, path
        self.display: Display | None = None
        self.interrupts = InterruptCounter(self._request_stop, self.show_message)
        self.interrupts.count = num_interrupts
        self._deadline_s: float | None = None

    def _request_stop(self, now: bool) -> None:
        self._remote_run.request(["stop", self._path, *(["--now"] if now else [])])

    def show_message(self, text: str) -> None:
        if self.display is None:
            console.err().print(text, soft_wrap=True)
        else:
            self.display.show_message(text)

    def handle_pending(self) -> bool:
        """Act on the signals received since the last call; return False when the command should exit."""
        if self.interrupts.handle_pending():
            return True
        if self._deadline_s is None:
            self._deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
            host = self._remote_run.link.host
            self.show_message(
                phrase(
                    "exiting once {host} has stopped the run, or after {s:.0f} s",
                    host=host,
                    s=ANSWER_TIMEOUT_S,
                )
            )
        return time.monotonic() < self._deadline_s
