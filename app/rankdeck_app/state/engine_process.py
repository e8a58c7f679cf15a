"""Starting the engine, and asking it things: the only place where the app runs `python -m rankdeck`.

A launch writes the configuration to a file, runs `train FILE --runs DIR --detach --json` in the workspace and
ends with one line on stdout: `{run, path}` or `{problems: [...]}`; so does `resume RUN --detach --json`.
From then on the run belongs to its guard; the app reads the run's directory and may die. Several launches may
be under way at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

from rankdeck.base.errors import Problem

# How long the window's end waits for a launch that has begun: killed half-way, the run would not start.
CLOSING_WAIT_MS = 15_000


def engine_environment() -> QProcessEnvironment:
    """This process's environment without what is meant for the app's own Qt."""
    environment = QProcessEnvironment.systemEnvironment()
    for name in environment.keys():  # noqa: SIM118 - a Qt object, not a dict
        if name.startswith("QT_"):
            environment.remove(name)
    return environment


def engine_command(python: str, arguments: Sequence[str], folder: Path, parent: QObject) -> QProcess:
    """A command of the engine, not started yet, that will run in the folder."""
    process = QProcess(parent)
    process.setProgram(python)
    process.setArguments(["-P", "-m", "rankdeck", *arguments])
    process.setProcessEnvironment(engine_environment())
    process.setStandardInputFile(QProcess.nullDevice())
    if folder.is_dir():
        process.setWorkingDirectory(str(folder))
    return process


def parse_problems(text: str) -> list[Problem]:
    """The problems in `{problems: [...]}`, wherever it stands among the lines; empty when there is none."""
    for line in [text, *text.splitlines()]:
        if '"problems"' not in line:
            continue
        try:
            items = json.loads(line)["problems"]
            known = [{key: value for key, value in item.items() if value is not None} for item in items]
            return [msgspec.convert(item, Problem, strict=False) for item in known]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return []


class EngineCall(QObject):
    """One command of the engine, run to its end. `answered` brings exit code (minus the signal that ended
    it), stdout and stderr; what cannot be started at all answers with -1 and the reason as stderr.
    """

    answered = Signal(int, str, str)

    def __init__(self, python: str, arguments: Sequence[str], folder: Path, parent: QObject) -> None:
        super().__init__(parent)
        self.process = engine_command(python, arguments, folder, self)
        self.process.finished.connect(self._finished)
        self.process.errorOccurred.connect(self._failed)

    def start(self) -> None:
        self.process.start()

    def cancel(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        """`answered` follows."""
        self.process.kill()

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return int(self.process.processId())

    @property
    def is_running(self) -> bool:
        return self.process.state() != QProcess.ProcessState.NotRunning

    def wait(self, timeout_ms: int) -> bool:
        return not self.is_running or self.process.waitForFinished(timeout_ms)

    def end(self) -> None:
        """Stop it now, without an answer."""
        self.blockSignals(True)
        if self.is_running:
            self.process.kill()
            self.process.waitForFinished(2000)

    def _finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        out = bytes(self.process.readAllStandardOutput().data()).decode("utf-8", "replace")
        err = bytes(self.process.readAllStandardError().data()).decode("utf-8", "replace")
        self.answered.emit(exit_code if status == QProcess.ExitStatus.NormalExit else -exit_code, out, err)

    def _failed(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart:
            self.answered.emit(-1, "", f"{self.process.program()}: {self.process.errorString()}")


class Stream(EngineCall):
    """A command that goes on: `lines` brings what it wrote, whole lines at a time, before it answers."""

    lines = Signal(list)

    def __init__(self, python: str, arguments: Sequence[str], folder: Path, parent: QObject) -> None:
        super().__init__(python, arguments, folder, parent)
        self._rest = b""
        self.process.readyReadStandardOutput.connect(self._read)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + bytes(self.process.readAllStandardOutput().data())).split(b"\n")
        if lines:
            self.lines.emit(lines)

    def _finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        self._read()
        super()._finished(exit_code, status)


class Launch(QObject):
    """One press of the button: `arrived` brings the run's directory, `refused` the problems."""

    arrived = Signal(Path)
    refused = Signal(list)

    def __init__(
        self,
        name: str,
        file: Path | None,
        call: EngineCall,
        parent: QObject,
        doing: str = "The engine reads the configuration and makes the run's folder",
    ) -> None:
        super().__init__(parent)
        self.name = name
        self.doing = doing
        self.path: Path | None = None
        self.problems: list[Problem] = []
        self.call = call
        self._file = file
        self._cancelled = False
        call.setParent(self)
        call.answered.connect(self._answered)

    def cancel(self) -> None:
        """Give up while the engine is still starting; a run that has begun is stopped, not cancelled."""
        self._cancelled = True
        self.call.cancel()

    def _answered(self, exit_code: int, out: str, err: str) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        path = _run_path(out)
        if path is not None:
            self.path = path
            self.arrived.emit(path)
            return
        self.problems = self._problems_of(exit_code, out, err)
        self.refused.emit(self.problems)

    def _problems_of(self, exit_code: int, out: str, err: str) -> list[Problem]:
        if self._cancelled:
            return [Problem("cancelled", f"{self.name} was cancelled before it began.", severity="info")]
        problems = parse_problems(out) or parse_problems(err)
        if problems:
            return problems
        output = " ".join((err.strip() or out.strip()).splitlines()[-3:]) or "it said nothing"
        advice = "See that the setting engine.python names a Python with rankdeck installed."
        return [Problem("engine", f"The engine ended with {exit_code}: {output}", advice=advice)]


def _run_path(out: str) -> Path | None:
    for line in reversed(out.splitlines()):
        try:
            value: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("path"), str) and "run" in value:
            return Path(value["path"])
    return None


class Engine(QObject):
    """Starts launches and stops. `python` is read anew each time: a changed setting counts at once."""

    def __init__(self, launch_folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.python = sys.executable
        self._launch_folder = launch_folder
        self._count = 0
        self._launches: list[Launch] = []
        self._calls: list[EngineCall] = []

    def launch(self, name: str, config_toml: str, *, runs: Path, workspace: Path) -> Launch:
        """Begin a run of the configuration; several may begin at once.

        Raises:
            OSError: the configuration's file, or the workspace, cannot be written.
        """
        workspace.mkdir(parents=True, exist_ok=True)
        file = self.write_config(config_toml)
        arguments = ["train", str(file), "--runs", str(runs), "--detach", "--json"]
        return self._begin(Launch(name, file, EngineCall(self.python, arguments, workspace, self), self))

    def race(self, name: str, config_toml: str, *, runs: Path, workspace: Path) -> Launch:
        """Begin a race of what fits; it arrives once it is planned.

        Raises:
            OSError: as `launch`.
        """
        workspace.mkdir(parents=True, exist_ok=True)
        file = self.write_config(config_toml)
        arguments = ["race", str(file), "--runs", str(runs), "--detach", "--json"]
        doing = "The planner finds out which strategies fit"
        return self._begin(
            Launch(name, file, EngineCall(self.python, arguments, workspace, self), self, doing)
        )

    def write_config(self, config_toml: str) -> Path:
        """A file for a command that reads a configuration; who asks for it removes it.

        Raises:
            OSError: it cannot be written.
        """
        self._launch_folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        file = self._launch_folder / f"{os.getpid()}-{self._count}.toml"
        file.write_text(config_toml, encoding="utf-8")
        return file

    def run_script(self, name: str, arguments: Sequence[str], *, workspace: Path) -> Launch:
        """Begin a run of a person's own script in the workspace: `rankdeck run` with these arguments.

        Raises:
            OSError: the workspace is not there and cannot be made.
        """
        workspace.mkdir(parents=True, exist_ok=True)
        return self._begin(Launch(name, None, EngineCall(self.python, arguments, workspace, self), self))

    def resume(self, name: str, run: Path, *, workspace: Path) -> Launch:
        """Begin the next attempt of a run that is over; of a script, the same again as a new run."""
        arguments = ["resume", str(run), "--detach", "--json"]
        return self._begin(Launch(name, None, EngineCall(self.python, arguments, workspace, self), self))

    def _begin(self, launch: Launch) -> Launch:
        self._launches.append(launch)
        launch.call.answered.connect(lambda *_: self._forget(launch))
        launch.call.start()
        return launch

    def checkpoint(self, run: Path) -> EngineCall:
        """Save a running run now; the answer comes when it is saved."""
        return self.ask(["checkpoint", str(run)])

    def stop(self, run: Path, *, now: bool = False) -> EngineCall:
        """Ask a run to end: in order, or at once with `now`."""
        return self.ask(["stop", str(run), *(["--now"] if now else [])])

    def ask(self, arguments: Sequence[str], folder: Path | None = None) -> EngineCall:
        """Any other command; the answer comes through `EngineCall.answered`."""
        call = EngineCall(self.python, arguments, folder or Path.cwd(), self)
        self._calls.append(call)
        call.answered.connect(lambda *_: self._calls.remove(call))
        call.answered.connect(call.deleteLater)
        call.start()
        return call

    def follow(self, arguments: Sequence[str]) -> Stream:
        """A command that goes on until its reader closes it; whoever asks owns it."""
        stream = Stream(self.python, arguments, Path.cwd(), self)
        stream.start()
        return stream

    def close(self) -> None:
        """Let launches that have begun reach their guard, and end the rest."""
        for launch in list(self._launches):
            launch.call.wait(CLOSING_WAIT_MS)
        for call in list(self._calls):
            call.end()
        self._calls.clear()

    def _forget(self, launch: Launch) -> None:
        if launch in self._launches:
            self._launches.remove(launch)
