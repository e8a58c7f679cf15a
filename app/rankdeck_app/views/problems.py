"""Problems: a cause, whose it is, what was seen, a fix, and a button that makes it where there is one.

Of an exception the person's own line comes first, as a link to the file; what others' frames say is folded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from PySide6.QtCore import QCoreApplication, QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QEnterEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QWidget

from rankdeck.base.errors import Evidence, Problem
from rankdeck.base.phrases import marked
from rankdeck.diagnose.own_code import CodeLine, fold, is_own, own_lines
from rankdeck.run.standstill import is_of_standstill
from rankdeck_app.language import tr
from rankdeck_app.shell.toasts import Action
from rankdeck_app.state.problem_list import ListedProblem, ProblemList
from rankdeck_app.theme import Theme, set_look
from rankdeck_app.widgets.controls import ElidedLabel
from rankdeck_app.widgets.layouts import (
    TOP,
    FlowLayout,
    TextBlock,
    column,
    push_button,
    row,
    scrolled,
    text_label,
)
from rankdeck_app.widgets.painting import Symbol

MAX_ROWS = 100
MAX_LINKS = 3
MAX_EVIDENCE = 5
_PLACE = re.compile(r" \((?P<file>/[^()]+), [^()\d]*(?P<line>\d+)\)\.?$")
"""In whatever language: what stands before the number means "line"."""

FindActions = Callable[[ListedProblem], list[Action]]
OpenCode = Callable[[Path, int, str], object]
LookAt = Callable[[ListedProblem | None], object]


def code_of(problem: Problem) -> list[CodeLine]:
    """The lines of the person's own code that a problem names, the one where it was raised first."""
    told = [line for line in own_lines(problem.last_lines) if Path(line.file).is_absolute()]
    named = _named_place(problem)
    if named is None:
        return told
    raised = next((line for line in told if (line.file, line.line) == (named.file, named.line)), named)
    return [raised, *(line for line in told if line is not raised)]


def _named_place(problem: Problem) -> CodeLine | None:
    """The file and line that the problem carries; runs of before have them in their message only."""
    if problem.path and problem.line is not None and Path(problem.path).is_absolute():
        return CodeLine(problem.path, problem.line)
    match = _PLACE.search(problem.message)
    return CodeLine(match["file"], int(match["line"])) if match and is_own(match["file"]) else None


def said_of(problem: Problem) -> str:
    """The message without the place that stands beside it as a link."""
    return _PLACE.sub("", problem.message) if code_of(problem) else problem.message


class ProblemRow(QWidget):
    """One entry. The buttons stand below the advice that they carry out. `looked_at`: the pointer or the
    keyboard is on it, or no longer."""

    looked_at = Signal(bool)

    def __init__(
        self, theme: Theme, entry: ListedProblem, actions: list[Action], open_code: OpenCode | None = None
    ) -> None:
        super().__init__()
        self.setObjectName("problemRow")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.entry = entry
        self.labels = [label for label, _ in actions]
        problem, self.code = entry.problem, code_of(entry.problem)
        message = said_of(problem)
        self.links: list[QPushButton] = []
        self.trace: TextBlock | None = None
        self._message = _wrapped(message)
        words = column(self._message, spacing=3)
        for line in self.code[:MAX_LINKS]:
            words.addLayout(self._link(line, message, open_code))
        for seen in problem.evidence[:MAX_EVIDENCE]:
            words.addLayout(self._evidence(seen, open_code))
        if problem.advice:
            words.addWidget(_wrapped(problem.advice, "dim"))
        if problem.last_lines:
            self._add_lines(theme, fold(problem.last_lines), words.addWidget)
        words.addWidget(_wrapped(whose(entry), "small"))
        self.buttons = [push_button(label, "", act) for label, act in actions]
        if self.buttons:
            place = QWidget()
            flow = FlowLayout(place)
            for button in self.buttons:
                flow.addWidget(button)
                button.installEventFilter(self)
            words.addSpacing(2)
            words.addWidget(place)
        icon, tone = ("warning", "rankdeck.lead") if entry.is_warning else ("error", "errorForeground")
        symbol = Symbol(theme, icon, tone, QSize(16, 18), 16)
        row(symbol, (words, 1), on=self, margins=(16, 6, 16, 6), spacing=8, align=TOP)
        self.say(entry)
        self.setAccessibleDescription(problem.advice or "")

    def say(self, entry: ListedProblem) -> None:
        """The same entry, whose message counts on."""
        self.entry = entry
        message = said_of(entry.problem)
        self._message.setText(message)
        name = marked("Warning: {problem}") if entry.is_warning else marked("Error: {problem}")
        self.setAccessibleName(tr(name, problem=message))

    def shows(self, entry: ListedProblem) -> bool:
        """Whether it is the same entry, but for the seconds of a standstill."""
        own, other = self.entry, entry
        if is_of_standstill(own.problem) and code_of(own.problem) == code_of(other.problem):
            kept = {"message": "", "arguments": {}}
            own = replace(own, problem=msgspec.structs.replace(own.problem, **kept))
            other = replace(other, problem=msgspec.structs.replace(other.problem, **kept))
        return own == other

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self.looked_at.emit(True)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.looked_at.emit(False)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            self.looked_at.emit(event.type() == QEvent.Type.FocusIn)
        return super().eventFilter(watched, event)

    def _evidence(self, seen: Evidence, open_code: OpenCode | None) -> QHBoxLayout:
        """What was seen, and a link to where it is: relative paths are of the run's folder."""
        told, file = _wrapped(seen.text, "dim"), place_of(seen, self.entry.run)
        if file is None:
            return row((told, 1))
        return row(self._open(file, seen.line, seen.text, open_code), (told, 1), spacing=12, align=TOP)

    def _open(self, file: Path, line: int | None, said: str, open_code: OpenCode | None) -> QPushButton:
        """'rank-1.0.jsonl' or 'train.py, line 9', as a link."""
        text, tip = file.name, tr("Open {file}", file=file)
        if line is not None:
            text = tr("{file}, line {line}", file=file.name, line=line)
            tip = tr("Open {file} at line {line}", file=file, line=line)
        link = push_button(
            text,
            tip,
            lambda: open_code(file, line or 1, said) if open_code is not None else None,
            kind="link",
        )
        link.setProperty("flush", "true")
        self.links.append(link)
        return link

    def _link(self, line: CodeLine, message: str, open_code: OpenCode | None) -> QHBoxLayout:
        """'train.py, line 9', and what is written there."""
        link = self._open(Path(line.file), line.line, message, open_code)
        is_inside = line.function and line.function != "<module>"
        where = tr("in {function}", function=line.function) if is_inside else ""
        told = ElidedLabel("    ".join(filter(None, (where, line.text))))
        told.setProperty("tone", "mono")
        return row(link, (told, 1), spacing=12)

    def _add_lines(self, theme: Theme, lines: list[str], add: Callable[[QWidget], object]) -> None:
        """The rank's last lines: folded behind a button where the person's own line says enough."""
        self.trace = TextBlock(theme, lines, tr("Last lines of the rank"))
        if self.code:
            self.unfold = push_button("", tr("Show the traceback"), self._turn, kind="quiet")
            self.unfold.setIcon(theme.icon("chevron-right", "descriptionForeground"))
            self.unfold.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
            self.unfold.setProperty("flush", "true")
            self.unfold.setText(tr("Traceback, {n} lines", "Traceback, {n} line", len(lines)))
            self._theme = theme
            self.trace.hide()
            add(self.unfold)
        add(self.trace)

    def _turn(self) -> None:
        assert self.trace is not None
        is_open = self.trace.isHidden()
        self.trace.setVisible(is_open)
        icon = "chevron-down" if is_open else "chevron-right"
        self.unfold.setIcon(self._theme.icon(icon, "descriptionForeground"))
        self.unfold.setToolTip(tr("Hide the traceback") if is_open else tr("Show the traceback"))


def place_of(seen: Evidence, run: Path | None) -> Path | None:
    """The file that shows it; None where none does, or nobody knows whose it is."""
    if seen.path is None or (run is None and not Path(seen.path).is_absolute()):
        return None
    return Path(seen.path) if run is None else run / seen.path


def _wrapped(text: str, tone: str = "") -> QLabel:
    """Text that takes the width that there is, however long its words are."""
    label = text_label(text, tone, selectable=True)
    policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    policy.setHeightForWidth(True)
    label.setSizePolicy(policy)
    return label


def whose(entry: ListedProblem) -> str:
    """'GPT DP · rank 2 on box1', 'configuration · train.steps, line 12'."""
    problem = entry.problem
    parts = [entry.title]
    if problem.host:
        parts.append(tr("rank {rank} on {host}", rank=problem.rank, host=problem.host))
    elif problem.rank is not None:
        parts.append(tr("rank {rank}", rank=problem.rank))
    if problem.path and not _is_in_advice(problem.path, problem.advice) and not code_of(problem):
        place = tr("{file}, line {line}", file=problem.path, line=problem.line)
        parts.append(problem.path if problem.line is None else place)
    elif problem.line is not None and not problem.path:
        parts.append(tr("line {line}", line=problem.line))
    return " · ".join(parts)


def _is_in_advice(path: str, advice: str | None) -> bool:
    """Whether the advice already names the file or the folder."""
    return Path(path).is_absolute() and path in (advice or "")


class ProblemsView(QWidget):
    """Follows a ProblemList; `find_actions` says what can be done about an entry from here, `open_code`
    shows a line of a file, `look_at` is told of the entry that somebody looks at, or of none.
    """

    def __init__(
        self,
        theme: Theme,
        problems: ProblemList,
        find_actions: FindActions,
        open_code: OpenCode | None = None,
        look_at: LookAt | None = None,
    ) -> None:
        super().__init__()
        self._theme = theme
        self._problems = problems
        self._look_at = look_at
        self._find_actions = find_actions
        self._open_code = open_code
        self.rows: list[ProblemRow] = []
        self.empty = text_label(tr("No problems."), "dim", wrap=False)
        self.empty.setContentsMargins(16, 8, 16, 8)
        self.more = text_label(tone="dim", wrap=False)
        self.more.setContentsMargins(40, 4, 16, 4)
        self.others = text_label(tr("Other runs").upper(), "section", wrap=False)
        self.others.setContentsMargins(16, 10, 16, 2)
        inside = QWidget()
        self.others.setParent(inside)
        self._column = column(self.empty, self.more, None, on=inside, margins=(0, 0, 0, 8), spacing=0)
        self._scroll = scrolled(inside, tr("Problems"))
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        column(self._scroll, on=self)
        self.setFocusProxy(self._scroll)
        problems.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Rows whose entry is as it was stay, with the keyboard and what is unfolded in them."""
        places = {row: at for at, row in enumerate(self.rows)}
        before, self.rows = self.rows, []
        entries = self._problems.entries
        self._column.removeWidget(self.others)
        for at, entry in enumerate(entries[:MAX_ROWS]):
            actions = self._find_actions(entry)
            labels = [label for label, _ in actions]
            same = next((one for one in before if one.shows(entry) and one.labels == labels), None)
            if same is not None:
                before.remove(same)
                same.say(entry)
            made = same or self._make_row(entry, actions)
            if self._column.indexOf(made) != at:
                self._column.insertWidget(at, made)
                made.show()
            self.rows.append(made)
        focused = QApplication.focusWidget()
        for gone in before:
            if focused is not None and gone.isAncestorOf(focused):
                self._focus_nearest(places.get(gone, 0))
            self._column.removeWidget(gone)
            gone.hide()
            gone.deleteLater()
        self.empty.setVisible(not self.rows)
        self.more.setText(tr("{count} more are not shown.", count=len(entries) - MAX_ROWS))
        self.more.setVisible(len(entries) > MAX_ROWS)
        first = next((at for at, row in enumerate(self.rows) if self._is_of_another(row)), None)
        self.others.setVisible(first is not None)
        if first is not None:
            self._column.insertWidget(first, self.others)
        self._give_room()

    def _is_of_another(self, shown: ProblemRow) -> bool:
        return self._problems.is_of_another_run(shown.entry)

    def _focus_nearest(self, place: int) -> None:
        """The keyboard stays in the list when the row that has it goes: what was done there fixed it."""
        buttons = self.rows[min(place, len(self.rows) - 1)].buttons if self.rows else []
        (buttons[0] if buttons else self._scroll).setFocus(Qt.FocusReason.OtherFocusReason)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._give_room()

    def _give_room(self) -> None:
        """The scroll area hears of new heights turns later; until then rows were painted pressed together."""
        QCoreApplication.sendEvent(self._scroll, QEvent(QEvent.Type.LayoutRequest))
        self._column.activate()

    def _make_row(self, entry: ListedProblem, actions: list[Action]) -> ProblemRow:
        made = ProblemRow(self._theme, entry, actions, self._open_code)
        if self._look_at is not None:
            made.looked_at.connect(partial(self._tell, entry))
        return made

    def _tell(self, entry: ListedProblem, is_looked_at: bool) -> None:
        if self._look_at is not None:
            self._look_at(entry if is_looked_at else None)

    def show_entry(self, entry: ListedProblem) -> None:
        """Mark an entry's row and bring it into view."""
        self._tell(entry, True)
        for shown in self.rows:
            is_it = shown.entry == entry
            set_look(shown, chosen="true" if is_it else "false")
            if is_it:
                self._give_room()
                self._scroll.verticalScrollBar().setValue(shown.y())
