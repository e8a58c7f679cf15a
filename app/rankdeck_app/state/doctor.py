"""What the doctor says of this machine: `rankdeck doctor --json`, whose lines are taken as they come.

One look at a time. What it told stays until the next look tells it anew, so that a page does not empty itself
while somebody reads. Lines that are none are passed over; a look that ends early says why.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from msgspec import structs
from PySide6.QtCore import QObject, QProcess, Signal

from rankdeck.doctor.lines import (
    VERDICT_TEXTS,
    AnnouncedRow,
    AnyDoctorLine,
    CheckLine,
    ChecksLine,
    DoneLine,
    Verdict,
    decode,
)
from rankdeck_app.language import tr, translate
from rankdeck_app.state.engine_process import Engine, EngineStream, parse_problems
from rankdeck_app.state.workspace import Workspace

MAX_OUTPUT_BYTES = 4 << 20
"""Of a look's lines: two hundred times what an ill machine makes it say."""
_MAX_ROWS, _MAX_TEXT_LENGTH, _MAX_EVIDENCE = 100, 1000, 30
_MAX_UNPARSED_LENGTH = 1 << 14
SEVERITY_ORDER = (Verdict.FAILED, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED)


@dataclass(frozen=True)
class CheckTexts:
    """A row in the window's words."""

    verdict: Verdict
    finding: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    command: str = ""


def translate_check(line: CheckLine) -> CheckTexts:
    """`command` is what it is in every language."""
    return CheckTexts(
        line.verdict,
        translate(line.finding, line.phrases),
        tuple(translate(one, line.phrases) for one in line.evidence),
        translate(line.fix, line.phrases) if line.fix else "",
        line.command or "",
    )


class _DoctorProcess(EngineStream):
    """`overflowed`: it has said more than is read."""

    overflowed = Signal()
    _num_bytes = 0

    def _read_lines(self) -> None:
        self._num_bytes += self.process.bytesAvailable()
        if self._num_bytes > MAX_OUTPUT_BYTES:
            self.overflowed.emit()
        else:
            super()._read_lines()


class Doctor(QObject):
    """`changed`: there is more to show. `rows` are those of the newest look in its order; `lines` what it has
    told of them by now, `previous_lines` what the look before had.
    """

    changed = Signal()

    def __init__(self, engine: Engine, workspace: Workspace, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: list[AnnouncedRow] = []
        self.lines: dict[str, CheckLine] = {}
        self.previous_lines: dict[str, CheckLine] = {}
        self.done: DoneLine | None = None
        self.problem = ""
        """Why the newest look ended early, in the window's words."""
        self.python, self.started_at = "", 0.0
        """Who looked, and when (Unix time)."""
        self._engine, self._workspace = engine, workspace
        self._process: _DoctorProcess | None = None
        self._unparsed = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def has_results(self) -> bool:
        """Whether there is anything to show."""
        return self.is_running or self.done is not None or bool(self.rows or self.problem)

    def count(self, verdict: Verdict) -> int:
        return sum(line.verdict is verdict for line in self.lines.values())

    def start(self) -> None:
        """Begin a look, unless one is under way."""
        if self.is_running:
            return
        self.previous_lines, self.lines = {**self.previous_lines, **self.lines}, {}
        self.done, self.problem, self._unparsed = None, "", ""
        engine, workspace = self._engine, self._workspace
        self.python, self.started_at = engine.python, time.time()
        arguments = ["doctor", "--json", "--runs", str(workspace.runs_folder)]
        look = self._process = _DoctorProcess(
            engine.python, arguments, workspace.folder, self, io_thread=engine.io_thread
        )
        look.lines_received.connect(self._on_lines)
        look.finished.connect(self._on_finished)
        look.overflowed.connect(lambda: self.stop(tr("It said more than is read.")))
        look.start()
        self.changed.emit()

    def stop(self, why: str = "") -> None:
        """End the look that is under way: its checks die with it."""
        if self._process is not None:
            self._process.abort()
            self._finish(why or tr("It was stopped."))

    def _on_lines(self, lines: list[bytes]) -> None:
        for text in filter(bytes.strip, lines):
            line = decode(text)
            if line is None:
                self._unparsed = (self._unparsed + text.decode("utf-8", "replace") + "\n")[
                    -_MAX_UNPARSED_LENGTH:
                ]
            else:
                self._add_line(line)
        self.changed.emit()

    def _add_line(self, line: AnyDoctorLine) -> None:
        if isinstance(line, ChecksLine):
            self.rows = line.rows[:_MAX_ROWS]
            names = {row.name for row in self.rows}
            self.previous_lines = {name: told for name, told in self.previous_lines.items() if name in names}
        elif isinstance(line, DoneLine):
            self.done = line
        elif any(row.name == line.name for row in self.rows):
            self.lines[line.name] = _shorten_line(line)

    def _on_finished(self, exit_code: int, _: str, err: str) -> None:
        self._finish("" if self.done is not None else self._failure_text(exit_code, err))

    def _failure_text(self, exit_code: int, err: str) -> str:
        """The engine's own words where it had any."""
        assert self._process is not None
        if self._process.refusal or self._process.process.error() == QProcess.ProcessError.FailedToStart:
            return tr("The doctor could not be started: {error}.", error=err)
        problems = parse_problems(self._unparsed) or parse_problems(err)
        if problems:
            return problems[0].sentence
        how = (
            tr("exit code {code}", code=exit_code) if exit_code >= 0 else tr("signal {code}", code=-exit_code)
        )
        last = [line.strip() for line in err.splitlines() if line.strip()]
        if not last:
            return tr("It ended with {how} before all was looked at.", how=how)
        return tr("It ended with {how}: {last}", how=how, last=last[-1][:200])

    def _finish(self, problem: str) -> None:
        assert self._process is not None
        self._process.deleteLater()
        self._process, self.problem = None, problem
        if self.done is None:
            self.previous_lines = {}  # of a machine that may have been another by now
        self.changed.emit()

    def report(self) -> str:
        """All of it as text, the worst first, for a bug report: in English, as the engine says it."""
        at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self.started_at))
        parts = [f"rankdeck doctor, {at}, {self.python}", *filter(None, [self.problem])]
        told = [self.lines[row.name] for row in self.rows if row.name in self.lines]
        for line in sorted(told, key=lambda line: SEVERITY_ORDER.index(line.verdict)):
            parts.append(f"\n{VERDICT_TEXTS[line.verdict]}: {line.title}: {line.finding}")
            parts += [f"    {one}" for one in (*line.evidence, line.fix, line.command) if one]
        return "\n".join(parts) + "\n"


def _shorten_line(line: CheckLine) -> CheckLine:
    """Texts that a page can show, whatever the machine put into them; what is cut is said in English only."""

    def fitting(text: str) -> str:
        return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"

    return structs.replace(
        line,
        finding=fitting(line.finding),
        evidence=[fitting(one) for one in line.evidence[:_MAX_EVIDENCE]],
        fix=line.fix and fitting(line.fix),
    )
