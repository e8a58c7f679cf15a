"""Questions to the planner: `rankdeck plan FILE --json`, each a process whose lines arrive as they are known.

Planning costs seconds of a core, so it goes on at low priority beside whatever trains. The planner answers
each strategy in a child of its own: the process leads a session, and its end takes the children along.
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

# The planner gives up on a strategy by itself; a silence so much longer is a planner that hangs.
_EXTRA_TIMEOUT_S = 60.0
SILENCE_TIMEOUT_MS = int((PLAN_TIMEOUT_S + _EXTRA_TIMEOUT_S) * 1000)
_VERIFY_TIMEOUT_MS = 1_800_000
"""Two steps over whole batches may take long, and can be cancelled."""
_TERMINATE_TIMEOUT_MS = 10_000
_NICENESS = 10


class PlanProcess(EngineStream):
    """`line_received` brings a PlanLine, in the order of arrival; `ended` comes once, after the last of them,
    with "" or with why there are no more.
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
        """A command of the engine that plans; `cleanup` is called when its process is gone. One that
        `has_ranks` is asked to end them and to remove what they wrote."""
        super().__init__(python, arguments, folder, parent, io_thread=io_thread, prepare=prepare)
        self._cleanup = cleanup
        self._has_ranks = has_ranks
        if sys.platform != "win32":
            session = QProcess.UnixProcessParameters()
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
        """Stop it, with its children; no more lines come. `now` leaves no time to clean up."""
        self._is_over = True
        self._silence_timer.stop()
        if self._has_ranks and self._session_pid and self.is_running and not now:
            self.process.terminate()
            self._silence_timer.start(_TERMINATE_TIMEOUT_MS)
        else:
            self._kill_session()

    def _on_started(self) -> None:
        self._session_pid = self.pid
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._session_pid, _NICENESS)

    def _on_lines(self, lines: list[bytes]) -> None:
        for line in filter(bytes.strip, lines):
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
            self._finish(tr("The planner could not be asked: {error}.", error=err))
        else:
            self._on_lines([self._partial_line])
            self._finish("" if exit_code == 0 else self._failure_text(exit_code, err))

    def _failure_text(self, exit_code: int, err: str) -> str:
        """The engine's own words where it had any."""
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
        self._finish(tr("The planner has said nothing for {seconds} s.", seconds=seconds))

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
    """Asks the planner one question at a time: `_process`, or None."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: PlanProcess | None = None

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.abort()
            self._process = None

    def _abort_processes(self) -> None:
        """Whoever asks goes: nothing that was asked goes on after this."""
        self._stop_process()
        for process in self.findChildren(PlanProcess):
            if not process.wait(2000):
                process.abort(now=True)
                process.wait(2000)


@dataclass(frozen=True)
class Planner:
    """Who asks: with which Python, where, whether by itself, and how long a strategy may take."""

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
        """Call `then` with whether planning would run code of a folder that is not trusted, which the disk
        knows; not for a question that still waits when another of the same `key` comes. `run` is the one that
        the configuration is of, if any."""

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
        """A question, not started yet. `devices` None means the configuration's own; with `movement` the
        answer has what moves in a step."""
        more = ["--movement"] if movement else []
        return self._config_process(config, strategy, devices, parent, more)

    def verify(self, config: RunConfig, devices: str | None, parent: QObject) -> PlanProcess:
        """As `plan` for all strategies, where each answer says whether it computes what one device does."""
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
        """What would need less than a run that ran out of memory; the engine keeps it in its directory. As
        `predict`, for a run whose code is trusted: see look_at_trust."""
        return self._run_process(["why", str(run), "--trust", "--json"], parent)

    def predict(self, run: Path, parent: QObject) -> PlanProcess:
        """A run's own prediction, which the engine keeps in its directory; no line comes."""
        return self._run_process(["show", str(run), "--plan", "--trust", "--json"], parent)

    def _run_process(self, arguments: Sequence[str], parent: QObject) -> PlanProcess:
        disk = self.engine.io_thread
        return PlanProcess(self.engine.python, arguments, self.workspace.folder, parent, io_thread=disk)
