"""Selects the GPUs of one host, or the number of virtual devices in a rehearsal.

The selection is stored only in the draft's `devices.use` or in the script's draft: this view reads, shows and
writes it. devices_section.py has one such view per host. Without GPUs, a script has one rank per requested
device. The cards show the driver's readings, updated a few times a second; for virtual devices they show the
current run's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QButtonGroup, QPushButton, QWidget

from rankdeck.base.errors import DeviceError, Problem
from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.config.devices import DeviceSelection, parse_devices
from rankdeck.run.imbalance import lead_device
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck_app.language import tr
from rankdeck_app.state.device_choice import DeviceChoice
from rankdeck_app.state.gpus import NUM_AUTO_VIRTUAL_DEVICES, Gpus, busy_text, clock_time
from rankdeck_app.state.script_draft import NO_DEVICES_CHOSEN
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.device_cards import READINGS_SEPARATOR, DeviceCardData, DeviceGrid
from rankdeck_app.views.launch.stepper import RANKS, VIRTUAL_DEVICES, Stepper
from rankdeck_app.widgets.controls import FitOrHideLabel, tool_button
from rankdeck_app.widgets.layouts import column, push_button, row, text_label

DEFAULT_VIRTUAL = 4
MIN_BUTTON_WIDTH = 60
SIMULATED = tr_noop("simulated devices")
TRAIN_ON_GPUS = tr_noop("Train on this machine's GPUs")

# The current run's memory use: index -> (used bytes, share of the scale, whether it stands out).
Usage = Mapping[int, tuple[int | None, float | None, bool]]
_UNUSED = (None, None, False)


class HostDevices(QWidget):
    """Devices of one host; `tools` are the widgets to place in the header above the devices."""

    details_requested = Signal()
    """Request to open this host's Devices tab."""

    def __init__(self, theme: Theme, choice: DeviceChoice, gpus: Gpus) -> None:
        super().__init__()
        self._choice = choice
        self._gpus = gpus
        self._usage: Usage = {}
        self._usage_kind = ""
        self._num_virtual = DEFAULT_VIRTUAL
        self._last_gpu_use = ""
        self.summary_label = FitOrHideLabel()
        self.summary_label.setProperty("tone", "dim")
        self.all_button = _make_link(
            tr("All"), tr("Choose all GPUs"), lambda: self._select(self._selectable_gpus())
        )
        free = tr("Choose the GPUs that no other process is using")
        self.free_button = _make_link(tr("Free"), free, self._select_free)
        self.none_button = _make_link(tr("None"), tr("Choose no GPUs"), lambda: self._select([]))
        self.open_button = tool_button(theme, "graph-line", tr("Open Devices"), self.details_requested.emit)
        self.open_button.setToolTip(tr("Open Devices: every metric over time"))
        self.tools: list[QWidget] = [
            self.summary_label, self.all_button, self.free_button, self.none_button, self.open_button,
        ]  # fmt: skip
        self._build(theme)
        choice.changed.connect(self.refresh)
        gpus.changed.connect(self.refresh)
        gpus.readings_changed.connect(self._refresh_if_visible)
        self.refresh()

    def _build(self, theme: Theme) -> None:
        self.gpu_button = push_button(
            "GPU", self._gpu_tooltip, self._switch_to_gpus, kind="segment", height=24
        )
        rehearse = self._switch_to_rehearsal
        self.rehearsal_button = push_button("", "", rehearse, kind="segment", height=24)
        self.rehearsal_button.setMinimumWidth(MIN_BUTTON_WIDTH)  # a long word leaves room for the stepper
        group = QButtonGroup(self)
        group.addButton(self.gpu_button)
        group.addButton(self.rehearsal_button)
        self.stepper = Stepper(theme)
        self.stepper.changed.connect(self._set_num_virtual)
        self.reason_label = text_label(tone="small")
        self.grid = DeviceGrid(theme)
        self.grid.toggled.connect(self._toggle)
        top = row(self.gpu_button, self.rehearsal_button, None, self.stepper, spacing=0)
        self.problem_label = text_label(tone="error")
        self.show_problem(None)
        column(
            top, self.reason_label, self.grid, self.problem_label, on=self, margins=(12, 0, 12, 4), spacing=6
        )

    def show_problem(self, problem: Problem | None) -> None:
        """Show the reason why these devices cannot be used."""
        text = "" if problem is None else problem.sentence
        self.problem_label.setText(text)
        self.problem_label.setVisible(bool(text))
        for button in (self.gpu_button, self.rehearsal_button):
            button.setAccessibleDescription(text)

    @property
    def _gpu_tooltip(self) -> str:
        host = self._gpus.host
        return tr("Train on the GPUs of {host}", host=host) if host else tr(TRAIN_ON_GPUS)

    @property
    def first_button(self) -> QWidget:
        """The widget to focus if the selected devices are invalid."""
        cards = [card for card in self.grid.cards if card.isCheckable() and card.isEnabled()]
        return cards[0] if cards else self.rehearsal_button

    # Selection

    def _selection(self) -> DeviceSelection | None:
        """Return the selection; None if it is invalid or empty."""
        use = self._choice.use
        try:
            return parse_devices(use if isinstance(use, str) else "auto")
        except DeviceError:
            return None

    def _mode(self, selection: DeviceSelection | None) -> str:
        if selection is None:
            # "gpu:" without a number is invalid, but means that GPUs are still to be chosen.
            return "gpu" if str(self._choice.use).startswith("gpu") else "cpu"
        if selection.kind == "auto":
            return "gpu" if any(gpu.is_available for gpu in self._gpus.devices) else "cpu"
        return selection.kind

    def _selectable_gpus(self) -> list[GpuStatus]:
        """Return the GPUs that "all" selects: those that are not lost, share no UUID with another GPU and are
        not split into MIG instances (a run can use only one MIG instance)."""
        gpus = self._gpus.physical_gpus
        return [gpu for gpu in gpus if not (gpu.lost_at is not None or gpu.mig or gpu.has_duplicate_uuid)]

    def _is_selected(self, gpu: GpuStatus, selection: DeviceSelection | None) -> bool:
        if selection is None:
            return False
        if selection.kind == "auto":
            return gpu.is_available
        if not selection.gpus:
            return gpu in self._selectable_gpus()
        return gpu.uuid in selection.gpus or (gpu.parent is None and str(gpu.index) in selection.gpus)

    # Changing the selection

    def _write(self, use: str) -> None:
        self._choice.set_use(use)

    def _switch_to_gpus(self) -> None:
        if self._mode(self._selection()) != "gpu":
            self._write(self._last_gpu_use or "gpu:all")

    def _switch_to_rehearsal(self) -> None:
        if self._mode(self._selection()) != "cpu":
            # Restored when the user switches back to GPUs.
            self._last_gpu_use = str(self._choice.use or "")
            self._write(f"cpu:{self._num_virtual}")

    def _set_num_virtual(self, count: int) -> None:
        self._num_virtual = count
        self._write(f"cpu:{count}")

    def _toggle(self, at: int, chosen: bool) -> None:
        selection = self._selection()
        gpus = self._gpus.devices
        selected = [gpu for gpu in gpus if self._is_selected(gpu, selection) and gpu is not gpus[at]]
        if chosen:
            # A run uses whole GPUs, or one MIG instance.
            whole_gpus = (
                [] if gpus[at].parent is not None else [gpu for gpu in selected if gpu.parent is None]
            )
            selected = [gpu for gpu in gpus if gpu in whole_gpus or gpu is gpus[at]]
        self._select(selected)

    def _select(self, gpus: Sequence[GpuStatus]) -> None:
        # MIG instances go by UUID: an index means a whole GPU.
        names = [str(gpu.index) if gpu.parent is None else gpu.uuid for gpu in gpus]
        self._write(f"gpu:{','.join(names)}" if names else NO_DEVICES_CHOSEN)

    def _select_free(self) -> None:
        self._select([gpu for gpu in self._selectable_gpus() if gpu.is_free])

    # Drawing the devices

    def set_usage(self, kind: str, usage: Usage) -> None:
        """Set the current run's memory use by device index: the index on the host for kind "gpu", the index
        within the run for "virtual"."""
        if (kind, usage) != (self._usage_kind, self._usage):
            self._usage_kind, self._usage = kind, usage
            self.refresh()

    def _usage_of(self, kind: str, index: int) -> tuple[int | None, float | None, bool]:
        return self._usage.get(index, _UNUSED) if kind == self._usage_kind else _UNUSED

    def refresh(self) -> None:
        selection = self._selection()
        mode = self._mode(selection)
        has_gpus = bool(self._gpus.devices)
        self.gpu_button.setEnabled(has_gpus)
        self.gpu_button.setToolTip(self._gpus.reason or self._gpu_tooltip)
        (self.gpu_button if mode == "gpu" else self.rehearsal_button).setChecked(True)
        self._update_labels()
        self.stepper.setVisible(mode == "cpu")
        for button in (self.all_button, self.free_button, self.none_button):
            button.setVisible(mode == "gpu" and has_gpus)
        self._show_reason(mode)
        if mode == "gpu":
            self._show_gpus(selection)
        else:
            self._show_virtual(selection)

    def _update_labels(self) -> None:
        """Label the choice without GPUs: "Rehearsal" for a configuration, which is then rehearsed, and "No
        GPUs" for a script, which then runs unchanged with each rank on the CPU."""
        text, stepper_texts = tr("Rehearsal"), VIRTUAL_DEVICES
        tooltip = tr("Run real training on virtual CPU devices")
        if self._choice.is_for_script:
            text, stepper_texts = tr("No GPUs"), RANKS
            tooltip = tr("Hide GPUs from the script: each rank uses the CPU")
        # refresh runs several times a second, and texts seldom change.
        if self.rehearsal_button.text() != text:
            self.rehearsal_button.setText(text)
            self.rehearsal_button.setToolTip(tooltip)
            self.stepper.set_texts(stepper_texts)

    def _show_reason(self, mode: str) -> None:
        """Show the reason why there is no GPU; if `mode` is "gpu" and the GPUs are simulated, show a note on
        the simulation instead."""
        text = self._gpus.refusal or self._gpus.reason or ""
        if mode == "gpu" and self._gpus.is_simulated:
            text = tr(SIMULATED)
        self.reason_label.setText(text)
        self.reason_label.setVisible(self._gpus.is_known and bool(text))
        self.open_button.setVisible(bool(self._gpus.devices))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def _refresh_if_visible(self) -> None:
        if self.isVisible():
            self.refresh()

    def _show_gpus(self, selection: DeviceSelection | None) -> None:
        gpus = self._gpus.devices
        chosen = [self._is_selected(gpu, selection) for gpu in gpus]
        lead_index = lead_device(self._gpus.imbalance())
        lead = None if lead_index is None else self._gpus.physical_gpus[lead_index]
        self.grid.set_devices([self._gpu_card_data(gpu, gpu is lead) for gpu in gpus], chosen)
        if gpus:
            # If no GPU can be used whole, MIG instances are what can be chosen.
            num_gpus = len(self._selectable_gpus()) or len(chosen)
            self.summary_label.setText(tr("{chosen} of {num_gpus} ·", chosen=sum(chosen), num_gpus=num_gpus))
        else:
            self.summary_label.setText("" if self._gpus.is_known else tr("looking…"))

    def _gpu_card_data(self, gpu: GpuStatus, leads: bool) -> DeviceCardData:
        usage = self._usage_of("gpu", gpu.index) if gpu.parent is None else _UNUSED
        run_used, run_share, run_leads = usage
        # The driver's reading takes precedence, because it includes all processes.
        used = gpu.last_used_bytes if gpu.last_used_bytes is not None else run_used
        share = used / gpu.total_bytes if used is not None and gpu.total_bytes else run_share
        state, note, lost_text = "", "", ""
        if gpu.lost_at is not None:
            state, lost_text = "lost", tr("lost {time}", time=clock_time(gpu.lost_at))
            used = share = None
        elif gpu.mig:
            state, note = "off", "MIG"
        elif gpu.has_duplicate_uuid:
            state, note = "off", "UUID?"
        elif gpu.is_stale:
            state = "stale"
        return DeviceCardData(
            gpu.label, gpu.label.removeprefix("GPU "), used, share, leads or run_leads, note,
            tooltip="\n".join(gpu_tooltip_lines(gpu)), readings="" if lost_text else _readings_text(gpu),
            used_by="" if lost_text else busy_text(gpu),
            lost_text=lost_text, state=state,
        )  # fmt: skip

    def _show_virtual(self, selection: DeviceSelection | None) -> None:
        if selection is not None:
            self._num_virtual = NUM_AUTO_VIRTUAL_DEVICES if selection.kind == "auto" else selection.count or 1
        count = self._num_virtual
        self.stepper.show_value(count)
        ranks, virtual = tr("{n} ranks", "{n} rank", count), tr("{n} virtual", "{n} virtual", count)
        self.summary_label.setText(ranks if self._choice.is_for_script else virtual)
        self.grid.set_devices([self._virtual_card_data(index) for index in range(count)], None)

    def _virtual_card_data(self, index: int) -> DeviceCardData:
        used, share, lead = self._usage_of("virtual", index)
        name = tr("Virtual {index}", index=index)
        tooltip = tr("Virtual device {index} of a rehearsal on the CPU", index=index)
        if self._choice.is_for_script:
            name = tr("Rank {index}", index=index)
            tooltip = tr("Rank {index} of the script, without a GPU", index=index)
        if used is not None:
            tooltip += "\n" + tr("{used} in use by tensors of the displayed run", used=format_bytes(used))
        return DeviceCardData(name, str(index), used, share, lead, "", tooltip)


def _readings_text(gpu: GpuStatus, busy: str = "{share:.0%}") -> str:
    """Return the known readings, such as '91%  64°C  512 W'; `busy` is the format string for utilisation."""
    texts = [
        "" if gpu.utilisation is None else tr(busy, share=gpu.utilisation),
        "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}°C",
        "" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
    ]
    return READINGS_SEPARATOR.join(filter(None, texts))


def gpu_tooltip_lines(gpu: GpuStatus) -> list[str]:
    """Return the tooltip's lines, with the details that do not fit on the card."""
    name = tr("{gpu} (simulated)", gpu=gpu.name) if gpu.simulated else gpu.name
    lines = [f"{gpu.label}: {name}", gpu.uuid]
    if gpu.lost_at is not None:
        return [*lines, tr("Lost at {time}; the GPU no longer responds", time=clock_time(gpu.lost_at))]
    if gpu.total_bytes:
        used = tr("unknown") if gpu.last_used_bytes is None else format_bytes(gpu.last_used_bytes)
        lines.append(tr("{used} of {total} in use", used=used, total=format_bytes(gpu.total_bytes)))
    if gpu.is_stale:
        lines.append(tr("The driver is not responding; these readings are stale"))
    if readings := _readings_text(gpu, tr_noop("{share:.0%} busy")):
        lines.append(readings)
    if gpu.mig:
        lines.append(tr("Split into MIG instances; choose an instance"))
    if gpu.has_duplicate_uuid:
        lines.append(tr("The driver reports no unique UUID for this GPU, so no run can use it"))
    if gpu.run is not None:
        lines.append(tr("In use by run {run}", run=gpu.run_name))
    elif busy_text(gpu):
        lines.append(tr("Used by {who}", who=busy_text(gpu)))
    return lines


def _make_link(text: str, tooltip: str, on_click: Callable[[], object]) -> QPushButton:
    button = push_button(text, tooltip, on_click, kind="quiet", height=20)
    button.setAccessibleName(tooltip)
    return button
