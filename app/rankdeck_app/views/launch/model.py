"""MODEL: where the run starts from, and the options that describe the work; the rarer ones under "More".

The fields under "More" are made when somebody looks there: thirty of them would be a quarter of what the
window does at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QPushButton, QWidget

from rankdeck.base.errors import Problem
from rankdeck.config.presets import PresetCard
from rankdeck_app.language import tr
from rankdeck_app.state.draft import Draft
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ComboBox
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.form import FormRow
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.run_rows import field_of, model_rows, name_row

LABEL_WIDTH = 62


class ModelSection(QWidget):
    """The body of the section."""

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        presets: Sequence[PresetCard],
        on_pick: Callable[[PresetCard], object],
    ) -> None:
        super().__init__()
        self._theme, self._draft, self._presets = theme, draft, list(presets)
        self._label = label = text_label(tr("Start from"), "dim", wrap=False)
        self.preset_box = ComboBox(theme)
        self.preset_box.setAccessibleName(tr("Start from a preset"))
        self.preset_box.setMinimumContentsLength(6)
        for at, preset in enumerate(self._presets):
            self.preset_box.addItem(preset.name)
            self.preset_box.setItemData(at, tr(preset.text or preset.title), Qt.ItemDataRole.ToolTipRole)
        self.preset_box.activated.connect(lambda index: on_pick(self._presets[index]))
        label.setBuddy(self.preset_box)
        self.front = DraftForm(theme, draft, lambda: model_rows(draft)[0])
        self._more: DraftForm | None = None
        self.more_button = QPushButton(tr("More"))
        self.more_button.setProperty("kind", "link")
        self.more_button.setCheckable(True)
        self.more_button.setToolTip(tr("Optimizer, schedule, seed, evaluation and the rest"))
        self.more_button.toggled.connect(self._toggle)
        picker = row(label, (self.preset_box, 1), spacing=6)
        parts = (picker, self.front, self.more_button)
        self._column = column(*parts, on=self, margins=(12, 0, 12, 4), spacing=6)
        draft.changed.connect(self._show_origin)
        draft.changed.connect(self._align)
        self._icon()
        self._show_origin()
        self._align()

    def _rare_rows(self) -> list[FormRow]:
        return [name_row(self._draft), *model_rows(self._draft)[1]]

    @property
    def more(self) -> DraftForm:
        """The form of the rarer options, made when first asked for."""
        if self._more is None:
            self._more = DraftForm(self._theme, self._draft, self._rare_rows)
            self._more.setVisible(self.more_button.isChecked())
            self._column.addWidget(self._more)
            self._more.come_after(self.more_button)
            self._align()
        return self._more

    def editor_of(self, problem: Problem) -> QWidget | None:
        """Where a problem can be mended here, under "More" too; None where only the text can be."""
        if (place := field_of(problem, self.front.fields)) is not None:
            return self.front.fields[place].editor
        if (place := field_of(problem, [row.place for row in self._rare_rows()])) is not None:
            return self.more.fields[place].editor
        return None

    def unfold(self, field: QWidget) -> None:
        """Open "More" where the field stands there."""
        if self._more is not None and self._more.isAncestorOf(field):
            self.more_button.setChecked(True)

    def _align(self) -> None:
        """All fields begin where the longest label ends, of those too that are not made yet."""
        metrics, (front, more) = QFontMetrics(self._theme.font()), model_rows(self._draft)
        labels = [row.label for row in (*front, *more) if not row.is_check]
        longest = max(map(metrics.horizontalAdvance, labels)) + 1  # a label takes a pixel more than its text
        width = max(LABEL_WIDTH, self._label.sizeHint().width(), longest)
        self._label.setFixedWidth(width)
        for form in filter(None, (self.front, self._more)):
            form.set_label_width(width)

    def _show_origin(self) -> None:
        """Where the draft came from."""
        origin = self._draft.origin_in_words or tr("a new configuration")
        index = self.preset_box.findText(origin)
        self.preset_box.setPlaceholderText(origin)
        self.preset_box.setCurrentIndex(index)
        text = tr(self._presets[index].text) if index >= 0 else ""
        self.preset_box.setToolTip(text or tr("Replace this configuration by a ready one"))

    def _toggle(self, is_open: bool) -> None:
        self.more.setVisible(is_open)
        self.more_button.setText(tr("Less") if is_open else tr("More"))
        self._icon()

    def _icon(self) -> None:
        name = "chevron-down" if self.more_button.isChecked() else "chevron-right"
        self.more_button.setIcon(self._theme.icon(name, "textLink.foreground"))
