"""DEVICES: GPUs to choose from, or the number of virtual devices of a rehearsal.

The choice is the draft's `devices.use` and nothing else: this view reads it, draws it and writes it. Bytes on
the cards are those of the run on show, or what the driver said when it was asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from rankdeck.devices import DeviceSelection, parse_devices
from rankdeck.errors import DeviceError
from rankdeck.units import format_bytes
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.gpus import Gpu, Gpus
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.device_cards import DeviceFigure, DeviceGrid

PLACE = ("devices", "use")
MAX_STEPPER = 16
DEFAULT_VIRTUAL = 4
AUTO_VIRTUAL = 2  # what `auto` means on a machine without a GPU
NONE_CHOSEN = "gpu:"

# index -> (used bytes, share of the scale, whether it stands out); what the run on show uses.
Usage = Mapping[int, tuple[int | None, float | None, bool]]


class Stepper(QWidget):
    """A number between two buttons; the arrow keys step it too. `changed` carries the new one."""

    changed = Signal(int)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.value = 1
        self._maximum = MAX_STEPPER
        self.box = QLineEdit("1")
        self.box.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.box.setProperty("compact", "true")
        self.box.setFixedSize(34, 26)
        self.box.setAccessibleName("Number of virtual devices")
        self.box.setToolTip(f"Number of virtual devices, 1 to {MAX_STEPPER} (Up, Down)")
        self.box.textEdited.connect(self._typed)
        self.box.editingFinished.connect(lambda: self.box.setText(str(self.value)))
        self.box.installEventFilter(self)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(2)
        self.fewer = self._button(theme, "remove", "One virtual device fewer", -1)
        self.more = self._button(theme, "add", "One virtual device more", 1)
        for widget in (self.fewer, self.box, self.more):
            row.addWidget(widget)

    def _button(self, theme: Theme, icon: str, tooltip: str, step: int) -> QToolButton:
        button = QToolButton()
        button.setProperty("kind", "tool")
        button.setIcon(theme.icon(icon))
        button.setFixedSize(24, 24)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.setToolTip(tooltip)
        button.setAccessibleName(tooltip)
        button.setAutoRepeat(True)
        button.clicked.connect(lambda: self._set(self.value + step))
        return button

    def show_value(self, count: int) -> None:
        """Show a number without telling anybody; a file may ask for more than the stepper offers."""
        self.value = count
        self._maximum = max(MAX_STEPPER, count)
        if not self.box.hasFocus() or self.box.text() not in ("", str(count)):
            self.box.setText(str(count))
        self.fewer.setEnabled(count > 1)
        self.more.setEnabled(count < self._maximum)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            steps = {Qt.Key.Key_Up: 1, Qt.Key.Key_Down: -1}
            if event.key() in steps:
                self._set(self.value + steps[Qt.Key(event.key())])
                return True
        return super().eventFilter(watched, event)

    def _typed(self, text: str) -> None:
        if text.isdecimal() and 1 <= int(text) <= self._maximum:
            self._set(int(text))

    def _set(self, count: int) -> None:
        count = max(1, min(self._maximum, count))
        if count != self.value:
            self.show_value(count)
            self.changed.emit(count)


class DevicesSection(QWidget):
    """The body of the section; `tools` are the widgets for its header."""

    def __init__(self, theme: Theme, draft: Draft, gpus: Gpus) -> None:
        super().__init__()
        self._draft = draft
        self._gpus = gpus
        self._usage: Usage = {}
        self._usage_kind = ""
        self._virtual_count = DEFAULT_VIRTUAL
        self._gpu_use = ""
        self.summary = QLabel()
        self.summary.setProperty("tone", "dim")
        self.all_button = _link("All", "Choose all GPUs", lambda: self._choose(self._gpus.devices))
        free = "Choose the GPUs that no other process uses"
        self.free_button = _link("Free", free, lambda: self._choose([g for g in gpus.devices if g.is_free]))
        self.none_button = _link("None", "Choose no GPU", lambda: self._choose([]))
        self.tools: list[QWidget] = [self.summary, self.all_button, self.free_button, self.none_button]
        self._build(theme)
        draft.changed.connect(self.refresh)
        gpus.changed.connect(self.refresh)
        self.refresh()

    def _build(self, theme: Theme) -> None:
        self.gpu_button = _segment("GPU", "Train on this machine's GPUs")
        self.rehearsal_button = _segment("Rehearsal", "Train for real on virtual devices of the CPU")
        group = QButtonGroup(self)
        group.addButton(self.gpu_button)
        group.addButton(self.rehearsal_button)
        self.gpu_button.clicked.connect(self._to_gpus)
        self.rehearsal_button.clicked.connect(self._to_rehearsal)
        self.stepper = Stepper(theme)
        self.stepper.changed.connect(self._set_count)
        self.reason = QLabel()
        self.reason.setProperty("tone", "small")
        self.reason.setWordWrap(True)
        self.grid = DeviceGrid(theme)
        self.grid.toggled.connect(self._toggle)
        top = QHBoxLayout()
        top.setSpacing(0)
        top.addWidget(self.gpu_button)
        top.addWidget(self.rehearsal_button)
        top.addStretch(1)
        top.addWidget(self.stepper)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 0, 12, 4)
        column.setSpacing(6)
        column.addLayout(top)
        column.addWidget(self.reason)
        column.addWidget(self.grid)

    # What is chosen

    def _selection(self) -> DeviceSelection | None:
        """The draft's choice; None when it is wrong (or chooses no GPU)."""
        use = self._draft.value(PLACE)
        try:
            return parse_devices(use if isinstance(use, str) else "auto")
        except DeviceError:
            return None

    def _mode(self, selection: DeviceSelection | None) -> str:
        if selection is None:
            return "gpu" if str(self._draft.value(PLACE)).startswith("gpu") else "cpu"
        if selection.kind == "auto":
            return "gpu" if any(gpu.is_free for gpu in self._gpus.devices) else "cpu"
        return selection.kind

    def _is_chosen(self, gpu: Gpu, selection: DeviceSelection | None) -> bool:
        if selection is None:
            return False
        if selection.kind == "auto":
            return gpu.is_free
        return not selection.gpus or str(gpu.index) in selection.gpus or gpu.uuid in selection.gpus

    # Changing it

    def _write(self, use: str) -> None:
        self._draft.set_value(PLACE, use)

    def _to_gpus(self) -> None:
        if self._mode(self._selection()) != "gpu":
            self._write(self._gpu_use or "gpu:all")

    def _to_rehearsal(self) -> None:
        if self._mode(self._selection()) != "cpu":
            self._gpu_use = str(self._draft.value(PLACE) or "")
            self._write(f"cpu:{self._virtual_count}")

    def _set_count(self, count: int) -> None:
        self._virtual_count = count
        self._write(f"cpu:{count}")

    def _toggle(self, at: int, chosen: bool) -> None:
        selection = self._selection()
        gpus = self._gpus.devices
        wanted = [gpu for gpu in gpus if self._is_chosen(gpu, selection) and gpu is not gpus[at]]
        self._choose(wanted + ([gpus[at]] if chosen else []))

    def _choose(self, gpus: list[Gpu]) -> None:
        indices = sorted(gpu.index for gpu in gpus)
        self._write(f"gpu:{','.join(map(str, indices))}" if indices else NONE_CHOSEN)

    # Drawing it

    def set_usage(self, kind: str, usage: Usage) -> None:
        """What the run on show uses, by index on this machine (kind "gpu") or in the run ("virtual")."""
        if (kind, usage) != (self._usage_kind, self._usage):
            self._usage_kind, self._usage = kind, usage
            self.refresh()

    def _usage_of(self, kind: str, index: int) -> tuple[int | None, float | None, bool] | None:
        return self._usage.get(index) if kind == self._usage_kind else None

    def refresh(self) -> None:
        selection = self._selection()
        mode = self._mode(selection)
        has_gpus = bool(self._gpus.devices)
        self.gpu_button.setEnabled(has_gpus)
        self.gpu_button.setToolTip(self._gpus.reason or "Train on this machine's GPUs")
        (self.gpu_button if mode == "gpu" else self.rehearsal_button).setChecked(True)
        self.stepper.setVisible(mode == "cpu")
        for button in (self.all_button, self.free_button, self.none_button):
            button.setVisible(mode == "gpu" and has_gpus)
        self.reason.setText(self._gpus.reason or "")
        self.reason.setVisible(self._gpus.known and not has_gpus)
        if mode == "gpu":
            self._show_gpus(selection)
        else:
            self._show_virtual(selection)

    def _show_gpus(self, selection: DeviceSelection | None) -> None:
        chosen = [self._is_chosen(gpu, selection) for gpu in self._gpus.devices]
        self.grid.set_devices([self._gpu_figure(gpu) for gpu in self._gpus.devices], chosen)
        if self._gpus.devices:
            self.summary.setText(f"{sum(chosen)} of {len(chosen)} ·")
        else:
            self.summary.setText("" if self._gpus.known else "looking…")

    def _gpu_figure(self, gpu: Gpu) -> DeviceFigure:
        usage = self._usage_of("gpu", gpu.index)
        used, share, lead = usage or (gpu.used_bytes, None, False)
        if share is None and used is not None and gpu.total_bytes:
            share = used / gpu.total_bytes
        lines = [f"GPU {gpu.index}: {gpu.name}", gpu.uuid]
        if gpu.total_bytes:
            lines.append(f"{format_bytes(gpu.total_bytes)} of memory")
        if not gpu.is_free:
            lines.append(f"Used by {gpu.busy_by or 'another process'} ({format_bytes(gpu.busy_bytes)})")
        busy = "" if gpu.is_free or usage else "in use"
        return DeviceFigure(f"GPU {gpu.index}", str(gpu.index), used, share, lead, busy, "\n".join(lines))

    def _show_virtual(self, selection: DeviceSelection | None) -> None:
        if selection is not None:
            self._virtual_count = AUTO_VIRTUAL if selection.kind == "auto" else selection.count or 1
        count = self._virtual_count
        self.stepper.show_value(count)
        self.summary.setText(f"{count} virtual")
        self.grid.set_devices([self._virtual_figure(index) for index in range(count)], None)

    def _virtual_figure(self, index: int) -> DeviceFigure:
        used, share, lead = self._usage_of("virtual", index) or (None, None, False)
        tooltip = f"Virtual device {index} of a rehearsal on the CPU"
        if used is not None:
            tooltip += f"\n{format_bytes(used)} of live tensors, measured in rehearsal"
        return DeviceFigure(f"Virtual {index}", str(index), used, share, lead, "", tooltip)


def _link(text: str, tooltip: str, on_click: object) -> QPushButton:
    button = QPushButton(text)
    button.setProperty("kind", "quiet")
    button.setToolTip(tooltip)
    button.setAccessibleName(tooltip)
    button.setFixedHeight(20)
    button.clicked.connect(on_click)
    return button


def _segment(text: str, tooltip: str) -> QPushButton:
    button = QPushButton(text)
    button.setProperty("kind", "segment")
    button.setCheckable(True)
    button.setFixedHeight(24)
    button.setToolTip(tooltip)
    return button
