"""The foot of the side bar that never scrolls away: what is predicted before a launch, and the button.

While the draft is wrong its first problem stands in the place of the estimate, and the button goes to what
is wrong. A click on the estimate opens the plan of every strategy. Of a script nothing is predicted: what
would be started stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from rankdeck.base.errors import Problem, fix_in_words
from rankdeck_app.language import spoken, tr
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.plan_words import estimate, is_trouble
from rankdeck_app.theme import Theme, set_look
from rankdeck_app.widgets.controls import FewLines
from rankdeck_app.widgets.layouts import TOP, column, push_button, row
from rankdeck_app.widgets.painting import LEFT, RIGHT, Symbol, paint_text


class Estimate(FewLines):
    """The two lines of the planner: what the devices would hold, and whether that fits. `opened` when it is
    clicked, or has the keyboard and Enter is pressed.
    """

    opened = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__(2, least=2)
        self._theme = theme
        self._holds = self._fits = ""
        self._is_trouble = False
        self.setProperty("tone", "dim")
        self.set_link(True)

    def set_link(self, is_link: bool) -> None:
        """Whether there is something behind it to be opened."""
        shapes = Qt.CursorShape
        self.setCursor(shapes.PointingHandCursor if is_link else shapes.ArrowCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus if is_link else Qt.FocusPolicy.NoFocus)

    def show_text(self, text: str) -> None:
        self._holds = ""
        super().show_text(text)

    def show_estimate(self, holds: str, fits: str, *, is_trouble: bool) -> None:
        super().show_text(tr("Predicted: {holds}. {fits}.", holds=holds, fits=fits))
        self._holds, self._fits, self._is_trouble = holds, fits, is_trouble
        lines = (tr("Predicted peak: {holds}", holds=holds), fits, tr("Click for every strategy"))
        self.setToolTip("\n".join(lines))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._holds:
            super().paintEvent(event)
        else:
            self._paint_estimate()
        if self.hasFocus():
            painter = QPainter(self)
            painter.setPen(self._theme.color("focusBorder"))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
            painter.end()

    def _paint_estimate(self) -> None:
        """ "Predicted" at the left of the first line, its figures at the right; the verdict below."""
        painter = QPainter(self)
        color, metrics = self._theme.color, self.fontMetrics()
        line = metrics.lineSpacing()
        first, second = self.rect().adjusted(0, 0, 0, -line - 1), self.rect().adjusted(0, line + 1, 0, 0)
        elide, dim = Qt.TextElideMode.ElideRight, color("descriptionForeground")
        verdict, where, predicted = self._fits, LEFT, tr("Predicted")
        if metrics.horizontalAdvance(f"{predicted}  {self._holds}") <= self.width():
            paint_text(painter, first, predicted, dim, 12)
            where = RIGHT
        else:
            verdict = f"{predicted} · {verdict[:1].lower()}{verdict[1:]}"
        paint_text(painter, first, self._holds, color("foreground"), 12, where, elide=elide)
        ink = color("rankdeck.leadText") if self._is_trouble else dim
        paint_text(painter, second, verdict, ink, 12, elide=elide)
        painter.end()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self.focusPolicy() != Qt.FocusPolicy.NoFocus:
            self.opened.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.opened.emit()
        else:
            super().keyPressEvent(event)


class LaunchFooter(QWidget):
    """`show_state` is told what stands in the way, and what the launch is busy with. `fix_taken` and
    `asked_where` are the blocker's.
    """

    fix_taken = Signal(object)
    asked_where = Signal(object)

    def __init__(
        self, theme: Theme, plan: DraftPlan, on_launch: Callable[[], object], keys: Callable[[], str]
    ) -> None:
        super().__init__()
        self._keys = keys
        self._theme = theme
        self._plan = plan
        self._problem: Problem | None = None
        self._script: str | None = None
        self.estimate = Estimate(theme)
        self.blocker = Blocker(theme)
        self.blocker.fix_taken.connect(self.fix_taken)
        self.blocker.asked_where.connect(self.asked_where)
        self.button = push_button("", "", on_launch, kind="primary", height=30)
        self.button.setIconSize(QSize(14, 14))
        column(self.estimate, self.blocker, self.button, on=self, margins=(12, 8, 12, 12), spacing=6)
        plan.changed.connect(self._show_estimate)
        self.show_state(None)

    def show_state(
        self,
        problem: Problem | None,
        busy: int = 0,
        script: str | None = None,
        *,
        num_more: int = 0,
        where: str = "",
    ) -> None:
        """`problem` is why nothing can be launched now, before `num_more` others, and `where` says what shows
        where it can be fixed; `busy` counts launches that have just begun; `script` says what is started, if
        that is a script.
        """
        self._problem, self._script = problem, script
        if problem is not None:
            self.blocker.show_problem(problem, num_more, where)
        self.blocker.setVisible(problem is not None)
        self.estimate.setVisible(problem is None)
        self._show_estimate()
        keys = self._keys()
        text = tr("Launch") if not busy else tr("Launching…")
        self.button.setText(f" {text}{'   ' + keys if keys else ''}")
        is_free = problem is None
        set_look(self.button, kind="primary" if is_free else "")
        ink = "button.foreground" if is_free else "disabledForeground"
        self.button.setIcon(self._theme.icon("play", ink))
        self.button.setAccessibleName(text)
        self.button.setAccessibleDescription("" if problem is None else problem.sentence)
        start = tr("Start this run; other runs go on")
        if keys:
            start = tr("Start this run ({keys}); other runs go on", keys=keys)
        self.button.setToolTip(start if problem is None else problem.sentence)

    def _show_estimate(self) -> None:
        """The answer about the chosen strategy, else why there is none."""
        plan = self._plan
        self.estimate.set_link(self._script is None)
        if self._script is not None:
            self.estimate.show_text(self._script)
        elif plan.chosen is not None:
            _, recommended, _ = plan.marks
            holds, fits = estimate(plan.chosen, recommended)
            differs = plan.verification.differs(plan.chosen)
            fits = plan.verification.text_of(plan.chosen) if differs else fits
            self.estimate.show_estimate(holds, fits, is_trouble=differs or is_trouble(plan.chosen))
        elif plan.is_asking:
            self.estimate.show_text(tr("No estimate yet: planning…"))
        else:
            reason = plan.problem or plan.chosen_failure
            why = tr("No estimate yet: {reason}", reason=reason) if reason else tr("No estimate yet")
            self.estimate.show_text(why)


# Why nothing can be launched: the whole sentence, a button that fixes it where that is known, and one
# that goes to where it can be fixed.

MOST_LINES = 8


class Blocker(QWidget):
    """`fix_taken` carries the changes, `asked_where` the problem."""

    fix_taken = Signal(object)
    asked_where = Signal(object)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._problem: Problem | None = None
        self.words = FewLines(MOST_LINES)
        set_look(self.words, tone="error")
        self.fix = push_button(tr("Fix It"), "", lambda: self._tell(self.fix_taken), height=24)
        show = tr("Show It")
        self.where = push_button(show, "", lambda: self._tell(self.asked_where), kind="link", height=20)
        symbol = Symbol(theme, "error", "errorForeground", QSize(16, 16), 14)
        buttons = column(self.fix, row(self.where, None), spacing=4)
        column(row(symbol, (self.words, 1), spacing=6, align=TOP), buttons, on=self, spacing=6)

    def show_problem(self, problem: Problem, num_more: int, where: str) -> None:
        """`num_more` others wait behind it; `where` says what the second button shows."""
        self._problem = problem
        text = problem.sentence
        if num_more:
            text = tr(
                "{problem} ({n} more in Problems)",
                "{problem} ({n} more in Problems)",
                num_more,
                problem=text,
            )
        self.words.show_text(text)
        self.fix.setVisible(bool(problem.cure))
        self.fix.setText(spoken(fix_in_words(_short(problem.cure))))
        fix = spoken(fix_in_words(problem.cure))
        self.fix.setToolTip(tr("{fix} in the configuration", fix=fix))
        self.where.setText(where)
        self.where.setToolTip(problem.path or "")

    def _tell(self, signal: Any) -> None:
        if self._problem is not None:
            signal.emit(self._problem.cure if signal is self.fix_taken else self._problem)


def _short(changes: Mapping[str, Any]) -> dict[str, Any]:
    """With the last name of each key: 'clip_norm', and 'optimizer' for train.optimizer.use."""
    return {key.removesuffix(".use").rpartition(".")[2]: value for key, value in changes.items()}
