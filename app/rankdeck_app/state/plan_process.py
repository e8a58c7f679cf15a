"""Questions to the planner: `rankdeck plan FILE --json`, each a process whose lines arrive as they are known.

Planning costs seconds of a core, so it goes on at low priority beside whatever trains. The planner answers
each strategy in a child of its own: the process leads a session, and its end takes the children along.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from rankdeck.config import RunConfig
from rankdeck.run import plan_lines
from rankdeck_app.state.engine_process import Engine, engine_command, parse_problems
from rankdeck_app.state.trust import Trust
from rankdeck_app.state.workspace import Workspace

# The planner gives up on a strategy after three minutes; a silence beyond that is a planner that hangs.
SILENCE_MS = 240_000
_NICENESS = 10


class PlanProcess(QObject):
    """`line_came` brings a PlanLine, in the order of arrival; `ended` comes once, after the last of them,
    with "" or with why there are no more.
    """

    line_came = Signal(object)
    ended = Signal(str)

    def __init__(
        self,
        python: str,
        arguments: Sequence[str],
        folder: Path,
        parent: QObject,
        *,
        config_file: Path | None = None,
        silence_ms: int = SILENCE_MS,
    ) -> None:
        """A command of the engine that plans; the configuration's file is removed when it is over."""
        super().__init__(parent)
        self._file = config_file
        self._process = engine_command(python, arguments, folder, self)
        if sys.platform != "win32":
            session = QProcess.UnixProcessParameters()
            session.flags = QProcess.UnixProcessFlag.CreateNewSession
            self._process.setUnixProcessParameters(session)
        self._process.started.connect(self._started)
        self._process.readyReadStandardOutput.connect(self._read)
        self._process.finished.connect(self._finished)
        self._process.errorOccurred.connect(self._failed)
        self._patience = QTimer(self, interval=silence_ms, singleShot=True)
        self._patience.timeout.connect(self._give_up)
        self._pid = 0
        self._is_over = False
        self._said = ""
        self._unknown: list[str] = []

    def start(self) -> None:
        self._patience.start()
        self._process.start()

    def end(self) -> None:
        """Stop it now, with its children; no more lines come."""
        self._is_over = True
        self._patience.stop()
        self._kill()

    def wait(self, timeout_ms: int = 2000) -> None:
        """Until an ended process is gone, for a window that closes."""
        if self._process.state() != QProcess.ProcessState.NotRunning:
            self._process.waitForFinished(timeout_ms)

    def _started(self) -> None:
        self._pid = self._process.processId()
        if sys.platform == "win32":
            return
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._pid, _NICENESS)

    def _read(self) -> None:
        while not self._is_over and self._process.canReadLine():
            self._take(bytes(self._process.readLine().data()))

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        self._patience.start()
        try:
            plan_line = plan_lines.decode(line)
        except msgspec.DecodeError:
            self._unknown.append(line.decode("utf-8", "replace"))
        else:
            self.line_came.emit(plan_line)

    def _finished(self, exit_code: int, status: QProcess.ExitStatus) -> None:
        self._read()
        if not self._is_over:
            self._take(bytes(self._process.readAllStandardOutput().data()))
        is_whole = exit_code == 0 and status == QProcess.ExitStatus.NormalExit
        self._close("" if is_whole else self._reason(exit_code, status))

    def _reason(self, exit_code: int, status: QProcess.ExitStatus) -> str:
        """The engine's own words where it had any."""
        errors = bytes(self._process.readAllStandardError().data()).decode("utf-8", "replace")
        problems = parse_problems("".join(self._unknown)) or parse_problems(errors)
        if problems:
            return " ".join(filter(None, (problems[0].message, problems[0].advice)))
        how = f"{'signal' if status == QProcess.ExitStatus.CrashExit else 'exit code'} {exit_code}"
        last = [line.strip() for line in errors.splitlines() if line.strip()]
        return f"The planner ended with {how}{f': {last[-1][:200]}' if last else '.'}"

    def _failed(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart:
            self._close(f"{self._process.program()}: {self._process.errorString()}.")

    def _give_up(self) -> None:
        self._kill()
        self._close(f"The planner has said nothing for {self._patience.interval() // 1000} s.")

    def _kill(self) -> None:
        if self._process.state() == QProcess.ProcessState.NotRunning:
            self._clear()
        elif self._pid and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        else:
            self._process.kill()

    def _close(self, reason: str) -> None:
        self._patience.stop()
        if not self._is_over:
            self._is_over = True
            self.ended.emit(reason)
        if self._process.state() == QProcess.ProcessState.NotRunning:
            self._clear()

    def _clear(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self.deleteLater()


@dataclass(frozen=True)
class Planner:
    """Who asks: with which Python, where, and whether by itself."""

    engine: Engine
    trust: Trust
    workspace: Workspace
    is_automatic: Callable[[], bool]

    def needs_trust(self, config: RunConfig) -> bool:
        """Whether planning would run code of a folder that is not trusted."""
        return bool(self.trust.untrusted(config.code_folders()))

    def ask(self, config: RunConfig, strategy: str, devices: str | None, parent: QObject) -> PlanProcess:
        """A question, not started yet. `devices` None means the configuration's own.

        Raises:
            OSError: the configuration cannot be written to a file.
        """
        file = self.engine.write_config(config.to_toml())
        arguments = ["plan", str(file), "--json", "--strategy", strategy]
        if devices is not None:
            arguments += ["--devices", devices]
        return PlanProcess(self.engine.python, arguments, self.workspace.folder, parent, config_file=file)

    def predict(self, run: Path, parent: QObject) -> PlanProcess:
        """A run's own prediction, which the engine keeps in its directory; no line comes."""
        arguments = ["show", str(run), "--plan", "--json"]
        return PlanProcess(self.engine.python, arguments, self.workspace.folder, parent)
