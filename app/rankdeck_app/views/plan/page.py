"""The plan: what every strategy would need of every device, before anything starts.

Answers come one by one and follow the form as it changes; a click on a row makes it the draft's strategy.
Planning for GPUs that one does not have is a question of its own and leaves the estimate beside the Launch
button alone. Read state/plan.py before, then table.py.
"""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from rankdeck.config.gpu_models import GPU_MODELS
from rankdeck.run.plan_lines import PREDICTED, PlanLine
from rankdeck_app.shell.page import Page
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.plan import DraftPlan, can_choose, choose
from rankdeck_app.theme import Theme
from rankdeck_app.views.plan import plan_figures
from rankdeck_app.views.plan.advice import AdviceList
from rankdeck_app.views.plan.table import ColumnNames, PlanLegend, PlanTable, SeenKinds
from rankdeck_app.widgets.card import HEADER_HEIGHT, ChartCard
from rankdeck_app.widgets.controls import ComboBox
from rankdeck_app.widgets.stat_strip import StatStrip

PAGE_ID = "plan:"
OWN_DEVICES = "This run's devices"
_OFFERED = ("RTX-4090", "A100-80GB", "H100-80GB")


class PlanPage(Page):
    """There is one draft, so one page. `trust_asked`: the draft's own code would have to run."""

    trust_asked = Signal()
    can_split = False

    def __init__(self, theme: Theme, draft: Draft, plan: DraftPlan, elsewhere: DraftPlan) -> None:
        """`plan` is for the draft's devices, `elsewhere` for those that are named on the page."""
        super().__init__(PAGE_ID, title="VRAM Plan", icon="layers")
        self._draft = draft
        self._here, self._elsewhere = plan, elsewhere
        self.strip = StatStrip(theme)
        self.strip.setAccessibleName("The plan in figures")
        self.table = PlanTable(theme)
        self.table.picked.connect(self._pick)
        self._legend = PlanLegend(theme, lambda kind: self.table.brush(kind, leads=True))
        self._names = ColumnNames(theme, lambda: self.table.viewport().width())
        self._card = ChartCard("VRAM by strategy", theme)
        self._card.set_body(self._body(), lambda: plan_figures.csv_rows(self.plan))
        self._card.set_source(PREDICTED)
        self.advice = AdviceList(theme, self._take)
        self._advice_card = ChartCard("What would help", theme)
        self._advice_card.set_body(self.advice)
        self._advice_card.set_source(PREDICTED)
        self._advice_card.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.problem = QLabel()
        self.problem.setWordWrap(True)
        self.problem.setTextFormat(Qt.TextFormat.PlainText)
        self.problem.setProperty("tone", "warning")
        self.trust_button = QPushButton("Trust and Plan…")
        self.trust_button.clicked.connect(self.trust_asked)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 2, 16, 12)
        layout.setSpacing(10)
        layout.addLayout(self._head(theme))
        layout.addLayout(_row(self.problem, self.trust_button))
        layout.addWidget(self._card, 1)
        layout.addWidget(self._advice_card)
        self.setFocusProxy(self.table)
        for one in (plan, elsewhere):
            one.changed.connect(self.refresh)
        draft.changed.connect(self.refresh)

    def _head(self, theme: Theme) -> QHBoxLayout:
        self.target = ComboBox(theme)
        self.target.setEditable(True)
        self.target.setInsertPolicy(ComboBox.InsertPolicy.NoInsert)
        self.target.addItems([OWN_DEVICES, *_offered()])
        self.target.setMinimumWidth(170)
        self.target.setAccessibleName("Plan for")
        self.target.setToolTip('Plan for GPUs that you do not have: "8 x A100-80GB", "4 x 24GiB"')
        self.target.activated.connect(lambda _index: self._plan_for())
        edit = self.target.lineEdit()
        assert edit is not None
        edit.returnPressed.connect(self._plan_for)
        self.refresh_button = QToolButton()
        self.refresh_button.setProperty("kind", "tool")
        self.refresh_button.setIcon(theme.icon("refresh"))
        self.refresh_button.setIconSize(QSize(16, 16))
        self.refresh_button.setToolTip("Plan again")
        self.refresh_button.setAccessibleName("Plan again")
        self.refresh_button.clicked.connect(self.ask_again)
        label = QLabel("Plan for")
        label.setProperty("tone", "dim")
        label.setBuddy(self.target)
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self.strip, 1)
        for widget in (label, self.target, self.refresh_button):
            row.addWidget(widget, 0, Qt.AlignmentFlag.AlignVCenter)
        return row

    def _body(self) -> QWidget:
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(self._names)
        column.addWidget(self.table, 1)
        column.addWidget(self._legend)
        return body

    @property
    def plan(self) -> DraftPlan:
        """The one on show."""
        return self._here if self._elsewhere.devices is None else self._elsewhere

    def breadcrumbs(self) -> list[str]:
        return [self._draft.origin or self._draft.name, "VRAM plan"]

    def tooltip(self) -> str:
        return "What every strategy would need of every device (predicted)"

    def save_state(self) -> dict[str, Any]:
        return {"devices": self._elsewhere.devices}

    def restore_state(self, state: dict[str, Any]) -> None:
        devices = state.get("devices")
        if isinstance(devices, str):
            self.target.setEditText(devices)
            self._plan_for()

    def ask_again(self) -> None:
        self.plan.ask_again()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._want()
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._want()

    def _want(self) -> None:
        """Only the plan on show follows the form with all strategies."""
        for one in (self._here, self._elsewhere):
            one.want_all(one is self.plan and self.isVisible())

    def _plan_for(self) -> None:
        text = self.target.currentText().strip()
        is_own = text in ("", OWN_DEVICES)
        self._elsewhere.set_devices(None if is_own else text)
        if is_own:
            self.target.setCurrentIndex(0)
        self._want()
        self.refresh()

    def _pick(self, key: tuple[str, str]) -> None:
        row = next((row for row in self.plan.rows if (row.strategy, row.label) == key), None)
        if row is not None and row.line is not None and can_choose(row.line):
            self._take(row.line)

    def _take(self, line: PlanLine) -> None:
        choose(self._draft, line)

    def refresh(self) -> None:
        """Show what the plan knows now; what nobody sees waits until it is shown."""
        if not self.isVisible():
            return
        plan = self.plan
        lines = plan.lines
        scale = plan_figures.scale(lines)
        self.strip.set_figure(plan_figures.stats(plan))
        self.table.set_rows(plan_figures.rows(plan), scale)
        kinds = tuple(plan_figures.legend_kinds(lines, scale.end_bytes))
        self._legend.set_figure(SeenKinds(kinds, has_capacity=scale.capacity_bytes is not None))
        self._card.set_subtitle(*plan_figures.subtitle(plan))
        advice = plan_figures.advice(plan)
        self.advice.show_lines(advice)
        self._advice_card.setVisible(bool(advice))
        self._advice_card.setMaximumHeight(HEADER_HEIGHT + self.advice.height() + 10)
        self.problem.setText(plan.problem)
        self.problem.setVisible(bool(plan.problem))
        self.trust_button.setVisible(bool(plan.problem) and plan.needs_trust)


def _offered() -> list[str]:
    """A few GPUs by name, four and eight of each."""
    known = [model.name for model in GPU_MODELS if model.name in _OFFERED]
    return [f"{count} x {name}" for name in known for count in (4, 8)]


def _row(*widgets: QWidget) -> QHBoxLayout:
    row = QHBoxLayout()
    row.setContentsMargins(0, 0, 0, 0)
    for place, widget in enumerate(widgets):
        row.addWidget(widget, 1 if place == 0 else 0)
    return row
