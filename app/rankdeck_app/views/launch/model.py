"""MODEL: where the run starts from, and the options that describe the work; the rarer ones under "More"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget

from rankdeck.config.presets import PresetCard
from rankdeck_app.state.draft import Draft
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ComboBox
from rankdeck_app.widgets.draft_form import DraftForm
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.run_rows import model_rows, name_row

LABEL_WIDTH = 62


class PresetPicker(QWidget):
    """ "Start from": a preset by name; shows where the draft came from."""

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        presets: Sequence[PresetCard],
        on_pick: Callable[[PresetCard], object],
    ) -> None:
        super().__init__()
        self._draft = draft
        self._presets = list(presets)
        label = text_label("Start from", "dim", wrap=False)
        label.setFixedWidth(LABEL_WIDTH)
        self.box = ComboBox(theme)
        self.box.setAccessibleName("Start from a preset")
        self.box.setMinimumContentsLength(6)
        for preset in self._presets:
            self.box.addItem(preset.name)
            tooltip = preset.text or preset.title
            self.box.setItemData(self.box.count() - 1, tooltip, Qt.ItemDataRole.ToolTipRole)
        self.box.activated.connect(lambda index: on_pick(self._presets[index]))
        label.setBuddy(self.box)
        row(label, (self.box, 1), on=self, spacing=6)
        draft.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        origin = self._draft.origin or "a new configuration"
        index = self.box.findText(origin)
        self.box.setPlaceholderText(origin)
        self.box.setCurrentIndex(index)
        text = self._presets[index].text if index >= 0 else ""
        self.box.setToolTip(text or "Replace this configuration by a ready one")


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
        self._theme = theme
        self.picker = PresetPicker(theme, draft, presets, on_pick)
        self.front = DraftForm(theme, draft, lambda: model_rows(draft)[0], label_width=LABEL_WIDTH)
        self.more = DraftForm(
            theme, draft, lambda: [name_row(), *model_rows(draft)[1]], label_width=LABEL_WIDTH
        )
        self.more.hide()
        self.more_button = QPushButton("More")
        self.more_button.setProperty("kind", "link")
        self.more_button.setCheckable(True)
        self.more_button.setToolTip("Optimizer, schedule, seed, evaluation and the rest")
        self.more_button.toggled.connect(self._toggle)
        parts = (self.picker, self.front, self.more_button, self.more)
        column(*parts, on=self, margins=(12, 0, 12, 4), spacing=6)
        theme.changed.connect(self._icon)
        self._icon()

    def _toggle(self, is_open: bool) -> None:
        self.more.setVisible(is_open)
        self.more_button.setText("Less" if is_open else "More")
        self._icon()

    def _icon(self) -> None:
        name = "chevron-down" if self.more_button.isChecked() else "chevron-right"
        self.more_button.setIcon(self._theme.icon(name, "textLink.foreground"))
