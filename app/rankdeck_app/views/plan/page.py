"""The plan: what every strategy would need of every device, before anything starts.

Answers come one by one and follow the form as it changes; a click on a row makes it the draft's strategy.
Planning for GPUs that one does not have is a question of its own and leaves the estimate beside the Launch
button alone. Read state/plan.py before, then table.py.
"""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QWidget

from rankdeck.config.gpu_models import GPU_MODELS
from rankdeck.run.plan_lines import PREDICTED, PlanLine
from rankdeck_app.shell.controls import tool_button
from rankdeck_app.shell.page import Page
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.plan import DraftPlan, can_choose, choose
from rankdeck_app.theme import Theme
from rankdeck_app.views.plan import plan_figures
from rankdeck_app.views.plan.advice import AdviceList
from rankdeck_app.views.plan.table import ColumnNames, PlanLegend, PlanTable, SeenKinds
from rankdeck_app.widgets.card import HEADER_HEIGHT, ChartCard
from rankdeck_app.widgets.controls import ComboBox
from rankdeck_app.widgets.layouts import MIDDLE, column, push_button, row, text_label
from rankdeck_app.widgets.stat_strip import StatStrip

PAGE_ID = "plan:"
OWN_DEVICES = "This run's devices"
_OFFERED = ("RTX-4090", "A100-80GB", "H100-80GB")


class PlanPage(Page):
    """There is one draft, so one page. `trust_asked`: the draft's own code would have to run.
    `race_asked`: what fits is to be raced on the draft's own devices."""

    trust_asked = Signal()
    race_asked = Signal()
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
        body = QWidget()
        column(self._names, (self.table, 1), self._legend, on=body, spacing=4)
        self._card = ChartCard("VRAM by strategy", theme, body, lambda: plan_figures.csv_rows(self.plan))
        self.advice = AdviceList(theme, self._take)
        self._advice_card = ChartCard("What would help", theme, self.advice)
        for card in (self._card, self._advice_card):
            card.set_source(PREDICTED)
        self._advice_card.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.problem = text_label(tone="warning")
        self.reason = text_label(tone="dim")
        self.trust_button = push_button("Trust and Plan…", "", self.trust_asked.emit)
        parts = (
            self._head(theme),
            row((self.problem, 1), self.trust_button),
            self.reason,
            (self._card, 1),
            self._advice_card,
        )
        column(*parts, on=self, margins=(16, 2, 16, 12), spacing=10)
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
        self.refresh_button = tool_button(theme, "refresh", "Plan again", self.ask_again)
        self.refresh_button.setFixedSize(25, 25)
        label = text_label("Plan for", "dim", wrap=False)
        label.setBuddy(self.target)
        self.race_button = push_button(
            "Race What Fits", "Train the same steps under each, and compare", self.race_asked.emit, height=25
        )
        parts = (label, self.target, self.refresh_button, self.race_button)
        return row((self.strip, 1), *parts, spacing=8, align=MIDDLE)

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
        self.race_button.setEnabled(plan is self._here)
        self.table.set_rows(plan_figures.rows(plan), scale)
        kinds = tuple(plan_figures.legend_kinds(lines, scale.end_bytes))
        self._legend.set_figure(SeenKinds(kinds, has_capacity=scale.capacity_bytes is not None))
        self._card.set_subtitle(*plan_figures.subtitle(plan))
        advice = plan_figures.advice(plan)
        self.advice.show_lines(advice)
        self._advice_card.setVisible(bool(advice))
        self._advice_card.setMaximumHeight(HEADER_HEIGHT + self.advice.height() + 10)
        self.reason.setText(plan_figures.recommendation(plan))
        self.reason.setVisible(bool(self.reason.text()))
        self.problem.setText(plan.problem)
        self.problem.setVisible(bool(plan.problem))
        self.trust_button.setVisible(bool(plan.problem) and plan.needs_trust)


def _offered() -> list[str]:
    """A few GPUs by name, four and eight of each."""
    known = [model.name for model in GPU_MODELS if model.name in _OFFERED]
    return [f"{count} x {name}" for name in known for count in (4, 8)]
