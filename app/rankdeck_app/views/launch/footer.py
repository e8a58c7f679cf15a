"""The fixed footer of the launch side bar: the memory estimate and the Launch button.

If the draft has problems, the first one replaces the estimate, and a click on Launch goes to that problem. A
click on the estimate opens the plan of every strategy. For a script, no memory is predicted, and the footer
describes the script that would be started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from rankdeck.base.errors import Problem, format_fix
from rankdeck_app.language import tr, translate
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.plan_text import estimate_texts, has_fit_problem
from rankdeck_app.theme import Theme, set_style_properties
from rankdeck_app.widgets.controls import ClampedLabel
from rankdeck_app.widgets.layouts import TOP, column, push_button, row
from rankdeck_app.widgets.painting import LEFT, RIGHT, IconWidget, paint_text


class EstimateLabel(ClampedLabel):
    """The estimate in two lines: the predicted memory, and whether it fits. `opened` is emitted on a click,
    Enter or Space."""

    opened = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__(2, min_lines=2)
        self._theme = theme
        self._memory_text = self._verdict_text = ""
        self._is_trouble = False
        self.setProperty("tone", "dim")
        self.set_clickable(True)

    def set_clickable(self, is_link: bool) -> None:
        """Set whether a click opens the plan."""
        shapes = Qt.CursorShape
        self.setCursor(shapes.PointingHandCursor if is_link else shapes.ArrowCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus if is_link else Qt.FocusPolicy.NoFocus)

    def show_text(self, text: str) -> None:
        # paintEvent draws an estimate only if there is a memory text.
        self._memory_text = ""
        super().show_text(text)

    def show_estimate(self, memory_text: str, fits: str, *, is_trouble: bool) -> None:
        super().show_text(tr("Predicted: {holds}. {fits}.", holds=memory_text, fits=fits))
        self._memory_text, self._verdict_text, self._is_trouble = memory_text, fits, is_trouble
        lines = (tr("Predicted peak: {holds}", holds=memory_text), fits, tr("Click to see every strategy"))
        self.setToolTip("\n".join(lines))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._memory_text:
            super().paintEvent(event)
        else:
            self._paint_estimate()
        if self.hasFocus():
            painter = QPainter(self)
            painter.setPen(self._theme.color("focusBorder"))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
            painter.end()

    def _paint_estimate(self) -> None:
        """Paint "Predicted" at the left end of the first line, the memory at its right end, and the verdict
        on the second line."""
        painter = QPainter(self)
        color, metrics = self._theme.color, self.fontMetrics()
        line = metrics.lineSpacing()
        first, second = self.rect().adjusted(0, 0, 0, -line - 1), self.rect().adjusted(0, line + 1, 0, 0)
        elide, dim = Qt.TextElideMode.ElideRight, color("descriptionForeground")
        verdict, where, predicted = self._verdict_text, LEFT, tr("Predicted")
        # If both do not fit, the word moves to the second line, so that the numbers are not cut off.
        if metrics.horizontalAdvance(f"{predicted}  {self._memory_text}") <= self.width():
            paint_text(painter, first, predicted, dim, 12)
            where = RIGHT
        else:
            verdict = f"{predicted} · {verdict[:1].lower()}{verdict[1:]}"
        paint_text(painter, first, self._memory_text, color("foreground"), 12, where, elide=elide)
        ink = color("rankdeck.leadText") if self._is_trouble else dim
        paint_text(painter, second, verdict, ink, 12, elide=elide)
        painter.end()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        # The focus policy tells whether `set_clickable` has made this a link.
        if event.button() == Qt.MouseButton.LeftButton and self.focusPolicy() != Qt.FocusPolicy.NoFocus:
            self.opened.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.opened.emit()
        else:
            super().keyPressEvent(event)


class LaunchFooter(QWidget):
    """The footer. `show_state` sets the problem that blocks a launch and the number of pending launches.

    `fix_requested` and `location_requested` are emitted by that problem's banner.
    """

    fix_requested = Signal(object)
    location_requested = Signal(object)

    def __init__(
        self, theme: Theme, plan: DraftPlan, on_launch: Callable[[], object], keys: Callable[[], str]
    ) -> None:
        super().__init__()
        self._keys = keys
        self._theme = theme
        self._plan = plan
        self._problem: Problem | None = None
        self._script: str | None = None
        self.estimate = EstimateLabel(theme)
        self.blocker_banner = BlockerBanner(theme)
        self.blocker_banner.fix_requested.connect(self.fix_requested)
        self.blocker_banner.location_requested.connect(self.location_requested)
        self.launch_button = push_button("", "", on_launch, kind="primary", height=30)
        self.launch_button.setIconSize(QSize(14, 14))
        column(
            self.estimate,
            self.blocker_banner,
            self.launch_button,
            on=self,
            margins=(12, 8, 12, 12),
            spacing=6,
        )
        plan.changed.connect(self._show_estimate)
        self.show_state(None)

    def show_state(
        self,
        problem: Problem | None,
        busy: int = 0,
        script: str | None = None,
        *,
        num_others: int = 0,
        location_text: str = "",
    ) -> None:
        """Show the state of the launch.

        `problem` blocks the launch, and `num_others` counts further problems; `location_text` labels the
        button that goes to the problem. `busy` is the number of pending launches; `script` describes the
        script that would start, if any.
        """
        self._problem, self._script = problem, script
        if problem is not None:
            self.blocker_banner.show_problem(problem, num_others, location_text)
        self.blocker_banner.setVisible(problem is not None)
        self.estimate.setVisible(problem is None)
        self._show_estimate()
        keys = self._keys()
        text = tr("Launch") if not busy else tr("Launching…")
        self.launch_button.setText(f" {text}{'   ' + keys if keys else ''}")
        is_free = problem is None
        # Not disabled: a click while a problem blocks the launch goes to the problem.
        set_style_properties(self.launch_button, kind="primary" if is_free else "")
        ink = "button.foreground" if is_free else "disabledForeground"
        self.launch_button.setIcon(self._theme.icon("play", ink))
        self.launch_button.setAccessibleName(text)
        self.launch_button.setAccessibleDescription("" if problem is None else problem.sentence)
        start = tr("Start this run; other runs continue")
        if keys:
            start = tr("Start this run ({keys}); other runs continue", keys=keys)
        self.launch_button.setToolTip(start if problem is None else problem.sentence)

    def _show_estimate(self) -> None:
        """Show the chosen strategy's estimate, or why there is none."""
        plan = self._plan
        self.estimate.set_clickable(self._script is None)
        if self._script is not None:
            self.estimate.show_text(self._script)
        elif plan.chosen_line is not None:
            _, recommended, _ = plan.marks
            memory_text, fits = estimate_texts(plan.chosen_line, recommended)
            # A strategy that computes something else is worse than one that may not fit.
            differs = plan.verification.is_different(plan.chosen_line)
            fits = plan.verification.get_text(plan.chosen_line) if differs else fits
            self.estimate.show_estimate(
                memory_text, fits, is_trouble=differs or has_fit_problem(plan.chosen_line)
            )
        elif plan.is_planning:
            self.estimate.show_text(tr("No estimate yet: planning…"))
        else:
            reason = plan.problem or plan.chosen_failure
            why = tr("No estimate yet: {reason}", reason=reason) if reason else tr("No estimate yet")
            self.estimate.show_text(why)


# The blocker: the problem's sentence, a button that applies the fix if there is one, and a button that goes
# to where it can be fixed.

MAX_LINES = 8


class BlockerBanner(QWidget):
    """Banner for the problem that blocks a launch. `fix_requested` carries the configuration changes that fix
    it, `location_requested` the problem."""

    fix_requested = Signal(object)
    location_requested = Signal(object)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._problem: Problem | None = None
        self.message = ClampedLabel(MAX_LINES)
        set_style_properties(self.message, tone="error")
        self.fix_button = push_button(tr("Fix It"), "", lambda: self._emit(self.fix_requested), height=24)
        show = tr("Show It")
        self.location_button = push_button(
            show, "", lambda: self._emit(self.location_requested), kind="link", height=20
        )
        symbol = IconWidget(theme, "error", "errorForeground", QSize(16, 16), 14)
        buttons = column(self.fix_button, row(self.location_button, None), spacing=4)
        column(row(symbol, (self.message, 1), spacing=6, align=TOP), buttons, on=self, spacing=6)

    def show_problem(self, problem: Problem, num_more: int, where: str) -> None:
        """Show the problem and how many more there are; `where` labels the button that goes to the
        problem."""
        self._problem = problem
        text = problem.sentence
        if num_more:
            text = tr(
                "{problem} ({n} more in Problems)",
                "{problem} ({n} more in Problems)",
                num_more,
                problem=text,
            )
        self.message.show_text(text)
        self.fix_button.setVisible(bool(problem.cure))
        # Full keys are too long for the side bar; the tooltip has them.
        self.fix_button.setText(translate(format_fix(_short_keys(problem.cure))))
        fix = translate(format_fix(problem.cure))
        self.fix_button.setToolTip(tr("{fix} in the configuration", fix=fix))
        self.location_button.setText(where)
        self.location_button.setToolTip(problem.path or "")

    def _emit(self, signal: Any) -> None:
        if self._problem is not None:
            signal.emit(self._problem.cure if signal is self.fix_requested else self._problem)


def _short_keys(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes with short keys: the last part of a key, such as 'clip_norm', or the part before
    `.use`, such as 'optimizer' for train.optimizer.use."""
    return {key.removesuffix(".use").rpartition(".")[2]: value for key, value in changes.items()}
