"""RUN CONFIGURATION: what is to be run, a configuration or a script, its sections, and the footer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QApplication, QButtonGroup, QPushButton, QWidget

from rankdeck.base.errors import Problem
from rankdeck.config.presets import PresetCard
from rankdeck_app.language import tr
from rankdeck_app.shell.side_bar import SideBarSection, SideBarView
from rankdeck_app.state.device_choice import DeviceChoice
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.hosts import GpusOfHosts
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.script_draft import ScriptDraft
from rankdeck_app.state.script_folder import ScriptFolder
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.all_devices import AllDevices
from rankdeck_app.views.launch.footer import LaunchFooter
from rankdeck_app.views.launch.model import ModelSection
from rankdeck_app.views.launch.script import ScriptSection
from rankdeck_app.views.launch.strategy import StrategySection
from rankdeck_app.widgets.layouts import push_button, row
from rankdeck_app.widgets.run_rows import field_of


class LaunchView(SideBarView):
    """`launch_requested` when the button is pressed, `preset_picked` with a card; its parts have signals of
    their own.
    """

    launch_requested = Signal()
    preset_picked = Signal(object)

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        script: ScriptDraft,
        folder: ScriptFolder,
        choice: DeviceChoice,
        hosts: GpusOfHosts,
        presets: Sequence[PresetCard],
        plan: DraftPlan,
        launch_keys: Callable[[], str],
    ) -> None:
        super().__init__(theme)
        self._draft, self._draft_of_script = draft, script
        self._seen: set[str | None] = set()
        self.set_header(self._make_switch(script))
        self.devices = AllDevices(theme, draft, choice, hosts)
        self.model = ModelSection(theme, draft, presets, self.preset_picked.emit)
        self.strategy = StrategySection(theme, draft)
        self.script = ScriptSection(theme, script, folder, hosts.here)
        header = self.add_section(tr("Devices"), self.devices).header
        for tool in self.devices.tools:
            header.tools.addWidget(tool, 1)
        of_script = self.add_section(tr("Script"), self.script)
        of_script.header.tools.addWidget(self.script.save_button)
        self._of_script: list[QWidget] = [of_script]
        self._of_configuration: list[QWidget] = [
            self.add_section(tr("Strategy"), self.strategy),
            self.add_section(tr("Model"), self.model),
        ]  # fmt: skip
        self.footer = LaunchFooter(theme, plan, self.launch_requested.emit, launch_keys)
        self.set_footer(self.footer)
        script.changed.connect(self._show_kind)
        self._show_kind()
        self.strategy.list.moved.connect(self._show_choice)

    # What is wrong

    def show_state(self, problem: Problem | None, busy: int, script: str | None) -> None:
        """See the footer's; what is wrong with devices or the strategy as a whole stands there too."""
        others = [] if self._draft_of_script.is_chosen else self._draft.problems
        num_more, where = len([one for one in others if one != problem]), self._where(problem)
        self.footer.show_state(problem, busy, script, num_more=num_more, where=where)
        told = [*([] if problem is None else [problem]), *others]
        self.devices.show_problems(told)
        self.strategy.show_problem(next((one for one in told if one.path == "strategy.use"), None))
        self._unfold(told)

    def _unfold(self, problems: Sequence[Problem]) -> None:
        """Fields of new problems come into sight, while what has the keyboard stays where it is."""
        paths = {problem.path for problem in problems}
        for problem in problems:
            if problem.path not in self._seen and (found := self._find(problem)) is not None:
                section, field = found
                self.scroll_area.keep_still(partial(self._open, section, field))
        self._seen = paths

    def _where(self, problem: Problem | None) -> str:
        if problem is None or self._find(problem) is not None:
            return tr("Show the Field")
        if problem.line is None:
            return tr("Open the Configuration")
        return tr("Go to Line {line}", line=problem.line)

    def _show_choice(self) -> None:
        """The strategy that was chosen elsewhere comes into sight, unless somebody is at work in the form."""
        focused = QApplication.focusWidget()
        if self.isVisible() and (focused is None or not self.scroll_area.isAncestorOf(focused)):
            self.scroll_area.show_whole(self.strategy.list, self.strategy.list.chosen_rect)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        QTimer.singleShot(0, self, self._show_choice)  # before the first layout nothing has its place

    def _find(self, problem: Problem) -> tuple[SideBarSection, QWidget] | None:
        """Where a problem can be mended here, and in which section; None where only the text can be."""
        of_devices, of_script, of_strategy, of_model = self.sections
        if (place := self.devices.place_of(problem)) is not None:
            return of_devices, place
        if problem.path == "strategy.use":
            return of_strategy, self.strategy.list
        if (line := self.script.line_of(problem)) is not None:
            return of_script, line.editor
        if (editor := self.model.editor_of(problem)) is not None:
            return of_model, editor
        options = self.strategy.options.fields
        if (name := field_of(problem, options)) is not None:
            return of_strategy, options[name].editor
        return None

    def _open(self, section: SideBarSection, field: QWidget) -> None:
        section.set_open(True)
        self.model.unfold(field)

    def reveal(self, problem: Problem) -> bool:
        """Open the section of the problem's field, scroll there, and give it the keyboard; False where there
        is none.
        """
        found = self._find(problem)
        if found is None:
            return False
        section, field = found
        self._open(section, field)
        self.scroll_area.show_whole(field)
        field.setFocus(Qt.FocusReason.ShortcutFocusReason)
        return True

    def _make_switch(self, script: ScriptDraft) -> QWidget:
        """Which of the two Launch starts."""
        switch, group = QWidget(), QButtonGroup(self)

        def segment(text: str, tooltip: str, is_script: bool) -> QPushButton:
            button = push_button(text, tooltip, lambda: script.choose(is_script), kind="segment", height=26)
            group.addButton(button)
            return button

        what = tr("Train a model under a strategy, planned before it runs")
        self.configuration_button = segment(tr("Configuration"), what, is_script=False)
        what = tr("Run your own script as it is")
        self.script_button = segment(tr("Script"), what, is_script=True)
        parts = ((self.configuration_button, 1), (self.script_button, 1))
        row(*parts, on=switch, margins=(12, 0, 12, 8), spacing=0)
        return switch

    def _show_kind(self) -> None:
        is_script = self._draft_of_script.is_chosen
        (self.script_button if is_script else self.configuration_button).setChecked(True)
        for section in self._of_script:
            section.setVisible(is_script)
        for section in self._of_configuration:
            section.setVisible(not is_script)

    def save_state(self) -> dict[str, Any]:
        return super().save_state() | {"more": self.model.more_button.isChecked()}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self.model.more_button.setChecked(bool(state.get("more")))
