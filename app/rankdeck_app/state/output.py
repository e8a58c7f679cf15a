"""Lines of output: the ranks' logs, and steps and other events as text, limited to the newest lines.

A thread reads `logs/*.out`, `*.err` and the event files from near their ends, and passes on lists of lines.
The model keeps a bounded number of lines, so a day-long run costs no more memory than a one-minute run. Each
batch of steps that a rank reports becomes one line; steps of a user's script are left out, because the script
prints its own progress. A progress bar that redraws itself becomes one line per second.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.run.summary import TrainingData
from rankdeck.run_dir import Cursor, EventReader, RunDir
from rankdeck_app.language import tr, translate, translate_problem

MAX_LINES = 20_000
TAIL_BYTES = 256 << 10
POLL_INTERVAL_S = 0.1
_MAX_LINE_CHARS = 4_000
_TRIM_LINES = 2_000
_PROGRESS_INTERVAL_S = 1.0
_TONES = {"warning": "warning", "info": "dim"}
_EVENT_LABELS = (
    tr_noop("error"), tr_noop("warning"), tr_noop("info"),
    tr_noop("schedule"), tr_noop("request"), tr_noop("stop"), tr_noop("end"),
)  # fmt: skip
"""Severities of problems and reasons for checkpoints as they appear in events; listed here for translation.
"""
_ANSI_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line of output.

    `t` is a Unix time, or None for a log line that was written before the reader started. `rank` is None if
    the line concerns the whole run.
    """

    t: float | None
    rank: int | None
    text: str
    tone: str = "normal"  # normal | warning | error | dim

    @property
    def source(self) -> str:
        return tr("run") if self.rank is None else tr("rank {rank}", rank=self.rank)

    @property
    def clock(self) -> str:
        if self.t is None:
            return ""
        return time.strftime("%H:%M:%S", time.localtime(self.t)) + f".{int(self.t % 1 * 1000):03d}"

    def to_text(self) -> str:
        """Return the line as text for the clipboard."""
        return f"{self.clock} [{self.source}] {self.text}".strip()


def format_event(event: events.AnyEvent) -> OutputLine | None:
    """Return an event as a line, or None for events that other views show."""
    if isinstance(event, events.Steps):
        return _step_line(event)
    if isinstance(event, events.Evaluation):
        return OutputLine(event.t, None, _evaluation_text(event))
    if isinstance(event, events.CheckpointSaved):
        return OutputLine(event.t, None, _checkpoint_text(event))
    if isinstance(event, events.ProblemRaised):
        problem = translate_problem(event.problem)
        text = tr("{severity}: {problem}", severity=tr(problem.severity), problem=problem.sentence)
        return OutputLine(event.t, problem.rank, text, _TONES.get(problem.severity, "error"))
    if isinstance(event, events.Phase):
        left_out = translate(TrainingData(event.samples, event.left_out).text())
        text = ", ".join(filter(None, (tr(event.phase), left_out)))
        return OutputLine(event.t, event.rank, text, "dim")
    if isinstance(event, events.RankStarted):
        return OutputLine(event.t, event.rank, tr(event.phase), "dim")
    if isinstance(event, events.RunStarted):
        return OutputLine(event.t, None, _run_started_text(event), "dim")
    if isinstance(event, events.RankEnded):
        text = tr("{reason} at step {step}", reason=tr(event.reason), step=event.step)
        return OutputLine(event.t, event.rank, text, "dim")
    if isinstance(event, events.Stopping):
        return OutputLine(event.t, None, tr("stopping"), "dim")
    if isinstance(event, events.RunEnded):
        tone = "error" if event.outcome == "failed" else "dim"
        code = event.exit_code if event.script_status is None else event.script_status
        text = tr("{outcome}, exit code {code}", outcome=tr(event.outcome), code=code)
        return OutputLine(event.t, None, text, tone)
    return None


def _evaluation_text(event: events.Evaluation) -> str:
    loss = "?" if event.loss is None else f"{event.loss:.4f}"
    if event.accuracy is None:
        return tr("evaluation at step {step}: held-out loss {loss}", step=event.step, loss=loss)
    return tr(
        "evaluation at step {step}: held-out loss {loss}, accuracy {accuracy:.2%}",
        step=event.step,
        loss=loss,
        accuracy=event.accuracy,
    )


def _checkpoint_text(event: events.CheckpointSaved) -> str:
    return tr(
        "checkpoint at step {step} ({reason}): {size} in {seconds:.1f} s",
        step=event.step,
        reason=tr(event.reason),
        size=format_bytes(event.num_bytes),
        seconds=event.seconds,
    )


def _run_started_text(event: events.RunStarted) -> str:
    """Return the attempt, strategy and number of steps as text; for a script, the attempt and the number of
    ranks."""
    if event.source == events.SCRIPT:
        return tr(
            "attempt {attempt}: script on {n} ranks",
            "attempt {attempt}: script on {n} rank",
            event.world_size,
            attempt=event.attempt,
        )
    return tr(
        "attempt {attempt}: {strategy}, {steps} steps",
        attempt=event.attempt,
        strategy=event.strategy,
        steps=event.steps,
    )


def _step_line(event: events.Steps) -> OutputLine | None:
    """Return an output line for the last step that the event reports; None if it reports no step."""
    num = max(len(event.ended), len(event.samples), len(event.step_s))
    if num == 0:
        return None
    texts = [tr("step {step}", step=event.first + num - 1)]
    total = event.loss_sum[-1] if event.loss_sum else None
    if total is not None and event.count and event.count[-1]:
        texts.append(tr("loss {loss:.4f}", loss=total / event.count[-1]))
    if event.lr and (rate := event.lr[-1]) is not None:
        texts.append(tr("lr {rate:.1e}", rate=rate))
    samples = event.samples[-1] if event.samples else None
    if samples is not None and event.step_s and event.step_s[-1] > 0:
        texts.append(tr("{rate:.0f} samples/s", rate=samples / event.step_s[-1]))
    return OutputLine(event.ended[-1] if event.ended else event.t, event.rank, " ".join(texts))


class OutputTail(threading.Thread):
    """Thread that follows a run until `stop` is called.

    Another thread can pop lines from `lines`; beyond the model's limit, the oldest lines are dropped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(name=f"output {path.name}", daemon=True)
        self.lines: deque[OutputLine] = deque(maxlen=MAX_LINES)
        self._run = RunDir(path)
        self._reader = EventReader(self._run)
        self._offsets: dict[Path, int] = {}
        self._partial_lines: dict[Path, bytes] = {}
        self._last_progress: dict[Path, tuple[float, str]] = {}
        self._is_script = False
        self._stop_event = threading.Event()

    def stop(self) -> None:
        self._stop_event.set()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        first = True
        try:
            self._is_script = self._run.script() is not None
        except ConfigError:
            pass  # treated as a configured run
        while not self._stop_event.is_set():
            lines = [*self._new_log_lines(first), *self._new_event_lines()]
            lines.sort(key=lambda line: line.t or 0.0)
            first = False
            self.lines.extend(lines)
            self._stop_event.wait(POLL_INTERVAL_S)

    def _new_event_lines(self) -> Iterator[OutputLine]:
        for path in self._files(self._run.events_folder, ".jsonl"):
            if path.name not in self._reader.cursors and not path.name.startswith("sampler"):
                # The model keeps only the newest lines, so reading a long run from its start would be wasted
                # work.
                self._reader.cursors[path.name] = Cursor(offset=_tail_offset(path))
        for _, event in self._reader.read(4 << 20):
            is_step = isinstance(event, events.Steps)
            line = None if is_step and self._is_script else format_event(event)
            if line is not None:
                yield line

    def _new_log_lines(self, first: bool) -> Iterator[OutputLine]:
        for path in self._files(self._run.logs_folder, ".out", ".err"):
            if path not in self._offsets:
                self._offsets[path] = _tail_offset(path)
            yield from self._log_lines(path, first)

    def _log_lines(self, path: Path, first: bool) -> Iterator[OutputLine]:
        try:
            data = files.read_at(path, self._offsets[path], 4 << 20)
            written = path.stat().st_mtime
        except OSError:
            return
        self._offsets[path] += len(data)
        *lines, self._partial_lines[path] = (self._partial_lines.get(path, b"") + data).split(b"\n")
        writer = path.name.split(".")[0]
        rank = int(writer[5:]) if writer.startswith("rank-") and writer[5:].isdecimal() else None
        # Log lines have no time of their own: use the file's last change, and later the time of reading.
        t = written if first else time.time()
        texts = [_visible_text(raw) for raw in lines]
        told_s, last_bar = self._last_progress.get(path, (0.0, ""))
        if texts and texts[0] == last_bar:
            texts = texts[1:]  # a progress bar's final text was shown already
        rest = self._partial_lines[path]
        if b"\r" in rest:
            # A progress bar rewrites its line without ending it. Without this cut the partial line would grow
            # forever.
            self._partial_lines[path] = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
            now_s, bar = time.monotonic(), _visible_text(rest)
            if bar != last_bar and now_s - told_s >= _PROGRESS_INTERVAL_S:
                self._last_progress[path] = now_s, bar
                texts.append(bar)
        for text in texts:
            if text.strip():
                yield OutputLine(t, rank, text, _log_tone(text))

    @staticmethod
    def _files(folder: Path, *suffixes: str) -> list[Path]:
        try:
            return sorted(path for path in folder.iterdir() if path.suffix in suffixes)
        except OSError:
            return []


def _visible_text(raw: bytes) -> str:
    """Return the part of a line that a terminal would still show, without colours or overwritten text."""
    last = raw.rstrip(b"\r").rpartition(b"\r")[2]
    return _ANSI_ESCAPES.sub(b"", last).decode("utf-8", "replace")[:_MAX_LINE_CHARS]


def _log_tone(text: str) -> str:
    start = text.lstrip()[:200]
    if start.startswith("Traceback") or "Error:" in start:
        return "error"
    return "warning" if "Warning" in start else "normal"


def _tail_offset(path: Path) -> int:
    """Return an offset, at most TAIL_BYTES before the end of the file, at which a line starts."""
    try:
        if path.stat().st_size <= TAIL_BYTES:
            return 0
        start, tail = files.read_tail(path, TAIL_BYTES)
        # Without a line break `find` returns -1, which makes this the start of the tail.
        return start + tail.find(b"\n") + 1
    except OSError:
        return 0


class OutputModel(QAbstractListModel):
    """Model of the visible lines, filtered by rank and text. `LineRole` gives the OutputLine."""

    LineRole = int(Qt.ItemDataRole.UserRole)

    def __init__(self, parent: QObject | None = None, max_lines: int = MAX_LINES) -> None:
        super().__init__(parent)
        self._lines: deque[OutputLine] = deque(maxlen=max_lines)
        self._visible_lines: list[OutputLine] = []
        self._max_lines = max_lines
        self._rank: int | None = None
        self._text = ""
        self._end_time: float | None = None
        self.ranks: set[int] = set()

    def rowCount(self, parent: QModelIndex | QPersistentModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._visible_lines)

    def data(
        self, index: QModelIndex | QPersistentModelIndex, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if not index.isValid() or index.row() >= len(self._visible_lines):
            return None
        line = self._visible_lines[index.row()]
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return line.to_text()
        if role == Qt.ItemDataRole.ToolTipRole:
            return line.text if len(line.text) > 120 else None
        return line if role == self.LineRole else None

    @property
    def visible_lines(self) -> list[OutputLine]:
        """The lines that pass the filter."""
        return list(self._visible_lines)

    def append(self, lines: Iterable[OutputLine]) -> None:
        """Append lines; if there are too many, remove the oldest in large blocks."""
        fresh = list(lines)
        self._lines.extend(fresh)
        self.ranks.update(line.rank for line in fresh if line.rank is not None)
        matching = [line for line in fresh if self._matches(line)]
        if not matching:
            return
        at = len(self._visible_lines)
        self.beginInsertRows(QModelIndex(), at, at + len(matching) - 1)
        self._visible_lines += matching
        self.endInsertRows()
        excess = len(self._visible_lines) - self._max_lines
        # Removing from the front shifts the whole list and the view's rows, so it is done rarely.
        if excess > _TRIM_LINES or excess > self._max_lines // 10:
            self.beginRemoveRows(QModelIndex(), 0, excess - 1)
            del self._visible_lines[:excess]
            self.endRemoveRows()

    def set_filter(self, rank: int | None, text: str) -> None:
        """Show only one rank (None: all), and only lines that contain the text."""
        self._rank, self._text = rank, text.lower()
        self._refilter()

    def set_end_time(self, time_s: float | None) -> None:
        """Show output up to a time (Unix seconds); None shows all."""
        if time_s != self._end_time:
            self._end_time = time_s
            self._refilter()

    def _refilter(self) -> None:
        self.beginResetModel()
        self._visible_lines = [line for line in self._lines if self._matches(line)]
        self.endResetModel()

    def clear(self) -> None:
        self.beginResetModel()
        self._lines.clear()
        self._visible_lines.clear()
        self.endResetModel()

    def _matches(self, line: OutputLine) -> bool:
        if self._rank is not None and line.rank != self._rank:
            return False
        if self._end_time is not None and (line.t is None or line.t > self._end_time):
            return False
        return not self._text or self._text in line.text.lower()
