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
    VERDICT_WORDS,
    AnnouncedRow,
    AnyDoctorLine,
    CheckLine,
    ChecksLine,
    DoneLine,
    Verdict,
    decode,
)
from rankdeck_app.language import spoken, tr
from rankdeck_app.state.engine_process import Engine, Stream, parse_problems
from rankdeck_app.state.workspace import Workspace

MOST_BYTES = 4 << 20
"""Of a look's lines: two hundred times what an ill machine makes it say."""
_MOST_ROWS, _MOST_SIGNS, _MOST_EVIDENCE = 100, 1000, 30
_KEPT_WORDS = 1 << 14
WORST_FIRST = (Verdict.BROKEN, Verdict.LOOK, Verdict.GOOD, Verdict.NOT_TRIED)


@dataclass(frozen=True)
class CheckWords:
    """A row in the window's words."""

    verdict: Verdict
    finding: str
    evidence: tuple[str, ...] = ()
    fix: str = ""
    command: str = ""


def in_window_words(line: CheckLine) -> CheckWords:
    """`command` is what it is in every language."""
    return CheckWords(
        line.verdict,
        spoken(line.finding, line.phrases),
        tuple(spoken(one, line.phrases) for one in line.evidence),
        spoken(line.fix, line.phrases) if line.fix else "",
        line.command or "",
    )


class _Look(Stream):
    """`flooded`: it has said more than is read."""

    flooded = Signal()
    _num_bytes = 0

    def _read(self) -> None:
        self._num_bytes += self.process.bytesAvailable()
        if self._num_bytes > MOST_BYTES:
            self.flooded.emit()
        else:
            super()._read()


class Doctor(QObject):
    """`changed`: there is more to show. `rows` are those of the newest look in its order; `lines` what it has
    told of them by now, `earlier` what the look before had.
    """

    changed = Signal()

    def __init__(self, engine: Engine, workspace: Workspace, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: list[AnnouncedRow] = []
        self.lines: dict[str, CheckLine] = {}
        self.earlier: dict[str, CheckLine] = {}
        self.done: DoneLine | None = None
        self.problem = ""
        """Why the newest look ended early, in the window's words."""
        self.python, self.began_at_s = "", 0.0
        """Who looked, and when (Unix time)."""
        self._engine, self._workspace = engine, workspace
        self._look: _Look | None = None
        self._unknown = ""

    @property
    def is_looking(self) -> bool:
        return self._look is not None

    @property
    def was_asked(self) -> bool:
        """Whether there is anything to show."""
        return self.is_looking or self.done is not None or bool(self.rows or self.problem)

    def count(self, verdict: Verdict) -> int:
        return sum(line.verdict is verdict for line in self.lines.values())

    def look(self) -> None:
        """Begin a look, unless one is under way."""
        if self.is_looking:
            return
        self.earlier, self.lines = {**self.earlier, **self.lines}, {}
        self.done, self.problem, self._unknown = None, "", ""
        engine, workspace = self._engine, self._workspace
        self.python, self.began_at_s = engine.python, time.time()
        arguments = ["doctor", "--json", "--runs", str(workspace.runs_folder)]
        look = self._look = _Look(engine.python, arguments, workspace.folder, self, disk=engine.disk)
        look.lines.connect(self._take)
        look.answered.connect(self._answered)
        look.flooded.connect(lambda: self.stop(tr("It said more than is read.")))
        look.start()
        self.changed.emit()

    def stop(self, why: str = "") -> None:
        """End the look that is under way: its checks die with it."""
        if self._look is not None:
            self._look.end()
            self._over(why or tr("It was stopped."))

    def _take(self, lines: list[bytes]) -> None:
        for text in filter(bytes.strip, lines):
            line = decode(text)
            if line is None:
                self._unknown = (self._unknown + text.decode("utf-8", "replace") + "\n")[-_KEPT_WORDS:]
            else:
                self._show(line)
        self.changed.emit()

    def _show(self, line: AnyDoctorLine) -> None:
        if isinstance(line, ChecksLine):
            self.rows = line.rows[:_MOST_ROWS]
            names = {row.name for row in self.rows}
            self.earlier = {name: told for name, told in self.earlier.items() if name in names}
        elif isinstance(line, DoneLine):
            self.done = line
        elif any(row.name == line.name for row in self.rows):
            self.lines[line.name] = _shortened(line)

    def _answered(self, exit_code: int, _: str, err: str) -> None:
        self._over("" if self.done is not None else self._reason(exit_code, err))

    def _reason(self, exit_code: int, err: str) -> str:
        """The engine's own words where it had any."""
        assert self._look is not None
        if self._look.refusal or self._look.process.error() == QProcess.ProcessError.FailedToStart:
            return tr("The doctor could not be started: {error}.", error=err)
        problems = parse_problems(self._unknown) or parse_problems(err)
        if problems:
            return problems[0].sentence
        how = (
            tr("exit code {code}", code=exit_code) if exit_code >= 0 else tr("signal {code}", code=-exit_code)
        )
        last = [line.strip() for line in err.splitlines() if line.strip()]
        if not last:
            return tr("It ended with {how} before all was looked at.", how=how)
        return tr("It ended with {how}: {last}", how=how, last=last[-1][:200])

    def _over(self, problem: str) -> None:
        assert self._look is not None
        self._look.deleteLater()
        self._look, self.problem = None, problem
        if self.done is None:
            self.earlier = {}  # of a machine that may have been another by now
        self.changed.emit()

    def report(self) -> str:
        """All of it as text, the worst first, for a bug report: in English, as the engine says it."""
        at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self.began_at_s))
        parts = [f"rankdeck doctor, {at}, {self.python}", *filter(None, [self.problem])]
        told = [self.lines[row.name] for row in self.rows if row.name in self.lines]
        for line in sorted(told, key=lambda line: WORST_FIRST.index(line.verdict)):
            parts.append(f"\n{VERDICT_WORDS[line.verdict]}: {line.title}: {line.finding}")
            parts += [f"    {one}" for one in (*line.evidence, line.fix, line.command) if one]
        return "\n".join(parts) + "\n"


def _shortened(line: CheckLine) -> CheckLine:
    """Texts that a page can show, whatever the machine put into them; what is cut is said in English only."""

    def fitting(text: str) -> str:
        return text if len(text) <= _MOST_SIGNS else f"{text[:_MOST_SIGNS]}…"

    return structs.replace(
        line,
        finding=fitting(line.finding),
        evidence=[fitting(one) for one in line.evidence[:_MOST_EVIDENCE]],
        fix=line.fix and fitting(line.fix),
    )
