"""Lists problems, each with its cause, owner, evidence and fix, and, if possible, a button that applies the
fix.

For an exception, the user's own line comes first, as a link to the file; frames of other code are folded.
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
from rankdeck.base.phrases import tr_noop
from rankdeck.diagnose.user_code import CodeLine, fold_frames, is_user_file, user_lines
from rankdeck.run.hang_warning import is_hang_problem
from rankdeck_app.language import tr
from rankdeck_app.shell.toasts import ToastAction
from rankdeck_app.state.problem_list import ListedProblem, ProblemList
from rankdeck_app.theme import Theme, set_style_properties
from rankdeck_app.widgets.controls import ElidedLabel
from rankdeck_app.widgets.layouts import (
    TOP,
    FlowLayout,
    TextBlock,
    column,
    make_scroll_area,
    push_button,
    row,
    text_label,
)
from rankdeck_app.widgets.painting import IconWidget

MAX_ROWS = 100
MAX_LINKS = 3
MAX_EVIDENCE = 5
_LOCATION = re.compile(r" \((?P<file>/[^()]+), [^()\d]*(?P<line>\d+)\)\.?$")
"""Pattern of the " (FILE, line N)" that ends a message, with the word for "line" in any language."""

FindActions = Callable[[ListedProblem], list[ToastAction]]
OpenCode = Callable[[Path, int, str], object]
PreviewFix = Callable[[ListedProblem | None], object]


def user_code_lines(problem: Problem) -> list[CodeLine]:
    """Return the lines of user code that a problem names, starting with the line that raised the
    exception."""
    lines = [line for line in user_lines(problem.last_lines) if Path(line.file).is_absolute()]
    location = _named_location(problem)
    if location is None:
        return lines
    raised = next(
        (line for line in lines if (line.file, line.line) == (location.file, location.line)), location
    )
    return [raised, *(line for line in lines if line is not raised)]


def _named_location(problem: Problem) -> CodeLine | None:
    """Return the file and line of a problem; None if they are not found. In older runs, only the problem's
    message names them."""
    if problem.path and problem.line is not None and Path(problem.path).is_absolute():
        return CodeLine(problem.path, problem.line)
    match = _LOCATION.search(problem.message)
    return CodeLine(match["file"], int(match["line"])) if match and is_user_file(match["file"]) else None


def message_text(problem: Problem) -> str:
    """Return the message without the location, which is shown as a link instead."""
    return _LOCATION.sub("", problem.message) if user_code_lines(problem) else problem.message


class ProblemRow(QWidget):
    """One problem, with its buttons below the advice. `highlight_changed` is emitted when the pointer or the
    focus enters or leaves the row."""

    highlight_changed = Signal(bool)

    def __init__(
        self,
        theme: Theme,
        entry: ListedProblem,
        actions: list[ToastAction],
        open_code: OpenCode | None = None,
    ) -> None:
        super().__init__()
        self.setObjectName("problemRow")
        # Without this a plain QWidget does not paint the style sheet's background.
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.entry = entry
        self.labels = [label for label, _ in actions]
        problem, self.code_lines = entry.problem, user_code_lines(entry.problem)
        message = message_text(problem)
        self.links: list[QPushButton] = []
        self.traceback_block: TextBlock | None = None
        self._message = _wrapped_label(message)
        details = column(self._message, spacing=3)
        for line in self.code_lines[:MAX_LINKS]:
            details.addLayout(self._code_row(line, message, open_code))
        for evidence in problem.evidence[:MAX_EVIDENCE]:
            details.addLayout(self._evidence_row(evidence, open_code))
        if problem.advice:
            details.addWidget(_wrapped_label(problem.advice, "dim"))
        if problem.last_lines:
            self._add_traceback(theme, fold_frames(problem.last_lines), details.addWidget)
        details.addWidget(_wrapped_label(owner_text(entry), "small"))
        self.buttons = [push_button(label, "", act) for label, act in actions]
        if self.buttons:
            button_area = QWidget()
            flow = FlowLayout(button_area)
            for button in self.buttons:
                flow.addWidget(button)
                # A focused button counts as a highlighted row.
                button.installEventFilter(self)
            details.addSpacing(2)
            details.addWidget(button_area)
        icon, tone = ("warning", "rankdeck.lead") if entry.is_warning else ("error", "errorForeground")
        symbol = IconWidget(theme, icon, tone, QSize(16, 18), 16)
        row(symbol, (details, 1), on=self, margins=(16, 6, 16, 6), spacing=8, align=TOP)
        self.update_entry(entry)
        self.setAccessibleDescription(problem.advice or "")

    def update_entry(self, entry: ListedProblem) -> None:
        """Show a new version of the row's entry, such as one whose message gives a different number of
        seconds."""
        self.entry = entry
        message = message_text(entry.problem)
        self._message.setText(message)
        name = tr_noop("Warning: {problem}") if entry.is_warning else tr_noop("Error: {problem}")
        self.setAccessibleName(tr(name, problem=message))

    def is_same_entry(self, entry: ListedProblem) -> bool:
        """Check whether `entry` is the one that this row shows, ignoring the number of seconds in a hang's
        message."""
        current, other = self.entry, entry
        if is_hang_problem(current.problem) and user_code_lines(current.problem) == user_code_lines(
            other.problem
        ):
            without_message = {"message": "", "arguments": {}}
            current = replace(current, problem=msgspec.structs.replace(current.problem, **without_message))
            other = replace(other, problem=msgspec.structs.replace(other.problem, **without_message))
        return current == other

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self.highlight_changed.emit(True)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.highlight_changed.emit(False)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            self.highlight_changed.emit(event.type() == QEvent.Type.FocusIn)
        return super().eventFilter(watched, event)

    def _evidence_row(self, evidence: Evidence, open_code: OpenCode | None) -> QHBoxLayout:
        """Create a row with the evidence and a link to its file; a relative path is resolved against the run
        directory."""
        label, file = _wrapped_label(evidence.text, "dim"), evidence_file(evidence, self.entry.run)
        if file is None:
            return row((label, 1))
        return row(
            self._file_link(file, evidence.line, evidence.text, open_code), (label, 1), spacing=12, align=TOP
        )

    def _file_link(
        self, file: Path, line: int | None, message: str, open_code: OpenCode | None
    ) -> QPushButton:
        """Create a link such as 'rank-1.0.jsonl' or 'train.py, line 9'."""
        text, tip = file.name, tr("Open {file}", file=file)
        if line is not None:
            text = tr("{file}, line {line}", file=file.name, line=line)
            tip = tr("Open {file} at line {line}", file=file, line=line)
        link = push_button(
            text,
            tip,
            lambda: open_code(file, line or 1, message) if open_code is not None else None,
            kind="link",
        )
        link.setProperty("flush", "true")
        self.links.append(link)
        return link

    def _code_row(self, line: CodeLine, message: str, open_code: OpenCode | None) -> QHBoxLayout:
        """Create a row with a line of code and a link to it, such as 'train.py, line 9'."""
        link = self._file_link(Path(line.file), line.line, message, open_code)
        is_inside = line.function and line.function != "<module>"
        where = tr("in {function}", function=line.function) if is_inside else ""
        code_label = ElidedLabel("    ".join(filter(None, (where, line.text))))
        code_label.setProperty("tone", "mono")
        return row(link, (code_label, 1), spacing=12)

    def _add_traceback(self, theme: Theme, lines: list[str], add: Callable[[QWidget], object]) -> None:
        """Add the last output lines of the problem's rank, folded behind a button if user code is shown."""
        self.traceback_block = TextBlock(theme, lines, tr("Last output lines of the rank"))
        if self.code_lines:
            self.traceback_button = push_button(
                "", tr("Show the traceback"), self._toggle_traceback, kind="quiet"
            )
            self.traceback_button.setIcon(theme.icon("chevron-right", "descriptionForeground"))
            self.traceback_button.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
            self.traceback_button.setProperty("flush", "true")
            self.traceback_button.setText(tr("Traceback, {n} lines", "Traceback, {n} line", len(lines)))
            self._theme = theme
            self.traceback_block.hide()
            add(self.traceback_button)
        add(self.traceback_block)

    def _toggle_traceback(self) -> None:
        assert self.traceback_block is not None
        is_open = self.traceback_block.isHidden()
        self.traceback_block.setVisible(is_open)
        icon = "chevron-down" if is_open else "chevron-right"
        self.traceback_button.setIcon(self._theme.icon(icon, "descriptionForeground"))
        self.traceback_button.setToolTip(tr("Hide the traceback") if is_open else tr("Show the traceback"))


def evidence_file(evidence: Evidence, run: Path | None) -> Path | None:
    """Return the path of the evidence's file; None if the evidence names no file, or if the path is relative
    and the run directory is unknown."""
    if evidence.path is None or (run is None and not Path(evidence.path).is_absolute()):
        return None
    return Path(evidence.path) if run is None else run / evidence.path


def _wrapped_label(text: str, tone: str = "") -> QLabel:
    """Create a label that wraps to the available width, however long its words are."""
    label = text_label(text, tone, selectable=True)
    policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    # QLabel sets this flag for wrapped text, and a new policy would clear it.
    policy.setHeightForWidth(True)
    label.setSizePolicy(policy)
    return label


def owner_text(entry: ListedProblem) -> str:
    """Return a text such as 'GPT DP · rank 2 on box1' or 'configuration · train.steps, line 12'."""
    problem = entry.problem
    texts = [entry.title]
    if problem.host:
        texts.append(tr("rank {rank} on {host}", rank=problem.rank, host=problem.host))
    elif problem.rank is not None:
        texts.append(tr("rank {rank}", rank=problem.rank))
    if problem.path and not _is_in_advice(problem.path, problem.advice) and not user_code_lines(problem):
        location = tr("{file}, line {line}", file=problem.path, line=problem.line)
        texts.append(problem.path if problem.line is None else location)
    elif problem.line is not None and not problem.path:
        texts.append(tr("line {line}", line=problem.line))
    return " · ".join(texts)


def _is_in_advice(path: str, advice: str | None) -> bool:
    """Check whether the advice already names the path."""
    return Path(path).is_absolute() and path in (advice or "")


class ProblemsView(QWidget):
    """View of a ProblemList.

    `find_actions` returns the actions for an entry, `open_code` shows a line of a file, and `look_at` is
    called with the highlighted entry, or None if no entry is highlighted.
    """

    def __init__(
        self,
        theme: Theme,
        problems: ProblemList,
        find_actions: FindActions,
        open_code: OpenCode | None = None,
        look_at: PreviewFix | None = None,
    ) -> None:
        super().__init__()
        self._theme = theme
        self._problems = problems
        self._preview_fix = look_at
        self._find_actions = find_actions
        self._open_code = open_code
        self.rows: list[ProblemRow] = []
        self.empty_label = text_label(tr("No problems."), "dim", wrap=False)
        self.empty_label.setContentsMargins(16, 8, 16, 8)
        self.more_label = text_label(tone="dim", wrap=False)
        self.more_label.setContentsMargins(40, 4, 16, 4)
        self.others_heading = text_label(tr("Other runs").upper(), "section", wrap=False)
        self.others_heading.setContentsMargins(16, 10, 16, 2)
        inside = QWidget()
        self.others_heading.setParent(inside)
        self._column = column(
            self.empty_label, self.more_label, None, on=inside, margins=(0, 0, 0, 8), spacing=0
        )
        self._scroll = make_scroll_area(inside, tr("Problems"))
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        column(self._scroll, on=self)
        self.setFocusProxy(self._scroll)
        problems.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Update the rows. Rows of unchanged entries are reused, so that focus and unfolded tracebacks are
        not lost."""
        row_indices = {row: at for at, row in enumerate(self.rows)}
        before, self.rows = self.rows, []
        entries = self._problems.entries
        # The heading must not shift the row indices below.
        self._column.removeWidget(self.others_heading)
        for at, entry in enumerate(entries[:MAX_ROWS]):
            actions = self._find_actions(entry)
            labels = [label for label, _ in actions]
            same = next(
                (old_row for old_row in before if old_row.is_same_entry(entry) and old_row.labels == labels),
                None,
            )
            if same is not None:
                # Each row is reused once, because two entries may be equal.
                before.remove(same)
                same.update_entry(entry)
            problem_row = same or self._make_row(entry, actions)
            if self._column.indexOf(problem_row) != at:
                self._column.insertWidget(at, problem_row)
                problem_row.show()
            self.rows.append(problem_row)
        focused = QApplication.focusWidget()
        for removed in before:
            if focused is not None and removed.isAncestorOf(focused):
                # Before the widget is hidden, or Qt would pass the focus out of the list.
                self._focus_nearest(row_indices.get(removed, 0))
            self._column.removeWidget(removed)
            removed.hide()
            removed.deleteLater()
        self.empty_label.setVisible(not self.rows)
        self.more_label.setText(tr("Not shown: {count} more.", count=len(entries) - MAX_ROWS))
        self.more_label.setVisible(len(entries) > MAX_ROWS)
        first = next((at for at, row in enumerate(self.rows) if self._is_of_other_run(row)), None)
        self.others_heading.setVisible(first is not None)
        if first is not None:
            self._column.insertWidget(first, self.others_heading)
        self._relayout()

    def _is_of_other_run(self, problem_row: ProblemRow) -> bool:
        return self._problems.is_of_other_run(problem_row.entry)

    def _focus_nearest(self, index: int) -> None:
        """Keep the focus in the list while the focused row is being removed: move the focus to the row that
        is now at `index`, or to the last row if there are fewer rows."""
        buttons = self.rows[min(index, len(self.rows) - 1)].buttons if self.rows else []
        (buttons[0] if buttons else self._scroll).setFocus(Qt.FocusReason.OtherFocusReason)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._relayout()

    def _relayout(self) -> None:
        """Apply new row heights now. Otherwise the scroll area would apply them a few events later, and until
        then the rows would be painted too small."""
        QCoreApplication.sendEvent(self._scroll, QEvent(QEvent.Type.LayoutRequest))
        self._column.activate()

    def _make_row(self, entry: ListedProblem, actions: list[ToastAction]) -> ProblemRow:
        problem_row = ProblemRow(self._theme, entry, actions, self._open_code)
        if self._preview_fix is not None:
            problem_row.highlight_changed.connect(partial(self._on_highlight_changed, entry))
        return problem_row

    def _on_highlight_changed(self, entry: ListedProblem, is_looked_at: bool) -> None:
        if self._preview_fix is not None:
            self._preview_fix(entry if is_looked_at else None)

    def show_entry(self, entry: ListedProblem) -> None:
        """Highlight an entry's row and scroll to it."""
        self._on_highlight_changed(entry, True)
        for problem_row in self.rows:
            is_it = problem_row.entry == entry
            set_style_properties(problem_row, chosen="true" if is_it else "false")
            if is_it:
                self._relayout()
                self._scroll.verticalScrollBar().setValue(problem_row.y())
