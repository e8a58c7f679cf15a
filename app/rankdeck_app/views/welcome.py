"""The welcome page: a suggested run with a launch button, live and recent runs, and the presets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QLabel, QPushButton, QWidget

from rankdeck.config.presets import Preset
from rankdeck.run.row import RunInfo
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.state.device_choice import REHEARSAL_DEVICES
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.runs import Runs
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ClampedLabel, ElidedLabel
from rankdeck_app.widgets.layouts import (
    TOP,
    clear_layout,
    column,
    make_card_frame,
    make_reading_column,
    push_button,
    row,
    text_label,
)
from rankdeck_app.widgets.run_list import details_text, outcome_style, strategy_title

PAGE_ID = "welcome:"
MAX_RECENT = 6
MAX_WIDTH = 1400
_ROW_HEIGHT = 20
_MIN_CARDS_WIDTH, _MIN_SUGGESTION_WIDTH = 1000, 560
"""Minimum page widths in pixels to show the two cards, or the suggestion's text and buttons, side by side."""
_MAX_LESSON_LINES = 3
"""Maximum number of lines of a preset's text."""
HINT_COMMANDS = ("palette.commands", "palette.quickOpen", "run.launch", "run.stop", "theme.choose")

HintText = Callable[[str], tuple[str, str]]


@dataclass(frozen=True)
class Suggestion:
    """A preset, its devices, and a sentence for the welcome page."""

    preset: Preset
    devices: str
    text: str


def suggest_run(presets: Sequence[Preset], gpus: Sequence[GpuStatus]) -> Suggestion | None:
    """Return a suggestion to run the preset gpt-dp on the free GPUs if at least two are free, otherwise to
    rehearse it on four virtual devices.

    Return None if the preset is missing.
    """
    preset = next((card for card in presets if card.name == "gpt-dp"), None)
    if preset is None:
        return None
    free = [gpu for gpu in gpus if gpu.is_available]
    if len(free) > 1:
        devices = f"gpu:{','.join(str(gpu.index) for gpu in free)}"
        text = tr(
            "{preset} on {num_gpus} GPUs: watch GPU 0 fill up while the other GPUs sit idle.",
            preset=tr(preset.title),
            num_gpus=len(free),
        )
        return Suggestion(preset, devices, text)
    text = tr(
        "{preset} in rehearsal: real training on 4 virtual CPU devices. Watch device 0 use the most memory.",
        preset=tr(preset.title),
    )
    return Suggestion(preset, REHEARSAL_DEVICES, text)


class WelcomePage(Page):
    """The welcome page. `launch_suggested` carries the Suggestion, `preset_picked` a preset, `run_opened` a
    run's path."""

    launch_suggested = Signal(object)
    preset_picked = Signal(object)
    run_opened = Signal(Path)
    script_requested = Signal()

    def __init__(
        self,
        theme: Theme,
        runs: Runs,
        gpus: Gpus,
        presets: Sequence[Preset],
        hint: HintText,
    ) -> None:
        super().__init__(PAGE_ID, title=tr("Welcome"), icon="rocket")
        self._theme, self._runs, self._gpus = theme, runs, gpus
        self._presets = list(presets)
        self.suggestion: Suggestion | None = None
        self.run_buttons: list[QPushButton] = []
        self._shown_runs: list[RunInfo] = []
        inside = make_reading_column(self, MAX_WIDTH, (32, 24, 32, 24), 16)
        about = tr(
            "Train on several GPUs, see what every strategy costs on each GPU, and find out what went wrong."
        )
        inside.addLayout(column(text_label("Rankdeck", "title"), text_label(about, "dim"), spacing=2))
        inside.addWidget(self._make_suggestion_card())
        # Presets have long texts, so they get twice the width of runs.
        runs_card = self._make_runs_card()
        self._cards = row((runs_card, 1), (self._make_presets_card(), 2), spacing=16)
        self._cards.setAlignment(runs_card, TOP)
        inside.addLayout(self._cards)
        inside.addWidget(self._make_hints(hint))
        inside.addStretch(1)
        self.setFocusProxy(self.launch_button)
        gpus.changed.connect(self._update_suggestion)
        runs.changed.connect(self._list_runs)
        self._update_suggestion()
        self._list_runs()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Stack the cards if the page is narrow."""
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._cards.setDirection(down if self.width() < _MIN_CARDS_WIDTH else right)
        self._suggestion_row.setDirection(down if self.width() < _MIN_SUGGESTION_WIDTH else right)

    # One suggested run

    def _make_suggestion_card(self) -> QFrame:
        self.suggestion_frame, inside = make_card_frame(tr("Start here"))
        self.suggestion_label, self.about_label = text_label(), text_label(tone="dim")
        self.launch_button = push_button("", "", self._launch, kind="primary", height=32)
        self.launch_button.setIcon(self._theme.icon("play", "button.foreground"))
        self.launch_button.setIconSize(QSize(14, 14))
        self.script_button = push_button(
            f"  {tr('Run Your Own Script…')}  ",
            tr("Run a script from this folder unmodified"),
            self.script_requested.emit,
            height=32,
        )
        texts = column(self.suggestion_label, self.about_label, None, spacing=2)
        buttons = column(self.launch_button, self.script_button, spacing=8)
        self._suggestion_row = row((texts, 1), buttons, spacing=16)
        inside.addLayout(self._suggestion_row)
        return self.suggestion_frame

    def _launch(self) -> None:
        self.launch_suggested.emit(self.suggestion)

    def _update_suggestion(self) -> None:
        self.suggestion = suggest_run(self._presets, self._gpus.devices)
        self.suggestion_frame.setVisible(self.suggestion is not None)
        if self.suggestion is None:
            return
        name = self.suggestion.preset.name
        self.suggestion_label.setText(self.suggestion.text)
        self.about_label.setText(tr(self.suggestion.preset.about))
        devices, launch = self.suggestion.devices, tr("Launch {preset}", preset=name)
        self.launch_button.setText(f"  {launch}  ")
        self.launch_button.setToolTip(tr("Train {preset} on {devices} now", preset=name, devices=devices))
        self.launch_button.setAccessibleName(launch)

    # Runs

    def _make_runs_card(self) -> QFrame:
        frame, inside = make_card_frame(tr("Runs"))
        self.no_runs_label = text_label(tr("No runs yet."), "dim")
        self._run_rows = column(spacing=2)
        inside.addWidget(self.no_runs_label)
        inside.addLayout(self._run_rows)
        inside.addStretch(1)
        return frame

    def _list_runs(self) -> None:
        """List the live runs, then the most recent of the other runs."""
        alive = self._runs.alive_runs
        recent = [info for info in self._runs.infos if not (info.is_alive or info.labels.is_archived)]
        # The limit never hides a live run.
        infos = [*alive, *recent][: max(MAX_RECENT, len(alive))]
        self.no_runs_label.setVisible(self._runs.is_known and not infos)
        # New rows would take the focus away from a link.
        if infos == self._shown_runs:
            return
        self._shown_runs = infos
        clear_layout(self._run_rows)
        self.run_buttons = []
        for info in infos:
            self._run_rows.addWidget(self._make_run_row(info))

    def _make_run_row(self, info: RunInfo) -> QWidget:
        icon, tone, word = outcome_style(info.state)
        tooltip = tr("Open {path}", path=info.path)
        button = _make_link(info.title, tooltip, lambda: self.run_opened.emit(info.path))
        button.setIcon(self._theme.icon(icon, tone))
        button.setAccessibleName(tr("Open {run}, {outcome}", run=info.title, outcome=word))
        state = "" if info.state == "completed" else word  # a normal outcome needs no text
        text = " · ".join(filter(None, (strategy_title(info.strategy), state, details_text(info))))
        self.run_buttons.append(button)
        return _make_row(button, text)

    # Presets

    def _make_presets_card(self) -> QFrame:
        frame, inside = make_card_frame(tr("Presets"))
        self.preset_buttons: list[QPushButton] = []
        rows = QGridLayout()
        rows.setHorizontalSpacing(10)
        rows.setVerticalSpacing(4)
        rows.setColumnStretch(1, 1)
        for at, preset in enumerate(self._presets):
            tooltip = f"{tr(preset.text)}\n{tr('Use this preset as the configuration in the side bar')}"
            button = _make_link(preset.name, tooltip, partial(self.preset_picked.emit, preset))
            self.preset_buttons.append(button)
            needs = tr("needs a GPU") if preset.needs_gpu else ""
            facts = (strategy_title(preset.strategy), needs, tr(preset.lesson))
            lesson = ClampedLabel(_MAX_LESSON_LINES)
            lesson.setProperty("tone", "small")
            lesson.show_text(" · ".join(filter(None, facts)))
            rows.addWidget(button, at, 0, Qt.AlignmentFlag.AlignTop)
            rows.addWidget(lesson, at, 1, Qt.AlignmentFlag.AlignTop)
            rows.setRowMinimumHeight(at, _ROW_HEIGHT)
        inside.addLayout(rows)
        inside.addStretch(1)
        return frame

    def _make_hints(self, hint: HintText) -> QLabel:
        """Create the label with the key hints; its lines break only between hints."""
        hints = [f"{keys}  {label}" for label, keys in map(hint, HINT_COMMANDS) if keys]
        unbroken = [f"{text}    ".replace(" ", "\u00a0") for text in hints]
        return text_label(" ".join(unbroken), "small")


def _make_link(text: str, tooltip: str, on_click: Callable[[], object]) -> QPushButton:
    button = push_button(text, tooltip, on_click, kind="link")
    button.setProperty("flush", "true")
    button.setCursor(Qt.CursorShape.PointingHandCursor)
    return button


def _make_row(button: QPushButton, text: str) -> QWidget:
    """Create a row with a link button, followed by a text that is elided if it does not fit."""
    label = ElidedLabel(text)
    label.setProperty("tone", "small")
    widget = QWidget()
    widget.setMinimumHeight(_ROW_HEIGHT)
    row(button, (label, 1), on=widget, spacing=10)
    return widget
