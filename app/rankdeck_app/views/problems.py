"""Problems: a cause, whose it is, the next step, and a button that does it where there is one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from rankdeck_app.state.problem_list import ListedProblem, ProblemList
from rankdeck_app.theme import Theme, draw_icon

MAX_ROWS = 100

Remedy = tuple[str, Callable[[], object]]
FindRemedies = Callable[[ListedProblem], list[Remedy]]


class _Symbol(QWidget):
    def __init__(self, theme: Theme, icon: str, tone: str) -> None:
        super().__init__()
        self._theme, self._icon, self._tone = theme, icon, tone
        self.setFixedSize(16, 18)

    def sizeHint(self) -> QSize:
        return QSize(16, 18)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        draw_icon(painter, self._icon, QRectF(0, 1, 16, 16), self._theme.color(self._tone))
        painter.end()


class ProblemRow(QWidget):
    """One entry. The buttons stand below the advice that they carry out."""

    def __init__(self, theme: Theme, entry: ListedProblem, remedies: list[Remedy]) -> None:
        super().__init__()
        self.entry = entry
        warning = entry.is_warning
        symbol = _Symbol(theme, *(("warning", "rankdeck.lead") if warning else ("error", "errorForeground")))
        message = _text(entry.problem.message, "")
        column = QVBoxLayout()
        column.setSpacing(2)
        column.addWidget(message)
        where = _text(whose(entry), "small")
        if entry.problem.advice:
            column.addWidget(_text(entry.problem.advice, "dim"))
        if entry.problem.last_lines:
            last = _text("\n".join(entry.problem.last_lines), "mono")
            last.setWordWrap(False)
            column.addWidget(last)
        column.addWidget(where)
        row = QHBoxLayout(self)
        row.setContentsMargins(16, 3, 16, 3)
        row.setSpacing(8)
        row.addWidget(symbol, 0, Qt.AlignmentFlag.AlignTop)
        row.addLayout(column, 1)
        self.buttons = [_button(*remedy) for remedy in remedies]
        for button in self.buttons:
            row.addWidget(button, 0, Qt.AlignmentFlag.AlignTop)
        self.setAccessibleName(f"{'Warning' if warning else 'Error'}: {entry.problem.message}")
        self.setAccessibleDescription(entry.problem.advice or "")


def whose(entry: ListedProblem) -> str:
    """'GPT DP · rank 2', 'configuration · train.steps, line 12'."""
    problem = entry.problem
    parts = [entry.title]
    if problem.rank is not None:
        parts.append(f"rank {problem.rank}")
    if problem.path:
        parts.append(problem.path if problem.line is None else f"{problem.path}, line {problem.line}")
    elif problem.line is not None:
        parts.append(f"line {problem.line}")
    return " · ".join(parts)


def _text(text: str, tone: str) -> QLabel:
    label = QLabel(text)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setWordWrap(True)
    if tone:
        label.setProperty("tone", tone)
    return label


def _button(label: str, act: Callable[[], object]) -> QPushButton:
    button = QPushButton(label)
    button.setToolTip(label)
    button.clicked.connect(lambda _checked=False: act())
    return button


class ProblemsView(QWidget):
    """Follows a ProblemList; `find_remedies` says what can be done about an entry from here."""

    def __init__(self, theme: Theme, problems: ProblemList, find_remedies: FindRemedies) -> None:
        super().__init__()
        self._theme = theme
        self._problems = problems
        self._find_remedies = find_remedies
        self.rows: list[ProblemRow] = []
        self.empty = QLabel("No problems.")
        self.empty.setProperty("tone", "dim")
        self.empty.setContentsMargins(16, 8, 16, 8)
        inside = QWidget()
        self._column = QVBoxLayout(inside)
        self._column.setContentsMargins(0, 0, 0, 8)
        self._column.setSpacing(2)
        self._column.addWidget(self.empty)
        self._column.addStretch(1)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setWidget(inside)
        scroll.setAccessibleName("Problems")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(scroll)
        self.setFocusProxy(scroll)
        problems.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        for row in self.rows:
            self._column.removeWidget(row)
            row.hide()
            row.deleteLater()
        self.rows = []
        for entry in self._problems.entries[:MAX_ROWS]:
            row = ProblemRow(self._theme, entry, self._find_remedies(entry))
            self._column.insertWidget(self._column.count() - 1, row)
            self.rows.append(row)
        self.empty.setVisible(not self.rows)
