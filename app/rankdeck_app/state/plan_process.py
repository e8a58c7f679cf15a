"""Requests to the planner: `rankdeck plan FILE --json`, each in its own process, which prints each plan line
as soon as it is ready.

Planning keeps a core busy for seconds, so it runs at low priority next to training. The planner plans each
strategy in a child process. The planner's process leads a session of its own, so that its children can be
killed together with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from rankdeck.base.files import write_private
from rankdeck.config import RunConfig
from rankdeck.run import plan_lines
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr
from rankdeck_app.settings import PLAN_TIMEOUT_S
from rankdeck_app.state.engine_process import Engine, EngineStream, parse_problems
from rankdeck_app.state.trust import Trust
from rankdeck_app.state.workspace import Workspace

# The planner itself has a time limit per strategy: if it is silent for this much longer, it hangs.
_EXTRA_TIMEOUT_S = 60.0
SILENCE_TIMEOUT_MS = int((PLAN_TIMEOUT_S + _EXTRA_TIMEOUT_S) * 1000)
_VERIFY_TIMEOUT_MS = 1_800_000
"""Long timeout, because a verification trains for two steps on whole batches; the user can cancel it."""
_TERMINATE_TIMEOUT_MS = 10_000
_NICENESS = 10


class PlanProcess(EngineStream):
    """Planner process.

    `line_received` carries each PlanLine as it arrives. `ended` is emitted once, after the last line, with ""
    or the reason why no more lines follow.
    """

    line_received = Signal(object)
    ended = Signal(str)

    def __init__(
        self,
        python: str,
        arguments: Sequence[str],
        folder: Path,
        parent: QObject,
        *,
        io_thread: IoThread,
        prepare: Callable[[], object] = lambda: None,
        cleanup: Callable[[], object] = lambda: None,
        silence_timeout_ms: int = SILENCE_TIMEOUT_MS,
        has_ranks: bool = False,
    ) -> None:
        """Create a planning command; `cleanup` is called once its process has ended.

        If `has_ranks` is True, the command is terminated, not killed, so that it can end its ranks and remove
        their files.
        """
        super().__init__(python, arguments, folder, parent, io_thread=io_thread, prepare=prepare)
        self._cleanup = cleanup
        self._has_ranks = has_ranks
        if sys.platform != "win32":
            session = QProcess.UnixProcessParameters()
            # A session of its own, so that one killpg ends the planner and its children.
            session.flags = QProcess.UnixProcessFlag.CreateNewSession
            self.process.setUnixProcessParameters(session)
        self.process.started.connect(self._on_started)
        self.lines_received.connect(self._on_lines)
        self.finished.connect(self._on_finished)
        self._silence_timer = QTimer(self, interval=silence_timeout_ms, singleShot=True)
        self._silence_timer.timeout.connect(self._on_silence)
        self._session_pid = 0
        self._is_over = False
        self._unparsed = ""

    def start(self) -> None:
        self._silence_timer.start()
        super().start()

    def abort(self, *, now: bool = False) -> None:
        """Stop the process and its children; no more lines follow. If `now` is True, the process gets no time
        to clean up."""
        self._is_over = True
        self._silence_timer.stop()
        # SIGTERM lets the command end its ranks; if it does not, the timer kills the session.
        if self._has_ranks and self._session_pid and self.is_running and not now:
            self.process.terminate()
            self._silence_timer.start(_TERMINATE_TIMEOUT_MS)
        else:
            self._kill_session()

    def _on_started(self) -> None:
        self._session_pid = self.pid
        if sys.platform != "win32":
            # The process may have ended already.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._session_pid, _NICENESS)

    def _on_lines(self, lines: list[bytes]) -> None:
        for line in filter(bytes.strip, lines):
            # The receiver of the previous line may have aborted the process.
            if self._is_over:
                return
            self._silence_timer.start()
            try:
                plan_line = plan_lines.decode(line)
            except msgspec.DecodeError:
                self._unparsed += line.decode("utf-8", "replace")
            else:
                self.line_received.emit(plan_line)

    def _on_finished(self, exit_code: int, _: str, err: str) -> None:
        if exit_code and not self._session_pid:
            self._finish(tr("The planner could not be started: {error}.", error=err))
        else:
            self._on_lines([self._partial_line])
            self._finish("" if exit_code == 0 else self._failure_text(exit_code, err))

    def _failure_text(self, exit_code: int, err: str) -> str:
        """Return why the process failed; if the engine printed a problem, return that problem's text."""
        problems = parse_problems(self._unparsed) or parse_problems(err)
        if problems:
            return problems[0].sentence
        how = (
            tr("exit code {code}", code=exit_code) if exit_code > 0 else tr("signal {code}", code=-exit_code)
        )
        last = [line.strip() for line in err.splitlines() if line.strip()]
        if not last:
            return tr("The planner ended with {how}.", how=how)
        return tr("The planner ended with {how}: {last}", how=how, last=last[-1][:200])

    def _on_silence(self) -> None:
        self._kill_session()
        seconds = self._silence_timer.interval() // 1000
        self._finish(
            tr("The planner was stopped because it sent no output for {seconds} s.", seconds=seconds)
        )

    def _kill_session(self) -> None:
        if not self.is_running:
            self._release()
        elif self._session_pid and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._session_pid, signal.SIGKILL)
        else:
            self.kill()

    def _finish(self, reason: str) -> None:
        self._silence_timer.stop()
        if not self._is_over:
            self._is_over = True
            self.ended.emit(reason)
        if not self.is_running:
            self._release()

    def _release(self) -> None:
        self._cleanup()
        self.deleteLater()


class PlannerClient(QObject):
    """Base class of objects that have at most one planner request (`_process`) at a time."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: PlanProcess | None = None

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.abort()
            self._process = None

    def _abort_processes(self) -> None:
        """Stop the request, if any, and wait for all processes of this object to end; called by `close`."""
        self._stop_process()
        for process in self.findChildren(PlanProcess):
            # A closing window does not wait as long as `abort` does for a command that has ranks.
            if not process.wait(2000):
                process.abort(now=True)
                process.wait(2000)


@dataclass(frozen=True)
class Planner:
    """Factory of planner processes. `is_automatic` returns whether planning is automatic, and `timeout_s` the
    time limit for planning one strategy."""

    engine: Engine
    trust: Trust
    workspace: Workspace
    is_automatic: Callable[[], bool]
    timeout_s: Callable[[], float] = lambda: PLAN_TIMEOUT_S

    def check_trust(
        self,
        config: RunConfig,
        then: Callable[[bool], object],
        key: Hashable | None = None,
        *,
        run: Path | None = None,
    ) -> None:
        """Call `then` with True if planning would execute code in an untrusted folder, otherwise with False.

        The io thread checks the folders. A new check replaces a pending one with the same `key`. `run` is the
        run that the configuration belongs to, if any.
        """

        def needs_trust() -> bool:
            if run is not None:
                return bool(self.trust.untrusted_folders_of_run(run, config))
            return bool(self.trust.untrusted_folders(config.code_folders()))

        self.engine.io_thread.submit(needs_trust, then, key=key)

    def plan(
        self,
        config: RunConfig,
        strategy: str,
        devices: str | None,
        parent: QObject,
        *,
        movement: bool = False,
    ) -> PlanProcess:
        """Return a planning process that has not been started yet.

        If `devices` is None, the configuration's own devices are used. If `movement` is True, the answer
        includes the data moved in a step.
        """
        more = ["--movement"] if movement else []
        return self._config_process(config, strategy, devices, parent, more)

    def verify(self, config: RunConfig, devices: str | None, parent: QObject) -> PlanProcess:
        """Return a process that plans all strategies and verifies each against training on one device."""
        return self._config_process(config, "all", devices, parent, ["--verify"], has_ranks=True)

    def _config_process(
        self,
        config: RunConfig,
        strategy: str,
        devices: str | None,
        parent: QObject,
        more: Sequence[str],
        *,
        has_ranks: bool = False,
    ) -> PlanProcess:
        file = self.engine.new_config_path()
        arguments = ["plan", str(file), "--json", "--strategy", strategy, *more]
        if devices is not None:
            arguments += ["--devices", devices]
        timeout_s = self.timeout_s()
        if timeout_s != PLAN_TIMEOUT_S:
            arguments += ["--timeout", f"{timeout_s:g}"]
        return PlanProcess(
            self.engine.python,
            arguments,
            self.workspace.folder,
            parent,
            io_thread=self.engine.io_thread,
            prepare=partial(write_private, file, config.to_toml()),
            cleanup=partial(self.engine.remove_file, file),
            silence_timeout_ms=_VERIFY_TIMEOUT_MS
            if has_ranks
            else int((timeout_s + _EXTRA_TIMEOUT_S) * 1000),
            has_ranks=has_ranks,
        )

    def plan_fixes(self, run: Path, parent: QObject) -> PlanProcess:
        """Return a process that plans fixes for a run that ran out of memory.

        The engine saves the fixes in the run directory. The run's code must be trusted, as for `predict`: see
        `check_trust`.
        """
        return self._run_process(["why", str(run), "--trust", "--json"], parent)

    def predict(self, run: Path, parent: QObject) -> PlanProcess:
        """Return a process that makes the planner's prediction for a run.

        The engine saves the prediction in the run directory; the process emits no line.
        """
        return self._run_process(["show", str(run), "--plan", "--trust", "--json"], parent)

    def _run_process(self, arguments: Sequence[str], parent: QObject) -> PlanProcess:
        disk = self.engine.io_thread
        return PlanProcess(self.engine.python, arguments, self.workspace.folder, parent, io_thread=disk)
