"""The box that selects the devices to plan for: those of the draft, or GPUs that the user names."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent

from rankdeck.base.phrases import tr_noop
from rankdeck.config.gpu_models import GPU_MODELS
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ComboBox

RUN_DEVICES = tr_noop("This run's devices")
_SUGGESTED_MODELS = ("RTX-4090", "A100-80GB", "H100-80GB")


class TargetBox(ComboBox):
    """Editable box for the plan's devices; `show_devices` keeps the typed text if the devices are unchanged.

    `chosen` carries devices in the format of `--devices`, or None for the draft's devices. The signal is
    emitted on Enter, on a choice from the list and on loss of focus. Escape discards the typed text.
    """

    chosen = Signal(object)

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme)
        self._devices: str | None = None
        self._is_typing = False
        self._run_devices = tr(RUN_DEVICES)
        self.setEditable(True)
        self.setInsertPolicy(ComboBox.InsertPolicy.NoInsert)
        self.addItems([self._run_devices, *_suggestions()])
        self.setMinimumWidth(170)
        self.setAccessibleName(tr("Plan for"))
        self.setToolTip(tr('Plan for GPUs that you do not have: "8 x A100-80GB", "4 x 24GiB"'))
        self.activated.connect(lambda _index: self._emit_chosen())
        line = self.lineEdit()
        assert line is not None
        line.setAccessibleName(tr("Plan for"))
        line.textEdited.connect(self._on_text_edited)
        line.editingFinished.connect(self._on_editing_finished)

    def show_devices(self, devices: str | None) -> None:
        if self._is_typing and devices == self._devices:
            return
        self._devices = devices
        text = devices or self._run_devices
        if self.currentText() != text:
            self.setCurrentIndex(self.findText(text))
            self.setEditText(text)

    def _on_text_edited(self, _text: str) -> None:
        self._is_typing = True

    def _on_editing_finished(self) -> None:
        # Opening the list also ends the editing of the line.
        if not self.view().isVisible():
            self._emit_chosen()

    def _emit_chosen(self) -> None:
        self._is_typing = False
        text = self.currentText().strip()
        devices = None if text in ("", self._run_devices) else text
        # The text may still differ, for example by spaces, so it is set again.
        if devices == self._devices:
            self.show_devices(devices)
        else:
            self._devices = devices
            self.chosen.emit(devices)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._is_typing:
            self._is_typing = False
            self.show_devices(self._devices)
        else:
            super().keyPressEvent(event)


def _suggestions() -> list[str]:
    """Return suggested devices for a few GPU models: four GPUs and eight GPUs of each model."""
    names = [model.name for model in GPU_MODELS if model.name in _SUGGESTED_MODELS]
    return [f"{count} x {name}" for name in names for count in (4, 8)]
