"""What a strategy is: one step of it drawn with the reader's own devices and sizes, where each tensor lives,
what is sent, when it wins, what breaks it, and its options.

Words are read from the catalogue's card, so a new strategy has its page without a line here. Read
state/step_movement.py (what is drawn) before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from PySide6.QtCore import QSignalBlocker, QSize, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QHBoxLayout, QSizePolicy

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_bytes, format_setting
from rankdeck.config.catalog import STRATEGIES, OptionField, StrategyCard, option_fields
from rankdeck.config.planning import Options
from rankdeck.run.movement import Timeline
from rankdeck.run.plan_lines import PREDICTED, PlanLine
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page, PageUnavailable
from rankdeck_app.state.plan_words import device_label, step_text, target_text
from rankdeck_app.state.step_movement import StepMovement
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.chart_colors import BUBBLE, IDLE, phase_label
from rankdeck_app.widgets.controls import ComboBox
from rankdeck_app.widgets.form import shown
from rankdeck_app.widgets.layouts import (
    MIDDLE,
    TOP,
    column,
    framed,
    push_button,
    reading_column,
    row,
    text_label,
)
from rankdeck_app.widgets.painting import Symbol
from rankdeck_app.widgets.step_drawing import StepDrawing
from rankdeck_app.widgets.step_layout import StepFigure

MAX_WIDTH = 1900
_TWO_COLUMNS = 1000
"""Width of the page from which paragraphs stand side by side, in pixels."""
_LINES_TOLD = 4


class StrategyPage(Page):
    """`chosen` carries the strategy's name and the options that were tried here, when the person wants to use
    them. `trust_asked`: the draft's own code would have to run."""

    path_command = "view.show.strategies"
    chosen = Signal(str, object)
    trust_asked = Signal()
    can_split = False

    def __init__(self, wanted_id: str, theme: Theme, step_of: Callable[[StrategyCard], StepMovement]) -> None:
        name = wanted_id.partition(":")[2]
        card = STRATEGIES.get(name)
        if card is None:
            raise PageUnavailable(tr('There is no strategy called "{name}" in this version.', name=name))
        super().__init__(wanted_id, title=tr(card.title), icon=card.icon)
        self.card, self.step = card, step_of(card)
        inside = reading_column(self, MAX_WIDTH, (24, 20, 24, 20), 14)
        inside.addLayout(self._head(theme, card))
        inside.addLayout(self._drawing(theme))
        lives = _paragraph(tr("Where tensors live"), card.lives)
        sends = _paragraph(tr("What is sent"), card.sends)
        wins = _paragraph(tr("When to use it"), card.wins)
        breaks = _paragraph(tr("When to avoid it"), card.breaks)
        pairs = (lives, sends), (wins, breaks)
        self._paragraphs = [row((left, 1), (right, 1), spacing=14) for left, right in pairs]
        for paragraphs in self._paragraphs:
            inside.addLayout(paragraphs)
        if option_fields(card.options):
            inside.addWidget(_options(card))
        inside.addStretch(1)
        self.setFocusProxy(self.use_button)
        self.step.changed.connect(self.refresh)
        self.destroyed.connect(lambda *_, step=self.step: step.want(False))

    def breadcrumbs(self) -> list[str]:
        return [tr("strategies"), self.title]

    def _head(self, theme: Theme, card: StrategyCard) -> QHBoxLayout:
        words = column(
            text_label(self.title, "title", wrap=False),
            text_label(tr(card.summary), "dim", selectable=True),
            spacing=4,
        )
        tooltip = tr("Make {strategy} the strategy of the run being configured", strategy=self.title)
        self.use_button = push_button(
            tr("Use {strategy}", strategy=self.title),
            tooltip,
            lambda: self.chosen.emit(card.name, self.step.variant),
            kind="primary",
        )
        icon = Symbol(theme, card.icon, "rankdeck.rest", QSize(32, 32), 28)
        return row(icon, (words, 1), self.use_button, spacing=14, align=TOP)

    # One step, drawn

    def _drawing(self, theme: Theme) -> QBoxLayout:
        self.drawing = StepDrawing(theme)
        self.drawing.pointed.connect(self._tell)
        self.chart_card = ChartCard(tr("One step"), theme, self.drawing, lambda: csv_rows(self.step))
        self.chart_card.set_source(tr(PREDICTED))
        self.variants = ComboBox(theme)
        self.variants.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToContents)
        self.variants.setAccessibleName(tr("What is drawn"))
        self.variants.setToolTip(tr("Draw the step with another option; the configuration stays as it is"))
        self.variants.activated.connect(lambda place: self.step.set_variant(self.variants.itemData(place)))
        label = text_label(tr("Draw"), "dim", wrap=False)
        label.setBuddy(self.variants)
        asks = tr("Ask the planner what moves in a step")
        self.ask_button = push_button(tr("Draw It"), asks, self.step.ask, height=28)
        column(None, row(None, self.ask_button, None), on=self.drawing)
        self.trust_button = push_button(tr("Trust and Draw…"), "", self.trust_asked.emit, height=28)
        self.notes, self.problem = text_label(tone="dim", selectable=True), text_label(tone="warning")
        self.told = text_label(tone="small")
        self.told.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.told.setFixedHeight(_LINES_TOLD * self.told.fontMetrics().lineSpacing())
        self.told.setAlignment(TOP)
        above = row(label, self.variants, self.trust_button, None, spacing=8, align=MIDDLE)
        return column(above, self.problem, self.notes, self.chart_card, self.told, spacing=8)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.step.want(True)
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.step.want(False)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        for paragraphs in self._paragraphs:
            paragraphs.setDirection(right if self.width() >= _TWO_COLUMNS else down)

    def refresh(self) -> None:
        """Show what is known now; what nobody sees waits until it is shown."""
        if not self.isVisible():
            return
        step = self.step
        self.drawing.set_figure(figure(step, self.card))
        self.chart_card.set_subtitle(*subtitle(step))
        self.chart_card.setFixedHeight(self.chart_card.natural_height)
        for label, words in ((self.problem, step.problem), (self.notes, " ".join(step.notes))):
            label.setText(words)
            label.setVisible(bool(words))
        self.trust_button.setVisible(step.needs_trust)
        is_undrawn = step.timeline is None
        self.chart_card.setHidden(is_undrawn and bool(step.problem))
        self.ask_button.setHidden(step.is_asking or not is_undrawn)
        self.told.setVisible(step.timeline is not None)
        self._show_variants()
        self._tell("")

    def _show_variants(self) -> None:
        offered: list[Options] = [{}, *self.step.variants()]
        if self.step.variant not in offered:
            offered.append(self.step.variant)
        labels = [variant_label(variant) for variant in offered]
        if labels != [self.variants.itemText(place) for place in range(self.variants.count())]:
            with QSignalBlocker(self.variants):
                self.variants.clear()
                for label, variant in zip(labels, offered, strict=True):
                    self.variants.addItem(label, variant)
        self.variants.setCurrentIndex(offered.index(self.step.variant))
        self.variants.setEnabled(len(offered) > 1)
        use = tr("Use {strategy}", strategy=self.title)
        if self.step.variant:
            words = variant_label(self.step.variant)
            use = tr("Use {strategy}, {options}", strategy=self.title, options=words)
        self.use_button.setText(use)

    def _tell(self, words: str) -> None:
        """What is pointed at, and else what can be, and what lengths mean."""
        self.told.setText(words or "\n".join(filter(None, (tr(HINT), lengths(self.step)))))


def _paragraph(title: str, text: str) -> QFrame:
    frame, inside = framed(title)
    inside.addWidget(text_label(tr(text), selectable=True))
    inside.addStretch(1)
    return frame


def _options(card: StrategyCard) -> QFrame:
    frame, inside = framed(tr("Options"))
    grid = QGridLayout()
    grid.setHorizontalSpacing(16)
    grid.setVerticalSpacing(6)
    grid.setColumnStretch(1, 1)
    for at, field in enumerate(option_fields(card.options)):
        grid.addWidget(text_label(field.name, "mono", selectable=True), at, 0, TOP)
        grid.addWidget(text_label(said_of(field), "dim", selectable=True), at, 1)
    inside.addLayout(grid)
    return frame


# From what is known of a strategy's step to what its page draws and says: plain functions, no widgets.

HINT = marked("Point at a block or an arrow, or Tab to the drawing and walk with the arrow keys.")


def said_of(field: OptionField) -> str:
    """What an option does, its default if it has one, and what can be chosen."""
    default = shown(field.default)
    parts = (
        tr(field.text),
        tr("Default: {value}.", value=default) if default else "",
        tr("Choices: {values}.", values=", ".join(map(shown, field.choices))) if field.choices else "",
    )
    return " ".join(filter(None, parts))


def variant_label(variant: Options) -> str:
    """'sync = ring'; what is configured has no options of its own."""
    settings = itertools.starmap(format_setting, variant.items())
    return ", ".join(settings) or tr("as configured")


def figure(step: StepMovement, card: StrategyCard) -> StepFigure:
    """The step, or why there is none."""
    if step.line is None or step.timeline is None:
        return StepFigure(absence=_absence(step, card), is_awaited=step.is_asking)
    formula = tr("{strategy} sends: {what}", strategy=tr(card.title), what=tr(card.sends))
    has_bubble = step.timeline.is_pipeline and not step.overlaps
    return StepFigure(
        labels(step.line, step.timeline), step.timeline, formula, gap=BUBBLE if has_bubble else IDLE
    )


def _absence(step: StepMovement, card: StrategyCard) -> str:
    if step.is_asking:
        return tr("Working out a step under {strategy}…", strategy=tr(card.title))
    return "" if step.problem else tr("Not drawn yet")


def labels(line: PlanLine, timeline: Timeline) -> tuple[str, ...]:
    names = {device.device: device_label(device) for device in line.devices}
    return tuple(
        names.get(place, tr("Device {place}", place=place)) for place in range(len(timeline.intervals))
    )


def subtitle(step: StepMovement) -> tuple[str, ...]:
    """What moves in all, as `rankdeck plan --movement` says it, for which devices, and how long a step is
    predicted to take where that is known."""
    if step.line is None or step.timeline is None:
        return ("",)
    target = tr("for {devices}", devices=target_text(step.line))
    moves = tr("moves {what}", what=_moved(step.timeline))
    time = () if step.line.step is None else (tr("{time} a step", time=step_text(step.line.step)),)
    whole = " · ".join([target, moves, *time])
    return whole, f"{target} · {moves}", moves, target


def _moved(timeline: Timeline) -> str:
    """'all-gather 14.1 MiB in 9, reduce-scatter 11.1 MiB in 5': of all devices together."""
    moved = [
        tr(
            "{what} {size} in {count}",
            what=phase_label(name),
            size=format_bytes(moves.num_bytes),
            count=moves.count,
        )
        for name, moves in timeline.moves().items()
    ]
    return ", ".join(moved) or tr("nothing")


def lengths(step: StepMovement) -> str:
    """What lengths mean, and what is left out."""
    if step.timeline is None:
        return ""
    if step.timeline.is_pipeline:
        words = tr(
            "Predicted: the order is that of the engine's own step. Blocks are as long as their operations, "
            "and what moves has no length; lengths are no times."
        )
    else:
        words = tr(
            "Predicted: the order is that of the engine's own step. Blocks are as long as their operations, "
            "what moves as long as its bytes; lengths are no times."
        )
    overlap = tr("Steps overlap: what a device takes was sent to it a step before.")
    rest = tr("A device waits for what this step does not send, so the rest of its step is left out.")
    return " ".join([words, *[overlap] * step.overlaps, *[rest] * (not step.timeline.is_whole)])


def csv_rows(step: StepMovement) -> Iterator[Sequence[object]]:
    """One row per block and per transfer; begin and end are shares of the step as it is drawn."""
    yield (
        "device", "what", "begin", "end", "operations", "stage", "microbatch", "bytes", "from", "to", "among",
    )  # fmt: skip
    if step.line is None or step.timeline is None:
        return
    names = labels(step.line, step.timeline)
    for name, spans in zip(names, step.timeline.intervals, strict=True):
        for one in spans:
            part = one.part
            times = (f"{one.start:.6f}", f"{one.end:.6f}")
            yield (name, part.name, *times, part.flops, part.stage, part.microbatch, None, None, None, None)
    for line in step.timeline.lines:
        source = None if line.source is None else names[line.source]
        target = None if line.target is None else names[line.target]
        group = ", ".join(names[member] for member in line.group)
        times = (f"{line.left:.6f}", f"{line.at:.6f}")
        yield (None, line.name, *times, None, None, None, line.num_bytes, source, target, group)
