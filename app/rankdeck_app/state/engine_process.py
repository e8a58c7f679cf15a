"""Start the engine and send it commands. Only this module of the app runs `python -m rankdeck`.

A launch writes the configuration to a file, runs `train FILE --runs DIR --detach --json` in the workspace,
and ends with a line on stdout: `{run, path}` or `{problems: [...]}`. `resume RUN --detach --json` ends in the
same way. The run then belongs to its guard: the app only reads the run directory, and can exit. The engine,
not Qt, changes to the command's folder (-C), because a slow disk could otherwise block the window.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, QTimer, Signal
from shiboken6 import isValid

from rankdeck.base.errors import Problem
from rankdeck.base.files import write_private
from rankdeck.base.masking import mask_arguments
from rankdeck.base.units import format_bytes
from rankdeck.remote.ssh import is_local_host
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.state.problem_list import problem_text

# How long closing the app waits for a running launch, then for a cancelled one, which ends its processes.
CLOSE_TIMEOUT_MS, _CANCEL_TIMEOUT_MS = 15_000, 2000
NOT_SHOWN_CODE = "not-shown"  # a started run cannot be shown
_log = logging.getLogger(__name__)


def engine_environment() -> QProcessEnvironment:
    """Return this process's environment without the variables that configure the app's own Qt."""
    environment = QProcessEnvironment.systemEnvironment()
    for name in environment.keys():  # noqa: SIM118 - a Qt object, not a dict
        if name.startswith("QT_"):
            environment.remove(name)
    return environment


def parse_problems(text: str) -> list[Problem]:
    """Return the translated problems of the first `{problems: [...]}` in the text; empty if there is none."""
    for line in [text, *text.splitlines()]:  # the JSON document may span several lines
        if '"problems"' not in line:
            continue
        try:
            items = json.loads(line)["problems"]
            records = [{key: value for key, value in item.items() if value is not None} for item in items]
            return [translate_problem(msgspec.convert(item, Problem, strict=False)) for item in records]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return []


def command_error_text(out: str, err: str) -> str:
    """Return why a command with --json failed: its translated problems, or else its stderr."""
    return "\n".join(map(problem_text, parse_problems(out))) or err.strip()


def checkpoint_saved_text(out: str) -> str:
    """Return the message for a checkpoint saved by `checkpoint --json`."""
    saved = json.loads(out)
    arguments = {"step": saved["step"], "size": format_bytes(saved["bytes"]), "seconds": saved["seconds"]}
    return tr("Saved the checkpoint of step {step}: {size} in {seconds:.1f} s", **arguments)


class EngineCall(QObject):
    """One engine command, run in `folder` if that exists; the io thread calls `prepare` first. `finished`
    carries the exit code (negative for a signal), stdout and stderr. If a command cannot be started, these
    are -1, an empty string and the reason; if `prepare` failed, the reason is in `refusal` as well."""

    finished = Signal(int, str, str)

    def __init__(
        self,
        python: str,
        arguments: Sequence[str],
        folder: Path,
        parent: QObject,
        *,
        io_thread: IoThread,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(parent)
        self.refusal = ""
        self._arguments, self._folder = list(arguments), folder
        self._io_thread, self._prepare = io_thread, prepare
        self._is_preparing = self._is_cancelled = False
        self.process = QProcess(self)
        self.process.setProgram(python)
        self.process.setProcessEnvironment(engine_environment())
        # A command must not wait for input that cannot be typed.
        self.process.setStandardInputFile(QProcess.nullDevice())
        self.process.finished.connect(self._on_process_finished)
        self.process.errorOccurred.connect(self._on_error)

    def start(self) -> None:
        prepare, folder = self._prepare, self._folder

        def ready() -> bool:
            prepare()
            return folder.is_dir()

        self._is_preparing = True
        self._io_thread.submit(ready, self._start_process, self._on_prepare_failed)

    def _start_process(self, has_folder: bool) -> None:
        # The io thread may answer after Qt has deleted this object.
        if not isValid(self):
            return
        self._is_preparing = False
        if self._is_cancelled:
            self.finished.emit(-signal.SIGTERM, "", "")
            return
        there = ["-C", str(self._folder)] if has_folder else []
        # -P: modules in the workspace must not shadow those of the engine.
        self.process.setArguments(["-P", "-m", "rankdeck", *there, *self._arguments])
        self.process.start()
        _log.info("process %d started: %s", self.pid, mask_arguments(self.process.arguments()))

    def _on_prepare_failed(self, error: OSError) -> None:
        if isValid(self):
            self.refusal = str(error)
            # From the event loop, like any other answer: the caller may connect to `finished` after `start`.
            QTimer.singleShot(0, self, self._emit_refusal)

    def _emit_refusal(self) -> None:
        self._is_preparing = False
        self.finished.emit(-1, "", self.refusal)

    def cancel(self) -> None:
        """Terminate the command; `finished` is emitted once it has ended."""
        self._is_cancelled = True
        self.process.terminate()

    def kill(self) -> None:
        """Kill the command; `finished` is emitted once it has ended."""
        self._is_cancelled = True
        self.process.kill()

    @property
    def pid(self) -> int:
        """The process id; 0 while the command is not running."""
        return int(self.process.processId())

    @property
    def is_running(self) -> bool:
        return self._is_preparing or self.process.state() != QProcess.ProcessState.NotRunning

    def wait(self, timeout_ms: int) -> bool:
        if self._is_preparing:
            self._io_thread.wait_for_done(timeout_ms / 1000)
        return not self.is_running or self.process.waitForFinished(timeout_ms)

    def abort(self) -> None:
        """Kill the command at once, without emitting `finished`."""
        self.blockSignals(True)
        self._is_cancelled = True
        if self.is_running:
            self.process.kill()
            self.process.waitForFinished(2000)

    def _on_process_finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        _log.info("%s ended: %s, exit code %d", self._arguments[:1], status.name, exit_code)
        out = bytes(self.process.readAllStandardOutput().data()).decode("utf-8", "replace")
        err = bytes(self.process.readAllStandardError().data()).decode("utf-8", "replace")
        self.finished.emit(exit_code if status == QProcess.ExitStatus.NormalExit else -exit_code, out, err)

    def _on_error(self, error: QProcess.ProcessError) -> None:
        # Qt emits no `finished` for a process that did not start.
        if error == QProcess.ProcessError.FailedToStart:
            self.finished.emit(-1, "", f"{self.process.program()}: {self.process.errorString()}")


class EngineStream(EngineCall):
    """A command with continuous output: `lines_received` carries whole lines; `finished` is emitted last."""

    lines_received = Signal(list)
    _partial_line = b""

    def start(self) -> None:
        self.process.readyReadStandardOutput.connect(self._read_lines)
        super().start()

    def _read_lines(self) -> None:
        output = self._partial_line + bytes(self.process.readAllStandardOutput().data())
        *lines, self._partial_line = output.split(b"\n")
        if lines:
            self.lines_received.emit(lines)

    def _on_process_finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        self._read_lines()
        super()._on_process_finished(exit_code, status)


class Launch(QObject):
    """A requested launch: `arrived` carries the run directory, `refused` the problems. If the run is stored
    on another host, `copy_run` requests a copy, and `arrived` carries the copy's directory."""

    arrived = Signal(Path)
    refused = Signal(list)

    def __init__(
        self,
        name: str,
        call: EngineCall,
        parent: QObject,
        doing: str = "",
        *,
        copy_run: Callable[[str, str], EngineCall] | None = None,
    ) -> None:
        super().__init__(parent)
        self.name = name
        self._copy_run = copy_run
        doing = doing or tr("The engine is reading the configuration and creating the run's folder")
        self.call, self.progress_text = call, doing
        self._is_cancelled = False
        call.setParent(self)
        call.finished.connect(self._on_finished)

    def cancel(self) -> None:
        """Cancel the launch while the engine is starting; a run that has started must be stopped instead."""
        self._is_cancelled = True
        self.call.cancel()

    def _on_finished(self, exit_code: int, out: str, err: str) -> None:
        started_run = _parse_started_run(out)
        if started_run is None:
            self.refused.emit(self._find_problems(exit_code, out, err))
        elif self._copy_run is not None and started_run.host and not is_local_host(started_run.host):
            self._copy_run(started_run.host, started_run.path).finished.connect(
                partial(self._on_copied, started_run)
            )
        else:
            self.arrived.emit(Path(started_run.path))

    def _on_copied(self, started_run: _StartedRun, exit_code: int, out: str, err: str) -> None:
        """Report the copied run; if copying failed, report that the run has started but cannot be shown."""
        copy = _parse_started_run(out)
        if copy is not None:
            self.arrived.emit(Path(copy.path))
            return
        problems, host = parse_problems(out), started_run.host
        why = problems[0].message if problems else err.strip() or str(exit_code)
        text = tr("{name} started on {host} but cannot be shown: {why}", name=self.name, host=host, why=why)
        advice = tr(
            "Watch it in a terminal: rankdeck --host {host} watch {run}", host=host, run=started_run.run
        )
        self.refused.emit([Problem(NOT_SHOWN_CODE, text, advice=advice)])

    def _find_problems(self, exit_code: int, out: str, err: str) -> list[Problem]:
        if self._is_cancelled:
            text = tr("{name} was cancelled before it started.", name=self.name)
            return [Problem("cancelled", text, severity="info")]
        if self.call.refusal:
            text = tr("{name} could not be started: {why}.", name=self.name, why=self.call.refusal)
            return [Problem("launch", text, advice=tr("Free some disk space, or choose another folder."))]
        problems = parse_problems(out) or parse_problems(err)
        if problems:
            return problems
        output = " ".join((err.strip() or out.strip()).splitlines()[-3:]) or tr("no output")
        text = tr("The engine ended with exit code {exit_code}: {output}", exit_code=exit_code, output=output)
        advice = tr("Set engine.python to a Python interpreter with rankdeck installed.")
        return [Problem("engine", text, advice=advice)]


class _StartedRun(msgspec.Struct):
    """A run that the engine has started; with several hosts, `host` is the host that stores the run."""

    run: str
    path: str
    host: str = ""


def _parse_started_run(out: str) -> _StartedRun | None:
    for line in reversed(out.splitlines()):
        try:
            return msgspec.json.decode(line, type=_StartedRun)
        except msgspec.MsgspecError:
            continue
    return None


class Engine(QObject):
    """Runner of engine commands. `python` is read for each command, so a changed setting applies at once."""

    def __init__(
        self, launch_folder: Path, parent: QObject | None = None, *, io_thread: IoThread | None = None
    ) -> None:
        super().__init__(parent)
        self.python = sys.executable
        self.io_thread = io_thread or IoThread(self)
        self._launch_folder = launch_folder
        self._num_config_files = 0
        self._launches: list[Launch] = []
        self._calls: list[EngineCall] = []

    def launch(self, name: str, config_toml: str, *, runs: Path | None, workspace: Path) -> Launch:
        """Start a run, even while other launches are pending. If `runs` is None, use the default runs folder
        of the run's host."""
        call = self._call_with_config("train", config_toml, runs, workspace)
        return self._start_launch(Launch(name, call, self, copy_run=self._copy_run))

    def _copy_run(self, host: str, run: str) -> EngineCall:
        return self.call(["--host", host, "copy", run, "--json"])

    def race(
        self, name: str, config_toml: str, *, runs: Path, workspace: Path, options: Sequence[str] = ()
    ) -> Launch:
        """Start a race of the strategies that fit; `Launch.arrived` is emitted once the race is planned."""
        doing = tr("The planner is checking which strategies fit")
        call = self._call_with_config("race", config_toml, runs, workspace, *options)
        return self._start_launch(Launch(name, call, self, doing))

    def _call_with_config(
        self, command: str, config_toml: str, runs: Path | None, workspace: Path, *options: str
    ) -> EngineCall:
        """Return a command that reads the configuration from a file; the file is removed afterwards."""
        file = self.new_config_path()

        def prepare() -> None:
            workspace.mkdir(parents=True, exist_ok=True)
            write_private(file, config_toml)

        there = [] if runs is None else ["--runs", str(runs)]
        arguments = [command, str(file), *there, *options, "--detach", "--json"]
        call = EngineCall(self.python, arguments, workspace, self, io_thread=self.io_thread, prepare=prepare)
        call.finished.connect(lambda *_: self.remove_file(file))
        return call

    def new_config_path(self) -> Path:
        """Return a new path for a configuration that a command reads; the caller removes the file."""
        self._num_config_files += 1
        return self._launch_folder / f"{os.getpid()}-{self._num_config_files}.toml"

    def remove_file(self, file: Path) -> None:
        self.io_thread.submit(partial(file.unlink, missing_ok=True))

    def run_script(self, name: str, arguments: Sequence[str], *, workspace: Path) -> Launch:
        """Start a run of a user's script in the workspace; `arguments` are passed to `rankdeck run`."""
        prepare = partial(workspace.mkdir, parents=True, exist_ok=True)
        call = EngineCall(self.python, arguments, workspace, self, io_thread=self.io_thread, prepare=prepare)
        return self._start_launch(Launch(name, call, self))

    def resume(self, name: str, run: Path, *, workspace: Path, options: Sequence[str] = ()) -> Launch:
        """Start the next attempt of an ended run; a script is run again as a new run. `options` change the
        run's configuration. The caller must have checked that the run's code is trusted."""
        arguments = ["resume", str(run), *options, "--trust", "--detach", "--json"]
        call = EngineCall(self.python, arguments, workspace, self, io_thread=self.io_thread)
        return self._start_launch(Launch(name, call, self, copy_run=self._copy_run))

    def _start_launch(self, launch: Launch) -> Launch:
        self._launches.append(launch)
        launch.call.finished.connect(lambda *_: self._remove_launch(launch))
        launch.call.start()
        return launch

    def checkpoint(self, run: Path) -> EngineCall:
        """Save a checkpoint of a running run; the call finishes when the checkpoint is saved."""
        return self.call(["checkpoint", str(run), "--json"])

    def stop(self, run: Path, *, now: bool = False) -> EngineCall:
        """Ask a run to stop: at once if `now` is True, otherwise in an orderly way."""
        return self.call(["stop", str(run), "--json", *(["--now"] if now else [])])

    def call(self, arguments: Sequence[str], folder: Path | None = None) -> EngineCall:
        """Run any engine command; `EngineCall.finished` carries its exit code and output."""
        call = EngineCall(self.python, arguments, folder or Path.cwd(), self, io_thread=self.io_thread)
        self._calls.append(call)
        call.finished.connect(lambda *_: self._calls.remove(call))
        call.finished.connect(call.deleteLater)
        call.start()
        return call

    def stream(self, arguments: Sequence[str]) -> EngineStream:
        """Start a command with continuous output, which the caller owns and closes."""
        stream = EngineStream(self.python, arguments, Path.cwd(), self, io_thread=self.io_thread)
        stream.start()
        return stream

    def close(self) -> None:
        """Wait until the guards of pending launches have started, and end all other commands."""
        for launch in list(self._launches):
            if not launch.call.wait(CLOSE_TIMEOUT_MS):
                launch.cancel()
                launch.call.wait(_CANCEL_TIMEOUT_MS)
        for call in list(self._calls):
            call.abort()
        self._calls.clear()

    def _remove_launch(self, launch: Launch) -> None:
        if launch in self._launches:
            self._launches.remove(launch)
