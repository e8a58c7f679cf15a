"""Ask a live run to stop or to save a checkpoint, and wait until it has done so.

The guard listens at control.sock in the run's directory and answers each request line with one JSON line.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import RankdeckError
from rankdeck.base.parsing import parse_json_object
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.launch.guard import GUARD_ENV
from rankdeck.launch.processes import read_environment
from rankdeck.launch.save_watch import SaveWatch
from rankdeck.run_dir import EventReader, RunDir, write_request

_ANSWER_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.05
_MOVE_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 1 << 16


class NotRunningError(RankdeckError):
    """Raised when the run has ended and accepts no more requests."""

    code = "not-running"
    exit_code = 2


def request_stop(run: RunDir, now: bool = False) -> None:
    """Ask the run to stop, and return once the guard has confirmed the request.

    The ranks get 3 s to end, a script's ranks 30 s; if `now` is True, they are killed at once.

    Raises:
        NotRunningError: the run is not alive.
    """
    _check_alive(run)
    try:
        _send_request(run, {"command": "stop", "now": now}, tr_noop("{run} refused to stop: {why}."))
    except OSError:
        _signal_guard(run, now=now)


def stop_if_alive(run: RunDir, now: bool = False) -> None:
    """Ask the run to stop, as in `request_stop`, ignoring a run that has already ended."""
    try:
        request_stop(run, now=now)
    except RankdeckError:
        if run.is_alive():
            raise


def send_signal(run: RunDir, number: int) -> None:
    """Forward a signal to every rank of a script, and return once the guard has confirmed the request.

    Raises:
        NotRunningError: the run is not alive.
    """
    _check_alive(run)
    try:
        _send_request(
            run,
            {"command": "signal", "number": int(number)},
            tr_noop("{run} did not accept the signal: {why}."),
        )
    except OSError:
        if run.is_alive():
            message = phrase("{run} does not respond.", run=run.name)
            raise RankdeckError(message, code="control") from None


def request_checkpoint(run: RunDir) -> EventReader:
    """Ask the run to save a checkpoint after the current step; return a reader for `wait_for_checkpoint`.

    Raises:
        NotRunningError: the run is not alive.
        ConfigError: the run's folder cannot be written to, or a link in it leads out of the folder.
    """
    _check_alive(run)
    reader = EventReader(run)
    # Skip the events so far: an earlier checkpoint is no answer to this request.
    while reader.read():
        pass
    try:
        _send_request(run, {"command": "checkpoint"}, tr_noop("{run} cannot save a checkpoint: {why}."))
    except OSError:
        # A file system without sockets: create the request file as the guard would.
        write_request(run.path, run.requests_folder.name, "save.request")
    return reader


def wait_for_checkpoint(run: RunDir, reader: EventReader, timeout_s: float) -> events.CheckpointSaved:
    """Wait for the next checkpoint event of the run and return it.

    Raises:
        RankdeckError: the checkpoint was not written, the run has ended, or `timeout_s` has passed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        # Checked before the events are read: if the run has ended by now, all its events are in the files.
        alive = run.is_alive()
        for _, event in reader.read():
            if isinstance(event, events.CheckpointSaved):
                return event
            if isinstance(event, events.ProblemRaised) and event.problem.code == "checkpoint-not-saved":
                raise RankdeckError(event.problem.message, problems=[event.problem])
        if not alive:
            outcome = run.outcome()
            raise NotRunningError(
                phrase("{run} ended before it saved a checkpoint: {outcome}.", run=run.name, outcome=outcome)
            )
        if time.monotonic() > deadline:
            raise RankdeckError(
                phrase(
                    "{run} did not save a checkpoint within {seconds:.0f} s.", run=run.name, seconds=timeout_s
                ),
                code="not-saved",
                advice=phrase(
                    "The run saves a checkpoint when its current step ends. Watch it with: rankdeck watch"
                ),
            )
        time.sleep(_POLL_INTERVAL_S)


def _check_alive(run: RunDir) -> None:
    if not run.is_alive():
        raise NotRunningError(
            phrase("{run} is not running: {outcome}.", run=run.name, outcome=run.outcome()),
            advice=phrase("List the runs with: rankdeck runs"),
        )


def is_over(run: RunDir) -> bool:
    """Check whether the run has ended.

    If the directory is missing, it may just have been moved: wait a moment for the guard to create a link at
    the original path.
    """
    until_s = time.monotonic() + _MOVE_TIMEOUT_S
    while (outcome := run.outcome()) == "lost" and not run.path.exists() and time.monotonic() < until_s:
        time.sleep(_POLL_INTERVAL_S)
    return outcome != "running"


def wait_for_end(run: RunDir, timeout_s: float) -> bool:
    """Wait until the run's guard has released its lock, which it does once no process of the run is left.

    Return False once `timeout_s` has passed; a save that makes progress restarts this timeout.
    """
    deadline, saves = time.monotonic() + timeout_s, SaveWatch(run.path)
    while run.is_alive():
        if saves.is_progressing():
            deadline = time.monotonic() + timeout_s
        elif time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _send_request(run: RunDir, question: dict[str, object], refusal: str) -> None:
    """Send one request line to the guard.

    Raises:
        RankdeckError: the guard refuses the request; `refusal` is the template of the error's message.
        OSError: the guard does not answer.
    """
    folder = os.open(run.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(_ANSWER_TIMEOUT_S)
            # A socket's path has at most 107 bytes, which a run's path may exceed.
            caller.connect(f"/proc/self/fd/{folder}/control.sock")
            caller.sendall(json.dumps(question).encode() + b"\n")
            with caller.makefile("rb") as lines:
                line = lines.readline(_MAX_ANSWER_BYTES)
    finally:
        os.close(folder)
    try:
        answer = parse_json_object(line)
    except ValueError:
        raise OSError("the run's guard closed the connection") from None
    if not answer.get("ok"):
        message = phrase(refusal, run=run.name, why=answer.get("error"))
        raise RankdeckError(message, code="control")


def _signal_guard(run: RunDir, *, now: bool) -> None:
    """Stop the run with a signal to its guard: SIGTERM or, if `now` is True, SIGQUIT.

    This is for file systems without sockets and for suspended guards. The process id is in the guard's lock
    file; the environment of that process proves that it belongs to this run.
    """
    try:
        pid = int(files.read_text(run.path / "guard.lock"))
        # The pid may belong to another process by now.
        if read_environment(pid).get(GUARD_ENV) == str(run.path):
            os.kill(pid, signal.SIGQUIT if now else signal.SIGTERM)
            # A suspended guard handles the signal only once it continues.
            os.kill(pid, signal.SIGCONT)
            return
    except (OSError, ValueError):
        pass
    if run.is_alive():
        raise RankdeckError(
            phrase("{run} does not respond.", run=run.name),
            code="control",
            advice=phrase("Inspect its guard process, whose id is in {file}.", file=run.path / "guard.lock"),
        )
