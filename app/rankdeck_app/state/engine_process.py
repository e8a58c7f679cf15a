"""Starting the engine, and asking it things: the only place where the app runs `python -m rankdeck`.

A launch writes the configuration to a file, runs `train FILE --runs DIR --detach --json` in the workspace and
ends with one line on stdout: `{run, path}` or `{problems: [...]}`; so does `resume RUN --detach --json`.
From then on the run belongs to its guard; the app reads the run's directory and may die. Several launches may
be under way at once. What has to be written before a command starts is written by the disk's thread; the
command itself goes to its folder (-C), for Qt would open that here.
"""

from __future__ import annotations

import json
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
from rankdeck.base.units import format_bytes
from rankdeck.remote.ssh import is_local_host
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.state.problem_list import problem_text

# How long the window's end waits for a launch that has begun, for a run would not start half-way; and for one
# that is given up then, which ends what it started itself.
CLOSE_TIMEOUT_MS, _CANCEL_TIMEOUT_MS = 15_000, 2000
NOT_SHOWN_CODE = "not-shown"
"""Of a run that has begun all the same."""


def engine_environment() -> QProcessEnvironment:
    """This process's environment without what is meant for the app's own Qt."""
    environment = QProcessEnvironment.systemEnvironment()
    for name in environment.keys():  # noqa: SIM118 - a Qt object, not a dict
        if name.startswith("QT_"):
            environment.remove(name)
    return environment


def parse_problems(text: str) -> list[Problem]:
    """The problems in `{problems: [...]}`, wherever it stands among the lines, in the window's words; empty
    when there is none.
    """
    for line in [text, *text.splitlines()]:
        if '"problems"' not in line:
            continue
        try:
            items = json.loads(line)["problems"]
            known = [{key: value for key, value in item.items() if value is not None} for item in items]
            return [translate_problem(msgspec.convert(item, Problem, strict=False)) for item in known]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return []


def command_error_text(out: str, err: str) -> str:
    """Why a command (with --json) failed, in the window's words; else what it wrote, or ""."""
    return "\n".join(map(problem_text, parse_problems(out))) or err.strip()


def checkpoint_saved_text(out: str) -> str:
    """What `checkpoint --json` saved."""
    saved = json.loads(out)
    size, seconds = format_bytes(saved["bytes"]), saved["seconds"]
    told = {"step": saved["step"], "size": size, "seconds": seconds}
    return tr("Checkpoint of step {step}: {size} saved in {seconds:.1f} s", **told)


class EngineCall(QObject):
    """One command of the engine, run to its end in a folder if that is there; `prepare` is what the disk has
    to do before. `finished` brings exit code (minus the signal that ended it), stdout and stderr; what cannot
    be started at all answers with -1 and the reason as stderr, in `refusal` too where it was the disk's.
    """

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
        if not isValid(self):
            return
        self._is_preparing = False
        if self._is_cancelled:
            self.finished.emit(-signal.SIGTERM, "", "")
            return
        there = ["-C", str(self._folder)] if has_folder else []
        self.process.setArguments(["-P", "-m", "rankdeck", *there, *self._arguments])
        self.process.start()

    def _on_prepare_failed(self, error: OSError) -> None:
        if isValid(self):
            self.refusal = str(error)
            # Later, as any answer: whoever asked listens by then.
            QTimer.singleShot(0, self, self._emit_refusal)

    def _emit_refusal(self) -> None:
        self._is_preparing = False
        self.finished.emit(-1, "", self.refusal)

    def cancel(self) -> None:
        """`finished` follows."""
        self._is_cancelled = True
        self.process.terminate()

    def kill(self) -> None:
        """`finished` follows."""
        self._is_cancelled = True
        self.process.kill()

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return int(self.process.processId())

    @property
    def is_running(self) -> bool:
        return self._is_preparing or self.process.state() != QProcess.ProcessState.NotRunning

    def wait(self, timeout_ms: int) -> bool:
        if self._is_preparing:
            self._io_thread.wait_for_done(timeout_ms / 1000)
        return not self.is_running or self.process.waitForFinished(timeout_ms)

    def abort(self) -> None:
        """Stop it now, without an answer."""
        self.blockSignals(True)
        self._is_cancelled = True
        if self.is_running:
            self.process.kill()
            self.process.waitForFinished(2000)

    def _on_process_finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        out = bytes(self.process.readAllStandardOutput().data()).decode("utf-8", "replace")
        err = bytes(self.process.readAllStandardError().data()).decode("utf-8", "replace")
        self.finished.emit(exit_code if status == QProcess.ExitStatus.NormalExit else -exit_code, out, err)

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart:
            self.finished.emit(-1, "", f"{self.process.program()}: {self.process.errorString()}")


class EngineStream(EngineCall):
    """A command that goes on: `lines_received` brings what it wrote, whole lines at a time, before it
    answers."""

    lines_received = Signal(list)
    _partial_line = b""

    def start(self) -> None:
        self.process.readyReadStandardOutput.connect(self._read_lines)
        super().start()

    def _read_lines(self) -> None:
        *lines, self._partial_line = (
            self._partial_line + bytes(self.process.readAllStandardOutput().data())
        ).split(b"\n")
        if lines:
            self.lines_received.emit(lines)

    def _on_process_finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        self._read_lines()
        super()._on_process_finished(exit_code, status)


class Launch(QObject):
    """One press of the button: `arrived` brings the run's directory, `refused` the problems. Of a run that
    another host has `bring` asks for a copy, which arrives in its place.
    """

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
        self.progress_text = doing or tr("The engine reads the configuration and makes the run's folder")
        self.call = call
        self._is_cancelled = False
        call.setParent(self)
        call.finished.connect(self._on_finished)

    def cancel(self) -> None:
        """Give up while the engine is still starting; a run that has begun is stopped, not cancelled."""
        self._is_cancelled = True
        self.call.cancel()

    def _on_finished(self, exit_code: int, out: str, err: str) -> None:
        began = _parse_started_run(out)
        if began is None:
            self.refused.emit(self._find_problems(exit_code, out, err))
        elif self._copy_run is not None and began.host and not is_local_host(began.host):
            self._copy_run(began.host, began.path).finished.connect(partial(self._on_copied, began))
        else:
            self.arrived.emit(Path(began.path))

    def _on_copied(self, began: _StartedRun, exit_code: int, out: str, err: str) -> None:
        """What goes on there has begun, whether it can be shown here or not."""
        copy = _parse_started_run(out)
        if copy is not None:
            self.arrived.emit(Path(copy.path))
            return
        problems, host = parse_problems(out), began.host
        why = problems[0].message if problems else err.strip() or str(exit_code)
        text = tr("{name} runs on {host}, and cannot be shown: {why}", name=self.name, host=host, why=why)
        advice = tr("See it in a terminal: rankdeck --host {host} watch {run}", host=host, run=began.run)
        self.refused.emit([Problem(NOT_SHOWN_CODE, text, advice=advice)])

    def _find_problems(self, exit_code: int, out: str, err: str) -> list[Problem]:
        if self._is_cancelled:
            text = tr("{name} was cancelled before it began.", name=self.name)
            return [Problem("cancelled", text, severity="info")]
        if self.call.refusal:
            text = tr("{name} could not be started: {why}.", name=self.name, why=self.call.refusal)
            return [Problem("launch", text, advice=tr("Free the disk or choose another folder."))]
        problems = parse_problems(out) or parse_problems(err)
        if problems:
            return problems
        output = " ".join((err.strip() or out.strip()).splitlines()[-3:]) or tr("it said nothing")
        text = tr("The engine ended with {exit_code}: {output}", exit_code=exit_code, output=output)
        advice = tr("See that the setting engine.python names a Python with rankdeck installed.")
        return [Problem("engine", text, advice=advice)]


class _StartedRun(msgspec.Struct):
    """What the engine says of a run; `host` is the one that has it, in a run of several."""

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
    """Starts launches and stops. `python` is read anew each time: a changed setting counts at once."""

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
        """Begin a run of the configuration; several may begin at once. `runs` None: where the host that has
        it keeps its runs."""
        call = self._call_with_config("train", config_toml, runs, workspace)
        return self._start_launch(Launch(name, call, self, copy_run=self._copy_run))

    def _copy_run(self, host: str, run: str) -> EngineCall:
        return self.call(["--host", host, "copy", run, "--json"])

    def race(
        self, name: str, config_toml: str, *, runs: Path, workspace: Path, options: Sequence[str] = ()
    ) -> Launch:
        """Begin a race of what fits; it arrives once it is planned."""
        doing = tr("The planner finds out which strategies fit")
        call = self._call_with_config("race", config_toml, runs, workspace, *options)
        return self._start_launch(Launch(name, call, self, doing))

    def _call_with_config(
        self, command: str, config_toml: str, runs: Path | None, workspace: Path, *options: str
    ) -> EngineCall:
        """A command that begins with the configuration, which is gone when it has answered."""
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
        """Where to write a configuration that a command is to read; whoever asks removes it."""
        self._num_config_files += 1
        return self._launch_folder / f"{os.getpid()}-{self._num_config_files}.toml"

    def remove_file(self, file: Path) -> None:
        self.io_thread.submit(partial(file.unlink, missing_ok=True))

    def run_script(self, name: str, arguments: Sequence[str], *, workspace: Path) -> Launch:
        """Begin a run of a person's own script in the workspace: `rankdeck run` with these arguments."""
        prepare = partial(workspace.mkdir, parents=True, exist_ok=True)
        call = EngineCall(self.python, arguments, workspace, self, io_thread=self.io_thread, prepare=prepare)
        return self._start_launch(Launch(name, call, self))

    def resume(self, name: str, run: Path, *, workspace: Path, options: Sequence[str] = ()) -> Launch:
        """Begin the next attempt of a run that is over; of a script, the same again as a new run. `options`
        of the command change its configuration. Whoever calls this has asked whether its code is trusted."""
        arguments = ["resume", str(run), *options, "--trust", "--detach", "--json"]
        call = EngineCall(self.python, arguments, workspace, self, io_thread=self.io_thread)
        return self._start_launch(Launch(name, call, self, copy_run=self._copy_run))

    def _start_launch(self, launch: Launch) -> Launch:
        self._launches.append(launch)
        launch.call.finished.connect(lambda *_: self._remove_launch(launch))
        launch.call.start()
        return launch

    def checkpoint(self, run: Path) -> EngineCall:
        """Save a running run now; the answer comes when it is saved."""
        return self.call(["checkpoint", str(run), "--json"])

    def stop(self, run: Path, *, now: bool = False) -> EngineCall:
        """Ask a run to end: in order, or at once with `now`."""
        return self.call(["stop", str(run), "--json", *(["--now"] if now else [])])

    def call(self, arguments: Sequence[str], folder: Path | None = None) -> EngineCall:
        """Any other command; the answer comes through `EngineCall.answered`."""
        call = EngineCall(self.python, arguments, folder or Path.cwd(), self, io_thread=self.io_thread)
        self._calls.append(call)
        call.finished.connect(lambda *_: self._calls.remove(call))
        call.finished.connect(call.deleteLater)
        call.start()
        return call

    def stream(self, arguments: Sequence[str]) -> EngineStream:
        """A command that goes on until its reader closes it; whoever asks owns it."""
        stream = EngineStream(self.python, arguments, Path.cwd(), self, io_thread=self.io_thread)
        stream.start()
        return stream

    def close(self) -> None:
        """Let launches that have begun reach their guard, and end the rest."""
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
