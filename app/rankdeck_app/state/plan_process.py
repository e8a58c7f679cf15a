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
from rankdeck_app.state.engine_process import Engine, Stream, parse_problems
from rankdeck_app.state.trust import Trust
from rankdeck_app.state.workspace import Workspace

# The planner gives up on a strategy by itself; a silence so much longer is a planner that hangs.
_BEYOND_S = 60.0
SILENCE_MS = int((PLAN_TIMEOUT_S + _BEYOND_S) * 1000)
_VERIFYING_MS = 1_800_000
"""Two steps over whole batches may take long, and can be cancelled."""
_GRACE_MS = 10_000
_NICENESS = 10


class PlanProcess(Stream):
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
        disk: IoThread,
        prepare: Callable[[], object] = lambda: None,
        over: Callable[[], object] = lambda: None,
        silence_ms: int = SILENCE_MS,
        has_ranks: bool = False,
    ) -> None:
        """A command of the engine that plans; `over` is called when its process is gone. One that `has_ranks`
        is asked to end them and to remove what they wrote."""
        super().__init__(python, arguments, folder, parent, disk=disk, prepare=prepare)
        self._over = over
        self._has_ranks = has_ranks
        if sys.platform != "win32":
            session = QProcess.UnixProcessParameters()
            session.flags = QProcess.UnixProcessFlag.CreateNewSession
            self.process.setUnixProcessParameters(session)
        self.process.started.connect(self._started)
        self.lines.connect(self._take)
        self.answered.connect(self._answered)
        self._patience = QTimer(self, interval=silence_ms, singleShot=True)
        self._patience.timeout.connect(self._give_up)
        self._leader = 0
        self._is_over = False
        self._unknown = ""

    def start(self) -> None:
        self._patience.start()
        super().start()

    def end(self, *, now: bool = False) -> None:
        """Stop it, with its children; no more lines come. `now` leaves no time to clean up."""
        self._is_over = True
        self._patience.stop()
        if self._has_ranks and self._leader and self.is_running and not now:
            self.process.terminate()
            self._patience.start(_GRACE_MS)
        else:
            self._kill()

    def _started(self) -> None:
        self._leader = self.pid
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._leader, _NICENESS)

    def _take(self, lines: list[bytes]) -> None:
        for line in filter(bytes.strip, lines):
            if self._is_over:
                return
            self._patience.start()
            try:
                plan_line = plan_lines.decode(line)
            except msgspec.DecodeError:
                self._unknown += line.decode("utf-8", "replace")
            else:
                self.line_came.emit(plan_line)

    def _answered(self, exit_code: int, _: str, err: str) -> None:
        if exit_code and not self._leader:
            self._close(tr("The planner could not be asked: {error}.", error=err))
        else:
            self._take([self._rest])
            self._close("" if exit_code == 0 else self._reason(exit_code, err))

    def _reason(self, exit_code: int, err: str) -> str:
        """The engine's own words where it had any."""
        problems = parse_problems(self._unknown) or parse_problems(err)
        if problems:
            return problems[0].sentence
        how = (
            tr("exit code {code}", code=exit_code) if exit_code > 0 else tr("signal {code}", code=-exit_code)
        )
        last = [line.strip() for line in err.splitlines() if line.strip()]
        if not last:
            return tr("The planner ended with {how}.", how=how)
        return tr("The planner ended with {how}: {last}", how=how, last=last[-1][:200])

    def _give_up(self) -> None:
        self._kill()
        seconds = self._patience.interval() // 1000
        self._close(tr("The planner has said nothing for {seconds} s.", seconds=seconds))

    def _kill(self) -> None:
        if not self.is_running:
            self._clear()
        elif self._leader and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._leader, signal.SIGKILL)
        else:
            self.kill()

    def _close(self, reason: str) -> None:
        self._patience.stop()
        if not self._is_over:
            self._is_over = True
            self.ended.emit(reason)
        if not self.is_running:
            self._clear()

    def _clear(self) -> None:
        self._over()
        self.deleteLater()


class Asker(QObject):
    """Asks the planner one question at a time: `_process`, or None."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: PlanProcess | None = None

    def _drop_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _end_processes(self) -> None:
        """Whoever asks goes: nothing that was asked goes on after this."""
        self._drop_process()
        for process in self.findChildren(PlanProcess):
            if not process.wait(2000):
                process.end(now=True)
                process.wait(2000)


@dataclass(frozen=True)
class Planner:
    """Who asks: with which Python, where, whether by itself, and how long a strategy may take."""

    engine: Engine
    trust: Trust
    workspace: Workspace
    is_automatic: Callable[[], bool]
    timeout_s: Callable[[], float] = lambda: PLAN_TIMEOUT_S

    def look_at_trust(
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
                return bool(self.trust.untrusted_of(run, config))
            return bool(self.trust.untrusted(config.code_folders()))

        self.engine.disk.do(needs_trust, then, key=key)

    def ask(
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
        return self._of_config(config, strategy, devices, parent, more)

    def verify(self, config: RunConfig, devices: str | None, parent: QObject) -> PlanProcess:
        """As `ask` for all strategies, where each answer says whether it computes what one device does."""
        return self._of_config(config, "all", devices, parent, ["--verify"], has_ranks=True)

    def _of_config(
        self,
        config: RunConfig,
        strategy: str,
        devices: str | None,
        parent: QObject,
        more: Sequence[str],
        *,
        has_ranks: bool = False,
    ) -> PlanProcess:
        file = self.engine.config_file()
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
            disk=self.engine.disk,
            prepare=partial(write_private, file, config.to_toml()),
            over=partial(self.engine.remove, file),
            silence_ms=_VERIFYING_MS if has_ranks else int((timeout_s + _BEYOND_S) * 1000),
            has_ranks=has_ranks,
        )

    def fixes(self, run: Path, parent: QObject) -> PlanProcess:
        """What would need less than a run that ran out of memory; the engine keeps it in its directory. As
        `predict`, for a run whose code is trusted: see look_at_trust."""
        return self._of_run(["why", str(run), "--trust", "--json"], parent)

    def predict(self, run: Path, parent: QObject) -> PlanProcess:
        """A run's own prediction, which the engine keeps in its directory; no line comes."""
        return self._of_run(["show", str(run), "--plan", "--trust", "--json"], parent)

    def _of_run(self, arguments: Sequence[str], parent: QObject) -> PlanProcess:
        disk = self.engine.disk
        return PlanProcess(self.engine.python, arguments, self.workspace.folder, parent, disk=disk)
