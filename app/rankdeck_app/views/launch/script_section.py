"""The SCRIPT section: the user's script, its arguments and environment variables, and its interpreter.

Edits are written to the script's draft as the user types; problems are shown below their fields. The combo
box at the top lists the entries of the workspace folder's rankdeck.toml.
"""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QLineEdit, QPlainTextEdit, QWidget

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.script_draft import ScriptDraft
from rankdeck_app.state.script_folder import ScriptFolder, interpreter_text, shorten_home
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.stepper import RANKS, Stepper
from rankdeck_app.widgets.controls import CheckBox, ComboBox, tool_button
from rankdeck_app.widgets.form import FormLine, align_labels
from rankdeck_app.widgets.layouts import column, push_button, row

LABEL_WIDTH = 66
NO_ENTRY = tr_noop("none")
_MAX_VARIABLE_LINES = 3
_OBSERVE_LEVELS = {
    "light": tr_noop("steps, loss, learning rate and memory; less than 0.2 ms per step"),
    "full": tr_noop("same as light, plus the memory of every tensor in a few later steps"),
    "check": tr_noop("same as full, plus every check at every step; this slows the script down"),
    "none": tr_noop("no code is injected into the script; only its output and GPUs are observed"),
}


class VariablesEdit(QPlainTextEdit):
    """Editor of NAME=value lines; Tab moves to the next field."""

    def __init__(self) -> None:
        super().__init__()
        self.setTabChangesFocus(True)
        self.setPlaceholderText(tr("NAME=value, one per line"))
        self.setProperty("kind", "field")
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.textChanged.connect(self.fit)
        self.fit()

    def fit(self) -> None:
        """Fit the height to the number of lines, up to a limit."""
        lines = max(1, min(_MAX_VARIABLE_LINES, self.document().blockCount()))
        self.setFixedHeight(lines * self.fontMetrics().lineSpacing() + 15)

    def sizeHint(self) -> QSize:
        return QSize(120, self.minimumHeight())


class FileBox(ComboBox):
    """Editable box in which the user types a script's path or module, or chooses a script from the list.
    `popup_opened` is emitted before the list is shown."""

    popup_opened = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme)
        self.setEditable(True)
        self.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.setMinimumContentsLength(6)
        line = self.lineEdit()
        assert line is not None
        line.setPlaceholderText(tr("train.py, or -m package.module"))
        line.setAccessibleName(tr("Script"))

    def showPopup(self) -> None:
        self.popup_opened.emit()
        super().showPopup()


class ScriptSection(QWidget):
    """Body of the SCRIPT section; `save_button` belongs in the section's header. Actions that need a dialog
    are requested through signals."""

    browse_requested = Signal()
    interpreter_requested = Signal()
    save_requested = Signal()
    remove_requested = Signal(str)
    entry_picked = Signal(str)

    def __init__(self, theme: Theme, script: ScriptDraft, folder: ScriptFolder, gpus: Gpus) -> None:
        super().__init__()
        self._theme, self._script, self._folder, self._gpus = theme, script, folder, gpus
        self.save_button = push_button(
            tr("Save Entry…"), "", self.save_requested.emit, kind="quiet", height=20
        )
        tooltip = tr("Save this to the folder's rankdeck.toml, to run it again by name")
        self.save_button.setToolTip(tooltip)
        self.save_button.setAccessibleName(tr("Save entry"))
        self._make_lines(theme)
        self.lines = {
            "run": self.file_line, "arguments": self.arguments_line, "environment": self.variables_line,
            "python": self.python_line, "ranks": self.ranks_line, "plain": self.plain_line,
            "observe": self.observe_line,
        }  # fmt: skip
        lines = [self.entry_line, *self.lines.values()]
        align_labels(lines)
        column(*lines, on=self, margins=(12, 0, 12, 4), spacing=6)
        script.changed.connect(self.refresh)
        folder.changed.connect(self.refresh)
        gpus.changed.connect(self.refresh)
        self.refresh()

    def _make_lines(self, theme: Theme) -> None:
        self.entry_box = ComboBox(theme)
        self.entry_box.activated.connect(self._on_entry_activated)
        self.remove_button = tool_button(theme, "remove", tr("Remove This Entry"), self._request_removal)
        what = tr("An entry in the folder's rankdeck.toml")
        self.entry_line = self._make_line(tr("Entry"), self.entry_box, what, self.remove_button)
        self.file_box = FileBox(theme)
        self.file_box.popup_opened.connect(self._folder.scan)
        self.file_box.activated.connect(lambda index: self._set(run=self.file_box.itemText(index)))
        line = self.file_box.lineEdit()
        assert line is not None
        # Not textChanged, which `refresh` also triggers.
        line.textEdited.connect(lambda text: self._set(run=text))
        browse = tool_button(theme, "folder-opened", tr("Browse…"), self.browse_requested.emit)
        what = tr("A script in this folder; it runs unmodified")
        self.file_line = self._make_line(
            tr("File"), self.file_box, what, browse, accessible_name=tr("Script")
        )
        self.arguments_edit = QLineEdit()
        self.arguments_edit.textEdited.connect(lambda text: self._set(arguments=text))
        what = tr("Command-line arguments of the script; quote arguments that contain spaces")
        self.arguments_line = self._make_line(tr("Arguments"), self.arguments_edit, what)
        self.variables_edit = VariablesEdit()
        self.variables_edit.textChanged.connect(
            lambda: self._set(environment=self.variables_edit.toPlainText())
        )
        what, name = tr("Environment variables for this run only, one per line"), tr("Environment variables")
        self.variables_line = self._make_line(
            tr("Variables"), self.variables_edit, what, accessible_name=name
        )
        self.python_button = push_button("", "", self.interpreter_requested.emit, kind="field", height=28)
        self.python_line = self._make_line(
            "Python", self.python_button, "", accessible_name=tr("Python interpreter")
        )
        self.ranks_stepper = Stepper(theme, RANKS)
        self.ranks_stepper.changed.connect(lambda count: self._set(ranks=count))
        self.per_gpu_button = push_button(
            tr("One per GPU"), "", self._set_one_per_gpu, kind="link", height=20
        )
        self.per_gpu_button.setToolTip(tr("Start one rank per chosen GPU, like torchrun --nproc-per-node"))
        what = tr("Number of script processes to start, like torchrun's --nproc-per-node")
        ranks = QWidget()
        row(self.ranks_stepper, self.per_gpu_button, None, on=ranks, spacing=8)
        self.ranks_line = self._make_line(tr("Ranks"), ranks, what)
        self.plain_box = CheckBox(theme, tr("as python would start it"))
        self.plain_box.toggled.connect(lambda is_on: self._set(plain=is_on))
        what = tr("Run without torchrun's variables, for a script that starts its own ranks")
        self.plain_line = self._make_line(tr("Plain"), self.plain_box, what)
        self.observe_box = ComboBox(theme)
        for at, (level, text) in enumerate(_OBSERVE_LEVELS.items()):
            self.observe_box.addItem(level)
            self.observe_box.setItemData(at, tr(text), Qt.ItemDataRole.ToolTipRole)
        self.observe_box.activated.connect(lambda index: self._set(observe=self.observe_box.itemText(index)))
        self.observe_line = self._make_line(tr("Observe"), self.observe_box, "")

    def _make_line(
        self, label: str, editor: QWidget, hint: str, *trailing: QWidget, accessible_name: str = ""
    ) -> FormLine:
        return FormLine(label, editor, hint, *trailing, label_width=LABEL_WIDTH, name=accessible_name)

    def find_line(self, problem: Problem) -> FormLine | None:
        """Return the form line to which a problem belongs; None if there is no such line."""
        section, _, field = (problem.path or "").partition(".")
        return self.lines.get(field) if section == "script" else None

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._folder.scan()
        self._script.recheck()

    # Changing the draft

    def _set(self, **values: object) -> None:
        self._script.set_fields(**values)

    def _on_entry_activated(self, index: int) -> None:
        if index == 0:
            self._set(entry="")
        else:
            self.entry_picked.emit(list(self._folder.facts.file.entries)[index - 1])

    def _request_removal(self) -> None:
        self.remove_requested.emit(self._script.form.entry)

    def _set_one_per_gpu(self) -> None:
        self._set(ranks=self.num_gpus())

    def num_gpus(self) -> int:
        """Return the number of selected GPUs, but at least 1."""
        use = self._script.form.devices
        if use == "gpu:all":
            return max(1, len(self._gpus.physical_gpus))
        return max(1, len([name for name in use.removeprefix("gpu:").split(",") if name]))

    # Showing the draft

    def refresh(self) -> None:
        form, script = self._script.form, self._script
        self._show_entries()
        self._show_files(form.run)
        # Setting the same text would move the cursor.
        if self.arguments_edit.text() != form.arguments:
            self.arguments_edit.setText(form.arguments)
        if self.variables_edit.toPlainText() != form.environment:
            # textChanged would write the text back to the draft that it comes from.
            with QSignalBlocker(self.variables_edit):
                self.variables_edit.setPlainText(form.environment)
            self.variables_edit.fit()
        self._show_python()
        self.ranks_stepper.show_value(form.ranks)
        self.per_gpu_button.setVisible(self.num_gpus() != form.ranks)
        self.ranks_line.setVisible(not script.is_cpu_only)
        with QSignalBlocker(self.plain_box):
            self.plain_box.setChecked(form.plain)
        # Several ranks find each other only through torchrun's variables.
        self.plain_line.setVisible(script.ranks == 1)
        self.observe_box.setCurrentText(form.observe)
        self.observe_line.set_hint(tr(_OBSERVE_LEVELS.get(form.observe, "")))
        for field, line in self.lines.items():
            problem = script.find_problem(field)
            # A form that is still empty is not marked as wrong.
            is_shown = problem is not None and (problem.code != "no-script" or bool(form.run.strip()))
            line.set_problem(problem.message if problem is not None and is_shown else None)
        can_save = script.find_problem("run") is None and script.find_problem("arguments") is None
        self.save_button.setEnabled(can_save and script.find_problem("environment") is None)

    def _show_entries(self) -> None:
        entries = self._folder.facts.file.entries
        chosen = self._script.form.entry
        at = 1 + list(entries).index(chosen) if chosen in entries else 0
        names = [tr(NO_ENTRY), *entries]
        if at and self._script.is_changed(entries[chosen]):
            names[at] = tr("{entry} (changed)", entry=chosen)
        if [self.entry_box.itemText(index) for index in range(self.entry_box.count())] != names:
            self.entry_box.clear()
            self.entry_box.addItems(names)
        self.entry_box.setCurrentIndex(at)
        self.entry_line.setVisible(bool(entries))
        self.remove_button.setVisible(chosen in entries)

    def _show_files(self, text: str) -> None:
        names = [script.name for script in self._folder.facts.scripts]
        if [self.file_box.itemText(at) for at in range(self.file_box.count())] != names:
            self.file_box.clear()
            for at, script in enumerate(self._folder.facts.scripts):
                self.file_box.addItem(script.name)
                libraries = tr("imports {libraries}", libraries=", ".join(script.libraries))
                self.file_box.setItemData(at, libraries, Qt.ItemDataRole.ToolTipRole)
        if self.file_box.currentText() != text:
            # setCurrentIndex also sets the edit text, so the typed text is restored after it.
            self.file_box.setCurrentIndex(names.index(text) if text in names else -1)
            self.file_box.setEditText(text)

    def _show_python(self) -> None:
        folder, own_python = self._folder, self._script.form.python
        interpreter = folder.describe(own_python) if own_python else folder.interpreter
        if interpreter is None:
            self.python_button.setText(tr("looking…") if not folder.is_known else tr("none found"))
            self.python_line.set_warning(None)
            return
        text = interpreter_text(interpreter).removeprefix("Python ")
        self.python_button.setText(text)
        source = tr("set by the entry") if own_python else folder.source
        torch = interpreter.torch_version
        self.python_line.set_warning(None if torch else tr("torch was not found in this Python environment."))
        torch_text = f"torch {torch}" if torch else tr("torch was not found in this environment")
        self.python_line.set_hint(f"{shorten_home(interpreter.python)} ({source})\n{torch_text}")
