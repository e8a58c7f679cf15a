"""Copy another host's run with `rankdeck copy --follow` for as long as the run is shown; restart the command
if it ends early."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, QTimer

from rankdeck.base.home import copies_dir
from rankdeck.run_dir import RunDir
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.engine_process import Engine, EngineStream, parse_problems

_RETRY_MS = 2000


class _CopyStatus(msgspec.Struct):
    age_s: float


def is_copy(path: Path) -> bool:
    """Check from the path alone whether a run is a copy."""
    return path.is_relative_to(copies_dir())


class RunCopier(QObject):
    """Process that updates the copy of another host's run until `close` is called."""

    def __init__(self, engine: Engine, disk: IoThread, path: Path, parent: QObject) -> None:
        super().__init__(parent)
        self._engine, self._io_thread, self._path = engine, disk, path
        self._stream: EngineStream | None = None
        self._is_closed = self._is_over = False
        self._last_answer_s = time.monotonic()
        self._retry_timer = QTimer(self, singleShot=True)
        self._retry_timer.timeout.connect(self._start)
        self._start()

    @property
    def host(self) -> str:
        """The host's name, which is also the name of the folder with the copies of its runs."""
        return self._path.parents[1].name

    @property
    def pid(self) -> int:
        """The process id of the copying process; 0 if it is not running."""
        return 0 if self._stream is None else self._stream.pid

    @property
    def silence_s(self) -> float:
        """Seconds since the host's last answer; 0 once the run is over."""
        return 0.0 if self._is_over else time.monotonic() - self._last_answer_s

    def update_outcome(self, outcome: str) -> None:
        """Set the run's outcome; if the run is running but is not being copied, restart the copying."""
        if self._is_closed:
            return
        was_over, self._is_over = self._is_over, outcome != "running"
        if self._stream is None and not self._is_over:
            # Otherwise a resumed run would count as silent since its previous end.
            if was_over:
                self._last_answer_s = time.monotonic()
            self._retry_timer.start(0 if was_over else _RETRY_MS)

    def _start(self) -> None:
        self._stream = self._engine.stream(["copy", str(self._path), "--follow", "--json"])
        self._stream.lines_received.connect(self._on_lines)
        self._stream.finished.connect(self._on_ended)

    def _on_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                status = msgspec.json.decode(line, type=_CopyStatus)
            except msgspec.MsgspecError:
                problems = parse_problems(line.decode(errors="replace"))
                if problems and problems[0].code == "copied-already":  # another window copies it
                    self._last_answer_s = time.monotonic()
                continue
            self._last_answer_s = time.monotonic() - status.age_s

    def _on_ended(self, *_: object) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.deleteLater()
        self._io_thread.submit(RunDir(self._path).outcome, self.update_outcome)

    def close(self) -> None:
        self._is_closed = True
        self._retry_timer.stop()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()
            stream.deleteLater()
