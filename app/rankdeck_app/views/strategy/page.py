"""Explains a strategy and draws one of its steps with the draft's devices and sizes.

The text says where each tensor lives, what is sent, when to use the strategy and when to avoid it, and which
options it has.

The texts come from the catalogue, so a new strategy gets its page without code in this module. Read
state/step_movement.py (the drawn data) first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from PySide6.QtCore import QSignalBlocker, QSize, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QHBoxLayout, QSizePolicy

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes, format_setting
from rankdeck.config.catalog import STRATEGIES, OptionField, StrategySpec, option_fields
from rankdeck.config.planning import StrategyOptions
from rankdeck.run.movement import Timeline
from rankdeck.run.plan_lines import PREDICTED, PlanLine
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page, PageUnavailableError
from rankdeck_app.state.plan_text import device_label, step_text, target_text
from rankdeck_app.state.step_movement import StepMovement
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.chart_colors import BUBBLE, IDLE, phase_label
from rankdeck_app.widgets.controls import ComboBox
from rankdeck_app.widgets.form import format_value
from rankdeck_app.widgets.layouts import (
    MIDDLE,
    TOP,
    column,
    make_card_frame,
    make_reading_column,
    push_button,
    row,
    text_label,
)
from rankdeck_app.widgets.painting import IconWidget
from rankdeck_app.widgets.step_drawing import StepDrawing
from rankdeck_app.widgets.step_layout import StepDrawingData

MAX_WIDTH = 1900
_TWO_COLUMN_WIDTH = 1000
"""Minimum page width in pixels at which paragraphs are side by side."""
_HINT_LINES = 4


class StrategyPage(Page):
    """Page of a strategy. `chosen` carries the strategy's name and the options tried on the page; it is
    emitted when the user applies the strategy.

    `trust_requested` is emitted if the drawing must run the draft's code.
    """

    breadcrumb_command = "view.show.strategies"
    chosen = Signal(str, object)
    trust_requested = Signal()
    can_split = False

    def __init__(self, wanted_id: str, theme: Theme, step_of: Callable[[StrategySpec], StepMovement]) -> None:
        name = wanted_id.partition(":")[2]
        card = STRATEGIES.get(name)
        if card is None:
            raise PageUnavailableError(tr('There is no strategy called "{name}" in this version.', name=name))
        super().__init__(wanted_id, title=tr(card.title), icon=card.icon)
        self.spec, self.step_movement = card, step_of(card)
        inside = make_reading_column(self, MAX_WIDTH, (24, 20, 24, 20), 14)
        inside.addLayout(self._make_header(theme, card))
        inside.addLayout(self._make_drawing(theme))
        lives = _make_paragraph(tr("Where tensors live"), card.placement)
        sends = _make_paragraph(tr("What is sent"), card.communication)
        wins = _make_paragraph(tr("When to use it"), card.strengths)
        breaks = _make_paragraph(tr("When to avoid it"), card.limits)
        pairs = (lives, sends), (wins, breaks)
        self._paragraphs = [row((left, 1), (right, 1), spacing=14) for left, right in pairs]
        for paragraphs in self._paragraphs:
            inside.addLayout(paragraphs)
        if option_fields(card.options):
            inside.addWidget(_make_options(card))
        inside.addStretch(1)
        self.setFocusProxy(self.use_button)
        self.step_movement.changed.connect(self.refresh)
        # Bound as a default, because the page is gone when this runs.
        self.destroyed.connect(lambda *_, step=self.step_movement: step.set_wanted(False))

    def breadcrumbs(self) -> list[str]:
        return [tr("strategies"), self.title]

    def _make_header(self, theme: Theme, card: StrategySpec) -> QHBoxLayout:
        texts = column(
            text_label(self.title, "title", wrap=False),
            text_label(tr(card.summary), "dim", selectable=True),
            spacing=4,
        )
        tooltip = tr("Use {strategy} for the run being configured", strategy=self.title)
        self.use_button = push_button(
            tr("Use {strategy}", strategy=self.title),
            tooltip,
            lambda: self.chosen.emit(card.name, self.step_movement.variant),
            kind="primary",
        )
        icon = IconWidget(theme, card.icon, "rankdeck.rest", QSize(32, 32), 28)
        return row(icon, (texts, 1), self.use_button, spacing=14, align=TOP)

    # One step, drawn

    def _make_drawing(self, theme: Theme) -> QBoxLayout:
        self.drawing = StepDrawing(theme)
        self.drawing.mark_text_changed.connect(self._show_hint)
        self.chart_card = ChartCard(tr("One step"), theme, self.drawing, lambda: csv_rows(self.step_movement))
        self.chart_card.set_source(tr(PREDICTED))
        self.variant_box = ComboBox(theme)
        self.variant_box.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToContents)
        self.variant_box.setAccessibleName(tr("Options to draw"))
        self.variant_box.setToolTip(
            tr("Draw the step with another option; the configuration does not change")
        )
        self.variant_box.activated.connect(
            lambda index: self.step_movement.set_variant(self.variant_box.itemData(index))
        )
        label = text_label(tr("Draw"), "dim", wrap=False)
        label.setBuddy(self.variant_box)
        tooltip = tr("Predict which data moves in a step")
        self.draw_button = push_button(tr("Draw Step"), tooltip, self.step_movement.plan_now, height=28)
        column(None, row(None, self.draw_button, None), on=self.drawing)
        self.trust_button = push_button(tr("Trust and Draw…"), "", self.trust_requested.emit, height=28)
        self.notes_label, self.problem_label = (
            text_label(tone="dim", selectable=True),
            text_label(tone="warning"),
        )
        self.hint_label = text_label(tone="small")
        self.hint_label.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        # A fixed height, so that changing hints do not move the page.
        self.hint_label.setFixedHeight(_HINT_LINES * self.hint_label.fontMetrics().lineSpacing())
        self.hint_label.setAlignment(TOP)
        above = row(label, self.variant_box, self.trust_button, None, spacing=8, align=MIDDLE)
        return column(
            above, self.problem_label, self.notes_label, self.chart_card, self.hint_label, spacing=8
        )

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.step_movement.set_wanted(True)
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.step_movement.set_wanted(False)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        for paragraphs in self._paragraphs:
            paragraphs.setDirection(right if self.width() >= _TWO_COLUMN_WIDTH else down)

    def refresh(self) -> None:
        """Show the current drawing. If the page is hidden, this is done when it is next shown."""
        if not self.isVisible():
            return
        step = self.step_movement
        self.drawing.set_data(step_data(step, self.spec))
        self.chart_card.set_subtitle(*subtitle(step))
        self.chart_card.setFixedHeight(self.chart_card.preferred_height)
        for label, text in ((self.problem_label, step.problem), (self.notes_label, " ".join(step.notes))):
            label.setText(text)
            label.setVisible(bool(text))
        self.trust_button.setVisible(step.needs_trust)
        is_undrawn = step.timeline is None
        self.chart_card.setHidden(is_undrawn and bool(step.problem))
        self.draw_button.setHidden(step.is_planning or not is_undrawn)
        self.hint_label.setVisible(step.timeline is not None)
        self._show_variants()
        self._show_hint("")

    def _show_variants(self) -> None:
        offered: list[StrategyOptions] = [{}, *self.step_movement.variants()]
        # The draft may have changed since the variant was chosen; keep it in the list.
        if self.step_movement.variant not in offered:
            offered.append(self.step_movement.variant)
        labels = [variant_label(variant) for variant in offered]
        if labels != [self.variant_box.itemText(index) for index in range(self.variant_box.count())]:
            with QSignalBlocker(self.variant_box):
                self.variant_box.clear()
                for label, variant in zip(labels, offered, strict=True):
                    self.variant_box.addItem(label, variant)
        self.variant_box.setCurrentIndex(offered.index(self.step_movement.variant))
        self.variant_box.setEnabled(len(offered) > 1)
        use = tr("Use {strategy}", strategy=self.title)
        if self.step_movement.variant:
            options = variant_label(self.step_movement.variant)
            use = tr("Use {strategy}, {options}", strategy=self.title, options=options)
        self.use_button.setText(use)

    def _show_hint(self, text: str) -> None:
        """Show `text`, which describes the marked item; if `text` is empty, explain how to mark items and
        what the lengths mean."""
        self.hint_label.setText(
            text or "\n".join(filter(None, (tr(DRAWING_HINT), lengths_note(self.step_movement))))
        )


def _make_paragraph(title: str, text: str) -> QFrame:
    frame, inside = make_card_frame(title)
    inside.addWidget(text_label(tr(text), selectable=True))
    inside.addStretch(1)
    return frame


def _make_options(card: StrategySpec) -> QFrame:
    frame, inside = make_card_frame(tr("Options"))
    grid = QGridLayout()
    grid.setHorizontalSpacing(16)
    grid.setVerticalSpacing(6)
    grid.setColumnStretch(1, 1)
    for at, field in enumerate(option_fields(card.options)):
        grid.addWidget(text_label(field.name, "mono", selectable=True), at, 0, TOP)
        grid.addWidget(text_label(option_text(field), "dim", selectable=True), at, 1)
    inside.addLayout(grid)
    return frame


# Builds the page's drawing and texts from a strategy's step: plain functions, no widgets.

DRAWING_HINT = tr_noop(
    "Hover over a block or an arrow, or press Tab to focus the drawing and move with the arrow keys."
)


def option_text(field: OptionField) -> str:
    """Return an option's description, its default and its choices."""
    default = format_value(field.default)
    texts = (
        tr(field.text),
        tr("Default: {value}.", value=default) if default else "",
        tr("Choices: {values}.", values=", ".join(map(format_value, field.choices))) if field.choices else "",
    )
    return " ".join(filter(None, texts))


def variant_label(variant: StrategyOptions) -> str:
    """Return the variant's options, such as 'sync = ring', or "as configured" if it has none."""
    settings = itertools.starmap(format_setting, variant.items())
    return ", ".join(settings) or tr("as configured")


def step_data(step: StepMovement, card: StrategySpec) -> StepDrawingData:
    """Return the drawing's data; without a timeline, they contain only the text to show in its place."""
    if step.line is None or step.timeline is None:
        return StepDrawingData(empty_text=_absence_text(step, card), is_pending=step.is_planning)
    formula = tr("{strategy} sends: {what}", strategy=tr(card.title), what=tr(card.communication))
    has_bubble = step.timeline.is_pipeline and not step.overlaps
    return StepDrawingData(
        device_labels(step.line, step.timeline), step.timeline, formula, gap=BUBBLE if has_bubble else IDLE
    )


def _absence_text(step: StepMovement, card: StrategySpec) -> str:
    if step.is_planning:
        return tr("Planning a step with {strategy}…", strategy=tr(card.title))
    return "" if step.problem else tr("Not drawn yet")


def device_labels(line: PlanLine, timeline: Timeline) -> tuple[str, ...]:
    names = {device.device: device_label(device) for device in line.devices}
    return tuple(
        names.get(device_number, tr("Device {place}", place=device_number))
        for device_number in range(len(timeline.intervals))
    )


def subtitle(step: StepMovement) -> tuple[str, ...]:
    """Return texts with the devices, the total traffic as in `rankdeck plan --movement`, and the predicted
    step time if known, in successively shorter forms."""
    if step.line is None or step.timeline is None:
        return ("",)
    target = tr("for {devices}", devices=target_text(step.line))
    moves = tr("moves {what}", what=_movement_text(step.timeline))
    time = () if step.line.step is None else (tr("{time} a step", time=step_text(step.line.step)),)
    full_text = " · ".join([target, moves, *time])
    return full_text, f"{target} · {moves}", moves, target


def _movement_text(timeline: Timeline) -> str:
    """Return each operation's total bytes and number of transfers on all devices, such as 'all-gather 14.1
    MiB (9×), reduce-scatter 11.1 MiB (5×)'."""
    moved = [
        tr(
            "{what} {size} ({count}×)",
            what=phase_label(name),
            size=format_bytes(moves.num_bytes),
            count=moves.count,
        )
        for name, moves in timeline.traffic_by_operation().items()
    ]
    return ", ".join(moved) or tr("nothing")


def lengths_note(step: StepMovement) -> str:
    """Return a note on what lengths in the drawing mean and what the drawing leaves out."""
    if step.timeline is None:
        return ""
    if step.timeline.is_pipeline:
        text = tr(
            "Predicted, in the order in which the engine runs a step. Block lengths show "
            "operation counts, not time; transfers have no length."
        )
    else:
        text = tr(
            "Predicted, in the order in which the engine runs a step. Block lengths show "
            "operation counts and transfer lengths show bytes, not time."
        )
    overlap = tr("Steps overlap: each device uses data that was sent to it in the previous step.")
    rest = tr(
        "A device waits for data that no device sends in this step, so the rest of that device's step is not "
        "drawn."
    )
    return " ".join([text, *[overlap] * step.overlaps, *[rest] * (not step.timeline.is_whole)])


def csv_rows(step: StepMovement) -> Iterator[Sequence[object]]:
    """Yield one row per block and per transfer, with its start and end as fractions of the drawn step."""
    yield (
        "device", "what", "begin", "end", "operations", "stage", "microbatch", "bytes", "from", "to", "among",
    )  # fmt: skip
    if step.line is None or step.timeline is None:
        return
    names = device_labels(step.line, step.timeline)
    for name, spans in zip(names, step.timeline.intervals, strict=True):
        for interval in spans:
            block = interval.operation
            times = (f"{interval.start:.6f}", f"{interval.end:.6f}")
            yield (
                name,
                block.name,
                *times,
                block.flops,
                block.stage,
                block.microbatch,
                None,
                None,
                None,
                None,
            )
    for line in step.timeline.lines:
        source = None if line.source is None else names[line.source]
        target = None if line.target is None else names[line.target]
        group = ", ".join(names[device] for device in line.group)
        times = (f"{line.left:.6f}", f"{line.at:.6f}")
        yield (None, line.name, *times, None, None, None, line.num_bytes, source, target, group)
