"""The plan page: the memory that every strategy would need on every device, before anything starts.

Results arrive one by one and are updated when the form changes; a click on a row selects its strategy for the
draft. A plan for GPUs that the machine does not have is separate and does not affect the estimate in the
footer of the side bar. Read state/plan.py first, then table.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QHBoxLayout, QSizePolicy, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck.run import race as races
from rankdeck.run.bounds import RACE_STEPS
from rankdeck.run.plan_lines import FITS, PREDICTED, TIGHT, PlanLine, is_no_fit_advice
from rankdeck.run.race import duration_text
from rankdeck.run.verified import DIFFERS, EQUAL, NOTED
from rankdeck_app.language import tr, translate
from rankdeck_app.settings import Settings
from rankdeck_app.shell.page import Page
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.draft_race import DraftRace
from rankdeck_app.state.plan import DraftPlan, can_choose, choose_line
from rankdeck_app.theme import Theme
from rankdeck_app.views.plan import plan_chart_data
from rankdeck_app.views.plan.table import LegendKinds, PlanHeader, PlanLegend, PlanTable
from rankdeck_app.views.plan.target import TargetBox
from rankdeck_app.widgets.card import HEADER_HEIGHT, ChartCard
from rankdeck_app.widgets.controls import ElidedLabel, tool_button
from rankdeck_app.widgets.layouts import MIDDLE, clear_layout, column, push_button, row, text_label
from rankdeck_app.widgets.painting import IconWidget
from rankdeck_app.widgets.stat_strip import StatStrip
from rankdeck_app.widgets.time_text import age_text

PAGE_ID = "plan:"
FIT_BARS_SETTING = "plan.fit_bars"
_MIN_ONE_ROW_WIDTH = 800
"""Minimum page width in pixels at which the metrics fit beside the choice of target devices."""
_FIT_TOOLTIPS = {
    False: tr_noop("Scale bars to the data, to compare values far below the capacity"),
    True: tr_noop("Bars are scaled to the data. Click to scale them to the capacity."),
}
_VERIFY_TOOLTIP = tr_noop(
    "Rehearse two steps of each strategy, and compare them with the same steps on one device"
)


class PlanPage(Page):
    """Page of the draft's plan; there is only one, because there is only one draft.

    `trust_requested` is emitted if planning must run the draft's code, `race_requested` if the user wants to
    race the strategies that fit on the draft's devices. `race_opened` carries a race's folder, `winner_used`
    the entry that won the race.
    """

    breadcrumb_command = "config.show"
    trust_requested = Signal()
    race_requested = Signal()
    race_opened = Signal(object)
    winner_used = Signal(object)
    can_split = False

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        plan: DraftPlan,
        elsewhere: DraftPlan,
        raced: DraftRace,
        settings: Settings,
    ) -> None:
        """Create a page that shows `plan` and `raced` for the draft's devices, and `elsewhere` for devices
        that the user names on the page."""
        super().__init__(PAGE_ID, title=tr("VRAM Plan"), icon="layers")
        self._draft, self.settings = draft, settings
        self._draft_plan, self._target_plan, self._draft_race = plan, elsewhere, raced
        self.stat_strip = StatStrip(theme)
        self.stat_strip.setAccessibleName(tr("Plan summary"))
        self.table = PlanTable(theme)
        self.table.picked.connect(self._on_row_picked)
        self._legend = PlanLegend(theme, lambda kind: self.table.brush(kind, is_lead=True))
        self._header = PlanHeader(theme, lambda: self.table.viewport().width())
        body = QWidget()
        column(self._header, (self.table, 1), self._legend, on=body, spacing=4)
        self._card = ChartCard(
            tr("VRAM by strategy"), theme, body, lambda: plan_chart_data.csv_rows(self.plan)
        )
        self.fix_list = PlannedFixList(theme, self._choose_line)
        self._fixes_card = ChartCard(tr("What would help"), theme, self.fix_list)
        for card in (self._card, self._fixes_card):
            card.set_source(tr(PREDICTED))
        self._fixes_card.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.problem_label = text_label(tone="warning")
        self.reason_label = text_label(tone="dim")
        self.plan_button = push_button(
            tr("Plan Now"), tr("Predict the memory of every strategy"), self.plan_again
        )
        self.verify_button = push_button("", "", self.toggle_verification, height=28)
        self.trust_button = push_button(tr("Trust and Plan…"), "", self.trust_requested.emit)
        rows = (
            self._make_top_row(theme),
            row((self.problem_label, 1), self.trust_button),
            row(self.plan_button, (self.reason_label, 1), self.verify_button, spacing=8, align=MIDDLE),
            self._make_race_bar(),
            (self._card, 1),
            self._fixes_card,
        )
        column(*rows, on=self, margins=(16, 2, 16, 12), spacing=10)
        self.setFocusProxy(self.table)
        for source in (plan, elsewhere, raced):
            source.changed.connect(self.refresh)
        draft.changed.connect(self.refresh)

    def _make_race_bar(self) -> QWidget:
        """Create the bar that names the race whose measurements are in the table."""
        self.race_label = text_label(tone="dim")
        tooltip = tr("Show the race's measurements and whether losses agree")
        open_race = push_button(tr("Open the Race"), tooltip, self._open_race, height=24)
        make = tr("Use the winner's strategy in the configuration")
        self.winner_button = push_button(tr("Use the Winner"), make, self._use_winner, height=24)
        self._race_bar = QWidget()
        row((self.race_label, 1), open_race, self.winner_button, on=self._race_bar, spacing=8, align=MIDDLE)
        return self._race_bar

    def _open_race(self) -> None:
        if self._draft_race.path is not None:
            self.race_opened.emit(self._draft_race.path)

    def _use_winner(self) -> None:
        if self._draft_race.winner is not None:
            self.winner_used.emit(self._draft_race.winner)

    def _make_top_row(self, theme: Theme) -> QHBoxLayout:
        self.target_box = TargetBox(theme)
        self.target_box.chosen.connect(self._plan_for)
        self.fit_button = tool_button(theme, "zoom-in", "", self._toggle_fit)
        self.fit_button.setCheckable(True)
        self.fit_button.setFixedSize(28, 28)
        self.fit_button.setAccessibleName(tr("Fit bars to the data"))
        self.refresh_button = tool_button(theme, "refresh", tr("Plan again"), self.plan_again)
        self.refresh_button.setFixedSize(28, 28)
        label = text_label(tr("Plan for"), "dim", wrap=False)
        label.setBuddy(self.target_box)
        self.race_button = push_button(
            tr("Race What Fits"),
            tr("Train the same steps with each strategy and compare them"),
            self.race_requested.emit,
            height=28,
        )
        widgets = (label, self.target_box, self.fit_button, self.refresh_button, self.race_button)
        self._top_row = row((self.stat_strip, 1), row(*widgets, None, spacing=8, align=MIDDLE), spacing=8)
        return self._top_row

    @property
    def plan(self) -> DraftPlan:
        """The plan that is shown."""
        return self._draft_plan if self._target_plan.devices is None else self._target_plan

    def breadcrumbs(self) -> list[str]:
        return [self._draft.title, tr("VRAM plan")]

    def tooltip(self) -> str:
        return tr("Predicted memory of every strategy on every device")

    def save_state(self) -> dict[str, Any]:
        return {"devices": self._target_plan.devices}

    def restore_state(self, state: dict[str, Any]) -> None:
        devices = state.get("devices")
        if isinstance(devices, str):
            self._plan_for(devices)

    def plan_again(self) -> None:
        self.plan.plan_again()

    def verify(self) -> None:
        """Start verifying that every strategy of the plan gives the same result as training on one device;
        plan first if there are no results yet."""
        if not self.plan.lines and not self.plan.is_planning:
            self.plan.plan_again()
        self.plan.verification.start()

    def toggle_verification(self) -> None:
        if self.plan.verification.is_running:
            self.plan.verification.cancel()
        else:
            self.verify()

    def _show_verification(self) -> None:
        verification = self.plan.verification
        obstacle = "" if verification.is_running else verification.obstacle
        self.verify_button.setText(tr("Cancel Verification") if verification.is_running else tr("Verify"))
        what = tr("Stop and keep the results so far") if verification.is_running else tr(_VERIFY_TOOLTIP)
        self.verify_button.setToolTip(obstacle or what)
        self.verify_button.setEnabled(not obstacle)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._top_row.setDirection(down if self.width() < _MIN_ONE_ROW_WIDTH else right)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._update_visible_plan()
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._update_visible_plan()

    def _update_visible_plan(self) -> None:
        """Let only the visible plan recompute all strategies when the form changes."""
        for draft_plan in (self._draft_plan, self._target_plan):
            draft_plan.set_wants_all(draft_plan is self.plan and self.isVisible())
        self._draft_race.set_wanted(self.plan is self._draft_plan and self.isVisible())

    def _plan_for(self, devices: str | None) -> None:
        self._target_plan.set_devices(devices)
        self.target_box.show_devices(devices)
        self._update_visible_plan()
        self.refresh()

    def _toggle_fit(self) -> None:
        self.settings.set(FIT_BARS_SETTING, self.fit_button.isChecked())
        self.refresh()

    def _on_row_picked(self, key: tuple[str, str]) -> None:
        row = next((row for row in self.plan.rows if (row.strategy, row.label) == key), None)
        if row is not None and row.line is not None and can_choose(row.line):
            self._choose_line(row.line)

    def _choose_line(self, line: PlanLine) -> None:
        choose_line(self._draft, line)

    def refresh(self) -> None:
        """Show the current plan; a hidden page is updated when it is next shown."""
        if not self.isVisible():
            return
        plan = self.plan
        lines = plan.lines
        self.target_box.show_devices(self._target_plan.devices)
        is_fitted = self.settings.get(FIT_BARS_SETTING, bool)
        scale = plan_chart_data.scale(lines, is_fitted=is_fitted)
        has_capacity = plan_chart_data.scale(lines).capacity_bytes is not None
        self.fit_button.setChecked(is_fitted)
        self.fit_button.setEnabled(has_capacity)
        fitted_already = tr("No capacity is known, so bars are already scaled to the data")
        self.fit_button.setToolTip(tr(_FIT_TOOLTIPS[is_fitted]) if has_capacity else fitted_already)
        self._header.show_axis(plan_chart_data.axis_text(scale) if lines else "")
        self.stat_strip.set_data(plan_chart_data.stats(plan))
        self.race_button.setEnabled(plan is self._draft_plan)
        self.race_button.setText(race_button_text(plan))
        self._show_verification()
        raced = self._draft_race if plan is self._draft_plan else None
        self.table.set_rows(plan_chart_data.rows(plan, raced), scale)
        self.race_label.setText("" if raced is None else race_summary(raced, time.time()))
        self.winner_button.setVisible(raced is not None and raced.winner is not None)
        is_raced = bool(self.race_label.text())
        self._race_bar.setVisible(is_raced)
        self._card.set_source(tr("predicted, measured below") if is_raced else tr(PREDICTED))
        kinds = tuple(plan_chart_data.legend_kinds(lines, scale.end_bytes))
        self._legend.set_data(LegendKinds(kinds, has_capacity=scale.shows_capacity))
        self._legend.setVisible(bool(kinds))
        self._card.set_subtitle(*plan_chart_data.subtitle(plan))
        fixes = plan_chart_data.fixes(plan)
        self.fix_list.show_lines(fixes)
        self._fixes_card.setVisible(bool(fixes))
        self._fixes_card.setMaximumHeight(HEADER_HEIGHT + self.fix_list.height() + 10)
        is_unasked = not (lines or plan.is_planning or plan.is_complete or plan.problem)
        unasked = tr("No plan yet. Click Plan Now to predict the memory of every strategy.")
        texts = filter(None, (plan_chart_data.recommendation(plan), verification_summary(plan)))
        self.reason_label.setText(unasked if is_unasked else "\n".join(texts))
        self.reason_label.setVisible(bool(self.reason_label.text()))
        self.plan_button.setVisible(is_unasked)
        self.problem_label.setText(plan.problem)
        self.problem_label.setVisible(bool(plan.problem))
        self.trust_button.setVisible(bool(plan.problem) and plan.needs_trust)


# The planner's fixes: one changed option per line, the bytes that it saves, and a button that applies it.

MAX_SHOWN_FIXES = 4
ROW_HEIGHT = 24


class PlannedFixList(QWidget):
    """The planner's fixes. `on_take` is called with the plan line of the fix to apply."""

    def __init__(self, theme: Theme, on_take: Callable[[PlanLine], object]) -> None:
        super().__init__()
        self._theme = theme
        self._on_apply = on_take
        self.lines: list[PlanLine] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(4, 0, 4, 0)
        self._grid.setHorizontalSpacing(14)
        self._grid.setVerticalSpacing(0)
        self._grid.setColumnStretch(1, 1)

    def show_lines(self, lines: Sequence[PlanLine]) -> None:
        shown_lines = list(lines[:MAX_SHOWN_FIXES])
        if shown_lines == self.lines:
            return
        self.lines = shown_lines
        clear_layout(self._grid)
        self.setFixedHeight(ROW_HEIGHT * len(shown_lines))
        for number, line in enumerate(shown_lines):
            self._add_row(number, line)

    def _add_row(self, row: int, line: PlanLine) -> None:
        icon = IconWidget(self._theme, "lightbulb", "rankdeck.leadText", QSize(14, 14), 14)
        text = ElidedLabel(translate(line.advice, line.phrases) if line.advice else _changes_text(line))
        # Such a line only has advice, nothing to apply.
        if is_no_fit_advice(line):
            self._grid.addWidget(icon, row, 0)
            self._grid.addWidget(text, row, 1)
            return
        tooltip = tr("Change {settings} in the configuration", settings=_changes_text(line))
        button = push_button(tr("Apply"), tooltip, lambda: self._on_apply(line), kind="link")
        button.setAccessibleName(tr("Apply: {change}", change=text.text()))
        for column_index, widget in enumerate((icon, text, button)):
            self._grid.addWidget(widget, row, column_index)


def _changes_text(line: PlanLine) -> str:
    return ", ".join(f"{key} = {value}" for key, value in line.changes.items())


# The texts above the plan's table: the verification, the race whose measurements are shown, and its duration.


def verification_summary(plan: DraftPlan) -> str:
    """Return how many strategies match the single-device result and which do not; "" if none was verified."""
    verification = plan.verification
    by_outcome: dict[str | None, list[str]] = {EQUAL: [], NOTED: [], DIFFERS: []}
    for line in plan.lines:
        by_outcome.setdefault(verification.get_outcome(line), []).append(line.label)
    equal, noted, differing = (by_outcome[outcome] for outcome in (EQUAL, NOTED, DIFFERS))
    texts = []
    if total := len(equal) + len(noted) + len(differing):
        counts = {"count": len(equal), "total": total}
        texts.append(tr("Verified: the same result as one device for {count} of {total}.", **counts))
    if noted:
        texts.append(tr("Different as expected: {labels}.", labels="; ".join(noted)))
    if differing:
        texts.append(tr("Different: {labels}.", labels="; ".join(differing)))
    return " ".join(filter(None, (*texts, verification.failure)))


_STOPPED_TEXTS = {
    races.STOPPED: tr_noop(
        "Below each prediction: measurements from {race}, {age}, {where}. The race was stopped "
        "after {done} of {count} entries."
    ),
    races.LOST: tr_noop(
        "Below each prediction: measurements from {race}, {age}, {where}. The race ended "
        "unexpectedly after {done} of {count} entries."
    ),
}


def race_summary(raced: DraftRace, now_s: float) -> str:
    """Return a text that names the race whose measurements are shown and states their age; "" if there is no
    race."""
    race = raced.race
    if race is None:
        return ""
    where = (
        tr("in rehearsal, on this CPU")
        if race.is_rehearsal
        else tr("on GPUs (memory counts live tensors only)")
    )
    done, count = race.num_finished, len(race.unique_entries)
    if raced.is_running:
        return tr(
            "{race} is running: {done} of {count} entries done. Below each prediction: measurements {where}.",
            race=race.title,
            done=done,
            count=count,
            where=where,
        )
    age = age_text(max(0.0, now_s - (race.ended or race.began)))
    values = {"race": race.title, "age": age, "where": where}
    if race.outcome in _STOPPED_TEXTS:
        return tr(_STOPPED_TEXTS[race.outcome], done=done, count=count, **values)
    return tr("Below each prediction: measurements from {race}, {age}, {where}.", **values)


def race_button_text(plan: DraftPlan) -> str:
    """Return the race button's label, with the expected duration once the plan is complete."""
    raced = [line for line in plan.lines if line.verdict in (FITS, TIGHT)]
    if not plan.is_complete or not raced:
        return tr("Race What Fits")
    return tr("Race What Fits ({time})", time=translate(duration_text(raced, RACE_STEPS)))
