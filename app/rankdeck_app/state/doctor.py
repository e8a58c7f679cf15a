"""Run `rankdeck doctor --json` and collect the results, which are read line by line as they are printed.

Only one doctor runs at a time. Previous results stay until new ones replace them, so that a page does not
become empty while the user reads it. Malformed lines are skipped; if the process ends early, `problem`
explains why.
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
"""Limit for the output of one doctor process: about 200 times the output for a machine with many problems."""
_MAX_ROWS, _MAX_TEXT_LENGTH, _MAX_EVIDENCE = 100, 1000, 30
_MAX_UNPARSED_LENGTH = 1 << 14
SEVERITY_ORDER = (Verdict.FAILED, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED)


@dataclass(frozen=True)
class CheckTexts:
    """Texts of a check's row in the window's language."""

    verdict: Verdict
    finding: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    command: str = ""


def translate_check(line: CheckLine) -> CheckTexts:
    """Translate a check's texts, except the command, which is the same in every language."""
    return CheckTexts(
        line.verdict,
        translate(line.finding, line.phrases),
        tuple(translate(text, line.phrases) for text in line.evidence),
        translate(line.fix, line.phrases) if line.fix else "",
        line.command or "",
    )


class _DoctorProcess(EngineStream):
    """Doctor process; `overflowed` is emitted when its output exceeds the limit."""

    overflowed = Signal()
    _num_bytes = 0

    def _read_lines(self) -> None:
        self._num_bytes += self.process.bytesAvailable()
        if self._num_bytes > MAX_OUTPUT_BYTES:
            self.overflowed.emit()
        else:
            super()._read_lines()


class Doctor(QObject):
    """The results of `rankdeck doctor`; `changed` is emitted when there are new results.

    `rows` are the checks' rows, in the order in which the newest doctor process announced them. `lines` are
    the results of that process so far, and `previous_lines` those of earlier processes.
    """

    changed = Signal()

    def __init__(self, engine: Engine, workspace: Workspace, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: list[AnnouncedRow] = []
        self.lines: dict[str, CheckLine] = {}
        self.previous_lines: dict[str, CheckLine] = {}
        self.done: DoneLine | None = None
        self.problem = ""
        """Why the newest doctor process ended early, in the window's language."""
        self.python, self.started_at = "", 0.0
        """The interpreter that ran the checks, and the Unix time at which the checks started."""
        self._engine, self._workspace = engine, workspace
        self._process: _DoctorProcess | None = None
        self._unparsed = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def has_results(self) -> bool:
        """Whether there are running checks, results or a problem to show."""
        return self.is_running or self.done is not None or bool(self.rows or self.problem)

    def count(self, verdict: Verdict) -> int:
        return sum(line.verdict is verdict for line in self.lines.values())

    def start(self) -> None:
        """Start the checks unless they are running."""
        if self.is_running:
            return
        # Merged: checks that a stopped run did not reach keep their older results.
        self.previous_lines, self.lines = {**self.previous_lines, **self.lines}, {}
        self.done, self.problem, self._unparsed = None, "", ""
        engine, workspace = self._engine, self._workspace
        self.python, self.started_at = engine.python, time.time()
        arguments = ["doctor", "--json", "--runs", str(workspace.runs_folder)]
        process = self._process = _DoctorProcess(
            engine.python, arguments, workspace.folder, self, io_thread=engine.io_thread
        )
        process.lines_received.connect(self._on_lines)
        process.finished.connect(self._on_finished)
        process.overflowed.connect(
            lambda: self.stop(tr("The doctor printed too much output and was stopped."))
        )
        process.start()
        self.changed.emit()

    def stop(self, why: str = "") -> None:
        """Stop the running checks by ending their process; `why` becomes the problem that is shown."""
        if self._process is not None:
            self._process.abort()
            self._finish(why or tr("The doctor was stopped."))

    def _on_lines(self, lines: list[bytes]) -> None:
        for text in filter(bytes.strip, lines):
            line = decode(text)
            if line is None:
                # The engine may print a problem instead of results; the failure text is then made from these
                # lines.
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
            self.previous_lines = {
                name: check for name, check in self.previous_lines.items() if name in names
            }
        elif isinstance(line, DoneLine):
            self.done = line
        # A result whose row was not announced, or was cut off by _MAX_ROWS, has no row to be shown in.
        elif any(row.name == line.name for row in self.rows):
            self.lines[line.name] = _shorten_line(line)

    def _on_finished(self, exit_code: int, _: str, err: str) -> None:
        self._finish("" if self.done is not None else self._failure_text(exit_code, err))

    def _failure_text(self, exit_code: int, err: str) -> str:
        """Return why the process failed; if the engine printed a problem, return that problem's text."""
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
            return tr("The doctor ended with {how} before all checks were done.", how=how)
        return tr("The doctor ended with {how}: {last}", how=how, last=last[-1][:200])

    def _finish(self, problem: str) -> None:
        assert self._process is not None
        self._process.deleteLater()
        self._process, self.problem = None, problem
        if self.done is None:
            self.previous_lines = {}  # the machine may have changed since
        self.changed.emit()

    def report(self) -> str:
        """Return all results as English text for a bug report, worst first."""
        at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self.started_at))
        texts = [f"rankdeck doctor, {at}, {self.python}", *filter(None, [self.problem])]
        lines = [self.lines[row.name] for row in self.rows if row.name in self.lines]
        for line in sorted(lines, key=lambda line: SEVERITY_ORDER.index(line.verdict)):
            texts.append(f"\n{VERDICT_TEXTS[line.verdict]}: {line.title}: {line.finding}")
            texts += [f"    {detail}" for detail in (*line.evidence, line.fix, line.command) if detail]
        return "\n".join(texts) + "\n"


def _shorten_line(line: CheckLine) -> CheckLine:
    """Return the line with its texts cut to lengths that a page can show."""

    def fitting(text: str) -> str:
        return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"

    return structs.replace(
        line,
        finding=fitting(line.finding),
        evidence=[fitting(item) for item in line.evidence[:_MAX_EVIDENCE]],
        fix=line.fix and fitting(line.fix),
    )
