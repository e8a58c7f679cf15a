"""Asking a living run to stop or to save a checkpoint, and waiting for it.

The guard answers at control.sock in the run's directory, one JSON line to a line.
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
    """The run is over; there is nothing to ask."""

    code = "not-running"
    exit_code = 2


def request_stop(run: RunDir, now: bool = False) -> None:
    """Ask the run to stop: its ranks get 3 s (a script's 30 s), or none at all with `now`. Returns once the
    guard has heard it.

    Raises:
        NotRunningError: the run is not alive.
    """
    _check_alive(run)
    try:
        _send_request(run, {"command": "stop", "now": now}, tr_noop("{run} refused to stop: {why}."))
    except OSError:
        _signal_guard(run, now=now)


def stop_if_alive(run: RunDir, now: bool = False) -> None:
    """As `request_stop`; nothing happens to a run that has ended meanwhile."""
    try:
        request_stop(run, now=now)
    except RankdeckError:
        if run.is_alive():
            raise


def send_signal(run: RunDir, number: int) -> None:
    """Pass a signal on to every rank of a script, as a terminal or `kill` would. Returns once the guard has
    heard it.

    Raises:
        NotRunningError: the run is not alive.
    """
    _check_alive(run)
    try:
        _send_request(
            run, {"command": "signal", "number": int(number)}, tr_noop("{run} takes no signal: {why}.")
        )
    except OSError:
        if run.is_alive():
            message = phrase("{run} does not answer.", run=run.name)
            raise RankdeckError(message, code="control") from None


def request_checkpoint(run: RunDir) -> EventReader:
    """Ask the run to save itself after the step that is under way; a reader for `wait_for_checkpoint`.

    Raises:
        NotRunningError: the run is not alive.
        ConfigError: its folder cannot be written, or leads elsewhere.
    """
    _check_alive(run)
    reader = EventReader(run)
    while reader.read():
        pass
    try:
        _send_request(run, {"command": "checkpoint"}, tr_noop("{run} cannot be saved: {why}."))
    except OSError:
        # A file system without sockets: what the guard would do.
        write_request(run.path, run.requests_folder.name, "save.request")
    return reader


def wait_for_checkpoint(run: RunDir, reader: EventReader, timeout_s: float) -> events.CheckpointSaved:
    """The next checkpoint that the run tells of.

    Raises:
        RankdeckError: it could not be written, the run has ended, or nothing came within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        alive = run.is_alive()
        for _, event in reader.read():
            if isinstance(event, events.CheckpointSaved):
                return event
            if isinstance(event, events.ProblemRaised) and event.problem.code == "checkpoint-not-saved":
                raise RankdeckError(event.problem.message, problems=[event.problem])
        if not alive:
            outcome = run.outcome()
            raise NotRunningError(
                phrase("{run} ended before it was saved: {outcome}.", run=run.name, outcome=outcome)
            )
        if time.monotonic() > deadline:
            raise RankdeckError(
                phrase("{run} has not been saved within {seconds:.0f} s.", run=run.name, seconds=timeout_s),
                code="not-saved",
                advice=phrase("It is saved once its step ends; rankdeck watch shows what it is busy with."),
            )
        time.sleep(_POLL_INTERVAL_S)


def _check_alive(run: RunDir) -> None:
    if not run.is_alive():
        raise NotRunningError(
            phrase("{run} is not running: {outcome}.", run=run.name, outcome=run.outcome()),
            advice=phrase("rankdeck runs lists what is running."),
        )


def is_over(run: RunDir) -> bool:
    """Whether it has ended. One that is not where it was may have been moved just now: its guard then leads
    its first name there."""
    until_s = time.monotonic() + _MOVE_TIMEOUT_S
    while (outcome := run.outcome()) == "lost" and not run.path.exists() and time.monotonic() < until_s:
        time.sleep(_POLL_INTERVAL_S)
    return outcome != "running"


def wait_for_end(run: RunDir, timeout_s: float) -> bool:
    """Whether the run's guard has let go of its lock within `timeout_s`, or later after a save that went on:
    then nothing of the run is left."""
    deadline, saves = time.monotonic() + timeout_s, SaveWatch(run.path)
    while run.is_alive():
        if not saves.is_progressing() and time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _send_request(run: RunDir, question: dict[str, object], refusal: str) -> None:
    """One line to the guard. A run's path may be longer than a socket's may be (107 bytes).

    Raises:
        RankdeckError: the guard answers that it does not do that; `refusal` says so.
        OSError: it does not answer.
    """
    folder = os.open(run.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(_ANSWER_TIMEOUT_S)
            caller.connect(f"/proc/self/fd/{folder}/control.sock")
            caller.sendall(json.dumps(question).encode() + b"\n")
            with caller.makefile("rb") as lines:
                line = lines.readline(_MAX_ANSWER_BYTES)
    finally:
        os.close(folder)
    try:
        answer = parse_json_object(line)
    except ValueError:
        raise OSError("the guard hung up") from None
    if not answer.get("ok"):
        message = phrase(refusal, run=run.name, why=answer.get("error"))
        raise RankdeckError(message, code="control")


def _signal_guard(run: RunDir, *, now: bool) -> None:
    """For a file system without sockets, and a guard that is suspended: it takes TERM for a stop and QUIT for
    a stop now.

    Its process id is in its lock, and its environment proves that it is this run's.
    """
    try:
        pid = int(files.read_text(run.path / "guard.lock"))
        if read_environment(pid).get(GUARD_ENV) == str(run.path):
            os.kill(pid, signal.SIGQUIT if now else signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)
            return
    except (OSError, ValueError):
        pass
    if run.is_alive():
        raise RankdeckError(
            phrase("{run} does not answer.", run=run.name),
            code="control",
            advice=phrase("Its guard's process id is in {file}.", file=run.path / "guard.lock"),
        )
