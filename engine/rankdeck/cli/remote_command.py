"""`rankdeck --host NAME COMMAND ...`: run a rankdeck command on another host, over ssh.

The command's output is printed on this host. A watched run is copied continuously and read on this host, so a
broken connection only makes the view stale; the view then shows the copy's age.
"""

from __future__ import annotations

import codecs
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.wait import (
    ANSWER_TIMEOUT_S,
    EXIT_INTERRUPTED,
    RemoteStop,
    print_outcome,
    signal_handler,
    warn_still_running,
)

if TYPE_CHECKING:
    from rankdeck.cli.display import Display
    from rankdeck.remote.remote_run import RemoteRun
    from rankdeck.run_dir import RunDir

STALE_AFTER_S = 3.0
"""Age of the copied data above which the view is stale and shows that age."""
_POLL_INTERVAL_S = 0.1
_AGE_REPORT_INTERVAL_S = 0.5
_SLOW_ANSWER_S = 5.0
_MAX_INTERRUPTS = 3
_REDIRECTED_COMMANDS = ("stop", "checkpoint", "stacks")
_HOST_OPTION, _FOLDER_OPTION = "--host", "-C"


def split_host_option(argv: Sequence[str]) -> tuple[str, str, list[str]] | None:
    """Return (host, folder on the host, command and arguments), or None if no host is named.

    Raises:
        ConfigError: a host is named without a command.
    """
    host = folder = ""
    rest = list(argv)
    while rest:
        name, equals, value = rest[0].partition("=")
        # The short option may have its value attached: -CFOLDER.
        if rest[0].startswith(_FOLDER_OPTION) and rest[0] != _FOLDER_OPTION:
            name, equals, value = _FOLDER_OPTION, "attached", rest[0].removeprefix(_FOLDER_OPTION)
        if name not in (_HOST_OPTION, _FOLDER_OPTION):
            break
        if not equals and len(rest) < 2:
            return None  # typer reports the missing value
        value, rest = (value, rest[1:]) if equals else (rest[1], rest[2:])
        host, folder = (value, folder) if name == _HOST_OPTION else (host, value)
    if not host:
        return None
    # --version is the exception, as it reports the version of the host.
    if not rest or (rest[0].startswith("-") and rest[0] != "--version"):
        raise ConfigError(
            phrase("The option --host {host} needs a command.", host=host),
            code="usage",
            advice=phrase("For example: rankdeck --host {host} devices", host=host),
        )
    return host, folder, rest


def run_on_host(host: str, folder: str, argv: Sequence[str]) -> int:
    """Run a command on a host, and return its exit code.

    Raises:
        MachineError: the host cannot be reached, or the connection broke.
    """
    command, *rest = argv
    if command == "install":
        return _install_remotely(host, rest)
    options = {word.partition("=")[0] for word in rest if word.startswith("-")}
    # Help and detached commands need no copy of a run on this host.
    if not options & {"-h", "--help", "--detach"}:
        as_json = "--json" in options
        if command == "watch":
            return _watch_remotely(host, _single_name(rest), as_json=as_json)
        if command == "copy":
            return copy_run(host, _single_name(rest), follow="--follow" in options, as_json=as_json)
        if command == "train":
            return _train_remotely(host, folder, rest, as_json=as_json)
    return _run_remotely(host, folder, argv, _print_output)[0]


# Incremental, because a chunk of output may end within a UTF-8 character.
_decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in (1, 2)}


def _print_output(stream: int, data: bytes) -> None:
    """Print a remote command's output; on a terminal, replace its control characters."""
    there = sys.stdout if stream == 1 else sys.stderr
    if there.isatty():
        there.write(console.replace_control_characters(_decoders[stream].decode(data)))
    else:
        # A file or a pipe gets the bytes unchanged, because an export to stdout may be binary.
        there.buffer.write(data)
    there.flush()


def _run_remotely(
    host: str, folder: str, argv: Sequence[str], on_output: Callable[[int, bytes], None] = lambda *_: None
) -> tuple[int, int]:
    """Run a command on a host; return its exit code and how often Ctrl-C was pressed.

    Ctrl-C is forwarded to the command. After the third Ctrl-C, return once the command has ended, or after a
    timeout with a warning that the command may still be running.
    """
    from rankdeck.remote.hosts import RemoteHost

    num_interrupts, num_passed, until_s = 0, 0, math.inf

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal num_interrupts
        num_interrupts += 1

    there = RemoteHost(host, on_output=on_output)
    with there.link as link, signal_handler(interrupt, signal.SIGINT):
        while not link.is_up:
            if num_interrupts:
                return EXIT_INTERRUPTED, num_interrupts
            link.poll(_POLL_INTERVAL_S)
        ran = there.start_command(argv, folder=folder)
        while ran.exit_code is None:
            link.poll(_POLL_INTERVAL_S)
            if (refused := there.refusal) is not None:
                raise MachineError(refused.message, code=refused.code, advice=refused.advice or None)
            if not link.is_up:
                raise _connection_error(host, argv[0])
            # The signal handler only counts: signals are forwarded here, between two polls of the link.
            for _ in range(num_passed, min(num_interrupts, _MAX_INTERRUPTS)):
                num_passed += 1
                ran.send_signal(signal.SIGINT)
                if num_passed == _MAX_INTERRUPTS:
                    until_s = time.monotonic() + ANSWER_TIMEOUT_S
            if time.monotonic() > until_s:
                warn_still_running(host)
                return EXIT_INTERRUPTED, num_interrupts
    return ran.exit_code, num_interrupts


def _connection_error(host: str, command: str) -> MachineError:
    return MachineError(
        phrase(
            "The connection to {host} was lost while rankdeck {command} was running there.",
            host=host,
            command=command,
        ),
        code="connection-lost",
        advice=phrase("Runs on that host continue. List them with: rankdeck --host {host} runs", host=host),
    )


def _install_remotely(host: str, rest: Sequence[str]) -> int:
    """Install Rankdeck on a host, and wait until the installed rankdeck responds. `rest` has --python, if
    set, and arguments for pip."""
    from rankdeck.remote.installer import install_on_host
    from rankdeck.remote.link import HostLink

    python, more = "", list(rest)
    if "--python" in more[:-1]:
        at = more.index("--python")
        python = more[at + 1]
        del more[at : at + 2]
    install_on_host(host, python=python, pip_args=more)
    with HostLink(host, lambda *_: None) as link:
        while not link.is_up:
            link.poll(_POLL_INTERVAL_S)
        console.err().print(phrase("{host} now has rankdeck {version}.", host=host, version=link.version))
    return 0


def _single_name(rest: Sequence[str]) -> str:
    names = [word for word in rest if not word.startswith("-")]
    if len(names) == 1:
        return names[0]
    raise ConfigError(
        phrase("The command needs exactly one run."),
        code="usage",
        advice=phrase("For example: rankdeck --host NAME watch last"),
    )


def _train_remotely(host: str, folder: str, rest: Sequence[str], *, as_json: bool) -> int:
    """Start a run in the background on a host, follow the run's copy on this host, and return the exit code.
    `rest` are the arguments of `train`."""
    from rankdeck.remote.hosts import CommandResult

    output = bytearray()

    def take(stream: int, data: bytes) -> None:
        if stream == 1:
            output.extend(data)
        else:
            _print_output(stream, data)

    # Detached, so that a broken connection does not end the run.
    arguments = ["train", *(word for word in rest if word != "--json"), "--detach", "--json"]
    code, num_interrupts = _run_remotely(host, folder, arguments, take)
    result = CommandResult.parse(bytes(output))
    if code or not result.path:
        if as_json:
            _print_output(1, bytes(output))
        for problem in [] if as_json else result.problems:
            console.print_problem(problem)
        return code or 1
    return wait_for_remote_run(host, result.path, as_json=as_json, num_interrupts=num_interrupts)


def _watch_remotely(host: str, name: str, *, as_json: bool) -> int:
    from rankdeck.cli.display import JsonDisplay
    from rankdeck.cli.follow import choose_display, follow
    from rankdeck.cli.summary import print_summary
    from rankdeck.remote.remote_run import RemoteRun
    from rankdeck.run.summary_builder import summarize

    with RemoteRun(host, name) as followed:
        run = followed.copy()
        display = JsonDisplay() if as_json else choose_display(run)
        state = follow(run, display, _StaleNotice(followed, display).tick)
        if not as_json:
            print_summary(summarize(run, state), shown_problems=state.problems)
    return 0


def copy_run(host: str, name: str, *, follow: bool, as_json: bool) -> int:
    """Copy a run from a host and print the copy's path.

    If `follow` is True, copy until the run is over; if `as_json` is True too, print the copy's age twice a
    second.
    """
    from rankdeck.remote.remote_run import RemoteRun

    reader = os.getppid()
    with RemoteRun(host, name, is_reachable=follow, keeps_copy=True) as followed:
        run = followed.copy()
        if as_json:
            console.print_json({"host": host, "run": run.name, "path": str(run.path)})
        else:
            console.out().print(str(run.path), soft_wrap=True, markup=False, highlight=False)
        # Stop copying when the process that started this command has ended.
        while follow and run.outcome() == "running" and os.getppid() == reader:
            if followed.error is not None:
                raise followed.error
            if as_json:
                console.print_json({"age_s": round(followed.link.age_s(), 1)})
            time.sleep(_AGE_REPORT_INTERVAL_S)
    return 0


def redirect_copy(argv: Sequence[str]) -> tuple[str, str, list[str]] | None:
    """Return (host, folder, arguments) for a command that acts on the copy of a remote run, or None for any
    other command.

    The caller has to run the command on the original run's host. The tuple has the form that
    `split_host_option` returns.
    """
    command, *rest = (argv[2:] if argv[:1] == [_FOLDER_OPTION] else argv) or [""]
    if command not in _REDIRECTED_COMMANDS:
        return None
    from rankdeck.run_dir import RunDir

    for at, word in enumerate(rest):
        if not word.startswith("-") and (origin := RunDir(Path(word)).origin) is not None:
            return origin.host, "", [command, *rest[:at], origin.path, *rest[at + 1 :]]
    return None


def wait_for_remote_run(
    host: str, path: str, *, as_json: bool, attempt: int = 0, num_interrupts: int = 0
) -> int:
    """Show a host's run, starting with `attempt`, until the run ends, as `wait_for_run` does for local runs.

    Ctrl-C stops the run on its host; `num_interrupts` is how often Ctrl-C was pressed before the call.
    """
    from rankdeck.cli.follow import choose_display, follow
    from rankdeck.remote.remote_run import RemoteRun

    followed = RemoteRun(host, path, is_reachable=True)
    stopping = RemoteStop(followed, path, num_interrupts)
    # Signals are counted before the connection is made, so that Ctrl-C while it is slow also stops the run.
    with stopping.interrupts.count_signals(), followed:
        run = _wait_for_copy(followed, stopping)
        if run is None:
            warn_still_running(host, path)
            return EXIT_INTERRUPTED
        display = choose_display(run, progress=not as_json)
        # From here on messages go through the display, which redraws the terminal.
        stopping.display, age = display, _StaleNotice(followed, display)
        try:
            state = follow(run, display, lambda: age.tick() and stopping.handle_pending(), attempt)
        # The reader of the output is gone, so stop the run, as `wait_for_run` does.
        except BrokenPipeError:
            _run_remotely(host, "", ["stop", path])
            raise
        code = print_outcome(run, state, as_json=as_json, interrupted=stopping.interrupts.count > 0)
        if run.outcome() == "running":
            warn_still_running(host, path)
        return code


def _wait_for_copy(followed: RemoteRun, stopping: RemoteStop) -> RunDir | None:
    """Return the run's copy once it can be read; None if the user quits first."""
    began_s, is_told = time.monotonic(), False
    while (run := followed.wait_for_copy(_POLL_INTERVAL_S)) is None:
        if not stopping.handle_pending():
            return None
        if not is_told and time.monotonic() - began_s > _SLOW_ANSWER_S:
            is_told = True
            stopping.show_message(
                phrase("{host} has not answered yet; the run continues there.", host=followed.link.host)
            )
    return run


class _StaleNotice:
    """Notice that is shown once when the view becomes stale, and once when it is up to date again."""

    def __init__(self, followed: RemoteRun, display: Display) -> None:
        self._remote_run, self._display = followed, display
        self._is_stale = False

    def tick(self) -> bool:
        """Show a notice if the view has become stale or up to date since the last call; always return True.

        Raises:
            RankdeckError: following the remote run has failed permanently.
        """
        if self._remote_run.error is not None:
            raise self._remote_run.error
        age_s, host = self._remote_run.link.age_s(), self._remote_run.link.host
        self._display.age_s = age_s if age_s > STALE_AFTER_S else None
        if (age_s > STALE_AFTER_S) != self._is_stale:
            self._is_stale = not self._is_stale
            self._display.show_message(
                phrase(
                    "{host} is not answering; the run continues there. The display is out of date.", host=host
                )
                if self._is_stale
                else phrase("{host} is answering again; no events were lost.", host=host)
            )
        return True
