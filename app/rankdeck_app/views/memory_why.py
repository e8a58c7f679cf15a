"""Why out of memory: what stood on the device when an allocation failed, by kind and by module, which one it
was and in whose line, and what the planner says would need less, each with the button that does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QPushButton, QWidget

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.fixes import Fix
from rankdeck.diagnose.out_of_memory import HeldPart, RanOut
from rankdeck.run.plan_lines import PREDICTED
from rankdeck_app.language import spoken, tr
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page
from rankdeck_app.state.fixes import MemoryWhy
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.controls import ElidedLabel
from rankdeck_app.widgets.holder_list import Holder, HolderList, HoldersFigure
from rankdeck_app.widgets.layouts import MIDDLE, TOP, clear, column, push_button, row, text_label

_WIDE = 760
_OWN_ALONE = (
    marked("when it failed: weights, gradients and optimizer; activations belong to no module"),
    marked("when it failed, without activations"),
    marked("without activations"),
)
_NOBODY = marked("nobody told")
_FRAME, _LINE, _FIX = 100, 18, 32
"""In pixels: of a card all but its lines, a line, and the row of a fix."""

Acts = Mapping[str, Callable[..., Any]]
"""label (of changes), take (changes), open_code (a line of a file), save (the page) and closed."""


class MemoryWhyPage(Page):
    """Follows a MemoryWhy; frames of the clock bring it up to date while the page is seen."""

    path_command = "view.show.runs"
    can_split = False

    def __init__(
        self, wanted_id: str, theme: Theme, clock: FrameClock, memory_why: MemoryWhy, acts: Acts
    ) -> None:
        super().__init__(wanted_id, title=tr("Why Out of Memory"), icon="lightbulb")
        self.memory_why, self._acts, self._theme = memory_why, acts, theme
        self.headline = text_label(tr("Reading what the run told…"), "title", selectable=True)
        self.tipped = text_label(selectable=True)
        self.link = push_button("", "", self._open_code, kind="link")
        self.link.setProperty("flush", "true")
        self.code = ElidedLabel("")
        self.code.setProperty("tone", "mono")
        self.save_button = push_button(
            tr("Save as a Page…"), tr("One HTML file with all of this, for an issue report"), acts["save"]
        )
        self.kinds, self.modules = HolderList(theme), HolderList(theme)
        self.kinds.setAccessibleName(tr("What stood on the device, by kind"))
        self.modules.setAccessibleName(tr("What stood on the device, by module"))
        self.kinds_card = ChartCard(tr("By kind"), theme, self.kinds, self._csv_of_kinds)
        self.modules_card = ChartCard(tr("By module"), theme, self.modules, self._csv_of_modules)
        self.fixes = FixList(acts)
        self._fixes_card = ChartCard(tr("Ways out"), theme, self.fixes)
        self._fixes_card.set_source(tr(PREDICTED))
        head = row((self.headline, 1), self.save_button, spacing=12, align=TOP)
        self._cards = row((self.kinds_card, 1), (self.modules_card, 1), spacing=10)
        column(
            head, self.tipped, row(self.link, (self.code, 1), spacing=12, align=MIDDLE), (self._cards, 100),
            self._fixes_card, None, on=self, margins=(16, 14, 16, 12), spacing=8,
        )  # fmt: skip
        self.setFocusProxy(self.save_button)
        memory_why.changed.connect(self.refresh)
        clock.subscribe(self._frame)
        self.destroyed.connect(lambda: acts["closed"]())
        self.refresh()

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), self.memory_why.run.title, tr("Why out of memory")]

    def tooltip(self) -> str:
        return str(self.memory_why.run.run.path)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._cards.setDirection(right if self.width() >= _WIDE else down)

    def _frame(self) -> None:
        self.memory_why.look()

    def refresh(self) -> None:
        """Show what is known by now."""
        ran_out = self.memory_why.ran_out
        if ran_out is None:
            if self.memory_why.run.outcome is not None:
                self.headline.setText(tr("This run did not run out of memory."))
            self.link.hide()
            return
        title = f"{tr('Why')} · {self.memory_why.run.title}"
        if title != self.title:
            self.set_title(title)
        self.headline.setText(spoken(ran_out.headline))
        self.tipped.setText(spoken(ran_out.tipped))
        self._show_code(ran_out)
        self.kinds.set_figure(_holders(ran_out.kinds))
        on_device = (
            tr("By kind on {device}", device=spoken(ran_out.device)) if ran_out.device else tr("By kind")
        )
        self.kinds_card.set_title(on_device)
        self.kinds_card.set_subtitle(*map(spoken, (ran_out.moment, *ran_out.short_moments)))
        self.kinds_card.set_source(tr(ran_out.source) if ran_out.kinds else "")
        self.modules.set_figure(_holders(ran_out.modules, "run"))
        self.modules_card.set_subtitle(*map(tr, _OWN_ALONE if ran_out.modules else (_NOBODY,)))
        for card in (self.kinds_card, self.modules_card):
            card.setMaximumHeight(_FRAME + _LINE * max(3, len(ran_out.kinds), len(ran_out.modules)))
        words = self.memory_why.state or ("" if ran_out.fixes else tr(ran_out.no_fixes))
        self.fixes.show_fixes(ran_out.fixes, words)
        self._fixes_card.setFixedHeight(self._fixes_card.natural_height)

    def _show_code(self, ran_out: RanOut) -> None:
        code = ran_out.code
        self.link.setVisible(code is not None)
        self.code.setVisible(code is not None)
        if code is not None:
            name = Path(code.file).name
            self.link.setText(tr("{file}, line {line}", file=name, line=code.line))
            self.link.setToolTip(tr("Open {file} at line {line}", file=code.file, line=code.line))
            self.code.setText(code.text)

    def _open_code(self) -> None:
        ran_out = self.memory_why.ran_out
        if ran_out is not None and ran_out.code is not None:
            self._acts["open_code"](Path(ran_out.code.file), ran_out.code.line, spoken(ran_out.tipped))

    def _csv_of_kinds(self) -> Iterator[Sequence[object]]:
        yield ("kind", "bytes")
        ran_out = self.memory_why.ran_out
        for part in () if ran_out is None else ran_out.kinds:
            yield (part.name, part.num_bytes)

    def _csv_of_modules(self) -> Iterator[Sequence[object]]:
        yield ("module", "bytes", "of which")
        ran_out = self.memory_why.ran_out
        for part in () if ran_out is None else ran_out.modules:
            yield (part.name, part.num_bytes, part.more)


def _holders(parts: Sequence[HeldPart], kind: str = "") -> HoldersFigure:
    """All of one kind; without it each part is a kind itself."""
    total = sum(part.num_bytes for part in parts)
    holders = tuple(
        Holder(
            kind or part.name,
            spoken(part.name) if kind else tr(part.name),
            part.num_bytes,
            spoken(part.more),
        )
        for part in parts
    )
    facts = ((tr("together"), format_bytes(total)),) if parts else ()
    return HoldersFigure(holders, total or None, facts)


class FixList(QWidget):
    """A fix per row: what, the predicted headroom, whether it fits, and the button that makes it."""

    def __init__(self, acts: Acts) -> None:
        super().__init__()
        self._acts = acts
        self._fixes: list[tuple[Fix, str]] = []
        self.buttons: list[QPushButton] = []
        self.words = text_label(tone="dim")
        self._grid = QGridLayout()
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(16)
        self._grid.setVerticalSpacing(0)
        self._grid.setColumnStretch(1, 1)
        column(self._grid, self.words, on=self, margins=(4, 0, 4, 2), spacing=6)

    def show_fixes(self, fixes: Sequence[Fix], words: str) -> None:
        """Rows stay while they say the same: one of their buttons may have the keyboard."""
        self.words.setText(words)
        self.words.setVisible(bool(words))
        labelled = [(fix, str(self._acts["label"](fix.changes))) for fix in fixes]
        if labelled == self._fixes:
            return
        self._fixes = labelled
        clear(self._grid)
        self.buttons = []
        for at, (fix, label) in enumerate(labelled):
            self._add(at, fix, label)

    def sizeHint(self) -> QSize:
        words = self.words.sizeHint().height() + 6 if self.words.text() else 0
        return QSize(400, _FIX * len(self._fixes) + words + 2)

    def _add(self, at: int, fix: Fix, label: str) -> None:
        def take() -> None:
            self._acts["take"](fix.changes)

        figure = ", ".join(filter(None, (spoken(fix.headroom), fix.verdict and tr(fix.verdict))))
        name, told = ElidedLabel(spoken(fix.text)), text_label(figure, wrap=False)
        button = push_button(label, tr("{act}: predicted {figure}", act=label, figure=figure), take)
        button.setAccessibleName(tr("{act}: {figure}, predicted", act=label, figure=figure))
        self.buttons.append(button)
        for place, part in enumerate((text_label(f"{at + 1}.", "mono", wrap=False), name, told, button)):
            align = Qt.AlignmentFlag(0) if part is name else MIDDLE
            self._grid.addWidget(part, at, place, align)
