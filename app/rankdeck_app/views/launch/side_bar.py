"""The RUN CONFIGURATION side bar: a switch between configuration and script, the sections of each, and the
footer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QFontMetrics, QShowEvent
from PySide6.QtWidgets import QApplication, QButtonGroup, QPushButton, QWidget

from rankdeck.base.errors import Problem
from rankdeck.config.presets import Preset
from rankdeck_app.language import tr
from rankdeck_app.shell.side_bar import SideBarSection, SideBarView
from rankdeck_app.state.device_choice import DeviceChoice
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.host_gpus import HostGpus
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.script_draft import ScriptDraft
from rankdeck_app.state.script_folder import ScriptFolder
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.devices_section import DevicesSection
from rankdeck_app.views.launch.footer import LaunchFooter
from rankdeck_app.views.launch.script_section import ScriptSection
from rankdeck_app.widgets.controls import ComboBox
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.form import FormRow
from rankdeck_app.widgets.layouts import column, push_button, row, text_label
from rankdeck_app.widgets.option_rows import find_field, model_rows, name_row, strategy_rows
from rankdeck_app.widgets.strategy_list import ROW_HEIGHT, StrategyList


class LaunchView(SideBarView):
    """The side bar. `launch_requested` is emitted by the Launch button, `preset_picked` carries the chosen
    preset; the parts of the side bar have further signals."""

    launch_requested = Signal()
    preset_picked = Signal(object)

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        script: ScriptDraft,
        folder: ScriptFolder,
        choice: DeviceChoice,
        hosts: HostGpus,
        presets: Sequence[Preset],
        plan: DraftPlan,
        launch_keys: Callable[[], str],
    ) -> None:
        super().__init__(theme)
        self._draft, self._script_draft = draft, script
        self._known_paths: set[str | None] = set()
        self.set_header(self._make_mode_switch(script))
        self.devices = DevicesSection(theme, draft, choice, hosts)
        self.model = ModelSection(theme, draft, presets, self.preset_picked.emit)
        self.strategy = StrategySection(theme, draft)
        self.script = ScriptSection(theme, script, folder, hosts.local)
        header = self.add_section(tr("Devices"), self.devices).header
        for tool in self.devices.tools:
            header.tools.addWidget(tool, 1)
        of_script = self.add_section(tr("Script"), self.script)
        of_script.header.tools.addWidget(self.script.save_button)
        self._script_sections: list[QWidget] = [of_script]
        self._configuration_sections: list[QWidget] = [
            self.add_section(tr("Strategy"), self.strategy),
            self.add_section(tr("Model"), self.model),
        ]  # fmt: skip
        self.footer = LaunchFooter(theme, plan, self.launch_requested.emit, launch_keys)
        self.set_footer(self.footer)
        script.changed.connect(self._show_mode)
        self._show_mode()
        self.strategy.list.choice_changed.connect(self._show_chosen_strategy)

    # Problems

    def show_state(self, problem: Problem | None, busy: int, script: str | None) -> None:
        """Show the launch state in the footer, and problems with the devices or the strategy in the DEVICES
        and STRATEGY sections."""
        others = [] if self._script_draft.is_chosen else self._draft.problems
        num_more, where = len([other for other in others if other != problem]), self._location_text(problem)
        self.footer.show_state(problem, busy, script, num_others=num_more, location_text=where)
        problems = [*([] if problem is None else [problem]), *others]
        self.devices.show_problems(problems)
        self.strategy.show_problem(next((other for other in problems if other.path == "strategy.use"), None))
        self._reveal_new_problems(problems)

    def _reveal_new_problems(self, problems: Sequence[Problem]) -> None:
        """Open the sections that contain new problems, keeping the focused widget in place on the screen."""
        paths = {problem.path for problem in problems}
        for problem in problems:
            # Only for new problems: a section that the user has closed since stays closed.
            if problem.path not in self._known_paths and (location := self._find_field(problem)) is not None:
                section, field = location
                self.scroll_area.preserve_scroll(partial(self._open_section, section, field))
        self._known_paths = paths

    def _location_text(self, problem: Problem | None) -> str:
        if problem is None or self._find_field(problem) is not None:
            return tr("Show the Field")
        if problem.line is None:
            return tr("Open the Configuration")
        return tr("Go to Line {line}", line=problem.line)

    def _show_chosen_strategy(self) -> None:
        """Scroll to the chosen strategy, unless a widget inside the scroll area has the focus."""
        focused = QApplication.focusWidget()
        if self.isVisible() and (focused is None or not self.scroll_area.isAncestorOf(focused)):
            self.scroll_area.scroll_to(self.strategy.list, self.strategy.list.selected_rect)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        QTimer.singleShot(
            0, self, self._show_chosen_strategy
        )  # before the first layout, widgets have no position

    def _find_field(self, problem: Problem) -> tuple[SideBarSection, QWidget] | None:
        """Return the section and the field in which a problem can be fixed; None if it can only be fixed in
        the TOML text."""
        of_devices, of_script, of_strategy, of_model = self.sections
        if (widget := self.devices.find_widget(problem)) is not None:
            return of_devices, widget
        if problem.path == "strategy.use":
            return of_strategy, self.strategy.list
        if (line := self.script.find_line(problem)) is not None:
            return of_script, line.editor
        if (editor := self.model.find_editor(problem)) is not None:
            return of_model, editor
        options = self.strategy.options.fields
        if (name := find_field(problem, options)) is not None:
            return of_strategy, options[name].editor
        return None

    def _open_section(self, section: SideBarSection, field: QWidget) -> None:
        section.set_open(True)
        self.model.reveal(field)

    def reveal(self, problem: Problem) -> bool:
        """Open the section of the problem's field, scroll to the field and focus it. Return False if the
        problem has no field."""
        location = self._find_field(problem)
        if location is None:
            return False
        section, field = location
        self._open_section(section, field)
        self.scroll_area.scroll_to(field)
        # With this reason a line edit selects its text, so that typing replaces it.
        field.setFocus(Qt.FocusReason.ShortcutFocusReason)
        return True

    def _make_mode_switch(self, script: ScriptDraft) -> QWidget:
        """Create the switch that sets what Launch starts: the configuration or the script."""
        switch, group = QWidget(), QButtonGroup(self)

        def segment(text: str, tooltip: str, choose: Callable[[], object]) -> QPushButton:
            button = push_button(text, tooltip, choose, kind="segment", height=26)
            group.addButton(button)
            return button

        what = tr("Train a model with a parallel strategy; memory is predicted before the start")
        self.configuration_button = segment(tr("Configuration"), what, partial(script.set_chosen, False))
        what = tr("Run your own script unmodified")
        self.script_button = segment(tr("Script"), what, partial(script.set_chosen, True))
        buttons = ((self.configuration_button, 1), (self.script_button, 1))
        row(*buttons, on=switch, margins=(12, 0, 12, 8), spacing=0)
        return switch

    def _show_mode(self) -> None:
        script_chosen = self._script_draft.is_chosen
        (self.script_button if script_chosen else self.configuration_button).setChecked(True)
        for section in self._script_sections:
            section.setVisible(script_chosen)
        for section in self._configuration_sections:
            section.setVisible(not script_chosen)

    def save_state(self) -> dict[str, Any]:
        return super().save_state() | {"more": self.model.more_button.isChecked()}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self.model.more_button.setChecked(bool(state.get("more")))


# MODEL: the preset and the options that describe the work; the less common ones under "More".  The fields
# under "More" are created when it is first opened: creating thirty fields would be a quarter of the window's
# start-up work.

LABEL_WIDTH = 62


class ModelSection(QWidget):
    """Body of the MODEL section."""

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        presets: Sequence[Preset],
        on_pick: Callable[[Preset], object],
    ) -> None:
        super().__init__()
        self._theme, self._draft, self._presets = theme, draft, list(presets)
        self._preset_label = label = text_label(tr("Start from"), "dim", wrap=False)
        self.preset_box = ComboBox(theme)
        self.preset_box.setAccessibleName(tr("Start from a preset"))
        self.preset_box.setMinimumContentsLength(6)
        for at, preset in enumerate(self._presets):
            self.preset_box.addItem(preset.name)
            self.preset_box.setItemData(at, tr(preset.text or preset.title), Qt.ItemDataRole.ToolTipRole)
        self.preset_box.activated.connect(lambda index: on_pick(self._presets[index]))
        label.setBuddy(self.preset_box)
        self.main_form = DraftForm(theme, draft, lambda: model_rows(draft)[0])
        self._more_form: DraftForm | None = None
        self.more_button = QPushButton(tr("More"))
        self.more_button.setProperty("kind", "link")
        self.more_button.setCheckable(True)
        self.more_button.setToolTip(tr("Optimizer, schedule, seed, evaluation and other options"))
        self.more_button.toggled.connect(self._toggle_more)
        picker = row(label, (self.preset_box, 1), spacing=6)
        widgets = (picker, self.main_form, self.more_button)
        self._column = column(*widgets, on=self, margins=(12, 0, 12, 4), spacing=6)
        draft.changed.connect(self._show_origin)
        draft.changed.connect(self._align_labels)
        self._update_icon()
        self._show_origin()
        self._align_labels()

    def _more_rows(self) -> list[FormRow]:
        return [name_row(self._draft), *model_rows(self._draft)[1]]

    @property
    def more_form(self) -> DraftForm:
        """The form with the less common options, created on first use."""
        if self._more_form is None:
            self._more_form = DraftForm(self._theme, self._draft, self._more_rows)
            # A problem may create the form while "More" is closed.
            self._more_form.setVisible(self.more_button.isChecked())
            self._column.addWidget(self._more_form)
            # Without this, fields that are created later would come last in the tab order.
            self._more_form.set_tab_after(self.more_button)
            self._align_labels()
        return self._more_form

    def find_editor(self, problem: Problem) -> QWidget | None:
        """Return the editor in which a problem can be fixed, even if it is under "More"; None if the problem
        can only be fixed in the TOML text."""
        if (key_path := find_field(problem, self.main_form.fields)) is not None:
            return self.main_form.fields[key_path].editor
        if (key_path := find_field(problem, [row.key_path for row in self._more_rows()])) is not None:
            return self.more_form.fields[key_path].editor
        return None

    def reveal(self, field: QWidget) -> None:
        """Open "More" if the field is inside it."""
        if self._more_form is not None and self._more_form.isAncestorOf(field):
            self.more_button.setChecked(True)

    def _align_labels(self) -> None:
        """Make the label column as wide as the longest label, including the labels of fields that have not
        been created yet."""
        metrics, (front, more) = QFontMetrics(self._theme.font()), model_rows(self._draft)
        labels = [row.label for row in (*front, *more) if not row.is_check]
        longest = max(map(metrics.horizontalAdvance, labels)) + 1  # a label is a pixel wider than its text
        width = max(LABEL_WIDTH, self._preset_label.sizeHint().width(), longest)
        self._preset_label.setFixedWidth(width)
        for form in filter(None, (self.main_form, self._more_form)):
            form.set_label_width(width)

    def _show_origin(self) -> None:
        """Show where the draft came from."""
        origin = self._draft.origin_text or tr("a new configuration")
        index = self.preset_box.findText(origin)
        self.preset_box.setPlaceholderText(origin)
        self.preset_box.setCurrentIndex(index)
        text = tr(self._presets[index].text) if index >= 0 else ""
        self.preset_box.setToolTip(text or tr("Replace this configuration with a preset"))

    def _toggle_more(self, is_open: bool) -> None:
        self.more_form.setVisible(is_open)
        self.more_button.setText(tr("Less") if is_open else tr("More"))
        self._update_icon()

    def _update_icon(self) -> None:
        name = "chevron-down" if self.more_button.isChecked() else "chevron-right"
        self.more_button.setIcon(self._theme.icon(name, "textLink.foreground"))


# STRATEGY: one row per strategy with its icon and a short hint; the chosen strategy's options below.


class StrategySection(QWidget):
    """Body of the STRATEGY section."""

    def __init__(self, theme: Theme, draft: Draft) -> None:
        super().__init__()
        self._draft = draft
        more = tr("Double-click to see where tensors live and what is sent.")
        self.list = StrategyList(theme, tooltip=more)
        self.list.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # All rows are visible, because the side bar itself scrolls.
        self.list.setFixedHeight(ROW_HEIGHT * self.list.count())
        self.list.strategy_selected.connect(lambda name: draft.choose(("strategy",), name))
        self.options = DraftForm(theme, draft, lambda: strategy_rows(draft))
        self.options.setContentsMargins(12, 4, 12, 4)
        self.problem_label = text_label(tone="error")
        self.problem_label.setContentsMargins(12, 4, 12, 4)
        self.show_problem(None)
        column(self.list, self.problem_label, self.options, on=self, spacing=0)
        draft.changed.connect(self.refresh)
        self.refresh()

    def show_problem(self, problem: Problem | None) -> None:
        """Show a problem with the choice of strategy; None hides the message."""
        text = "" if problem is None else problem.sentence
        self.problem_label.setText(text)
        self.problem_label.setVisible(bool(text))
        self.list.setAccessibleDescription(text)

    def refresh(self) -> None:
        use = self._draft.value(("strategy", "use"))
        self.list.set_choice(use if isinstance(use, str) else "single")
        self.options.setVisible(bool(self.options.fields))
