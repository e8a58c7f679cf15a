"""Explains why a run ran out of memory, and offers fixes.

The page shows the device's memory by kind and by module at the time of the failed allocation, that allocation
and its line of code, and the planner's fixes, each with a button that applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QPushButton, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.fixes import Fix
from rankdeck.diagnose.out_of_memory import MemoryShare, OutOfMemoryReport
from rankdeck.run.plan_lines import PREDICTED
from rankdeck_app.language import tr, translate
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page
from rankdeck_app.state.fixes import OutOfMemoryAnalysis
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.controls import ElidedLabel
from rankdeck_app.widgets.holder_list import Holder, HolderList, HolderListData
from rankdeck_app.widgets.layouts import MIDDLE, TOP, clear_layout, column, push_button, row, text_label

_TWO_COLUMN_WIDTH = 760
_MODULE_SUBTITLES = (
    tr_noop("at the failed allocation: weights, gradients and optimizer; activations belong to no module"),
    tr_noop("at the failed allocation, without activations"),
    tr_noop("without activations"),
)
_NO_MODULES = tr_noop("not reported")
_CARD_PADDING, _LINE_HEIGHT, _FIX_HEIGHT = 100, 18, 32
"""Heights in pixels: a card without its lines, a line, and a fix's row."""

PageActions = Mapping[str, Callable[..., Any]]
"""Callbacks: `label` returns the button label for a fix's changes, `take` applies the changes, `open_code`
opens a line of a file, `save` saves the page, and `closed` is called when the page is destroyed."""


class OutOfMemoryPage(Page):
    """Page of an OutOfMemoryAnalysis, updated on ticks of the frame clock."""

    breadcrumb_command = "view.show.runs"
    can_split = False

    def __init__(
        self,
        wanted_id: str,
        theme: Theme,
        clock: FrameClock,
        memory_why: OutOfMemoryAnalysis,
        acts: PageActions,
    ) -> None:
        super().__init__(wanted_id, title=tr("Out of Memory"), icon="lightbulb")
        self.analysis, self._actions, self._theme = memory_why, acts, theme
        self.headline_label = text_label(tr("Reading the run's events…"), "title", selectable=True)
        self.cause_label = text_label(selectable=True)
        self.code_link = push_button("", "", self._open_code, kind="link")
        self.code_link.setProperty("flush", "true")
        self.code_label = ElidedLabel("")
        self.code_label.setProperty("tone", "mono")
        self.save_button = push_button(
            tr("Save as HTML Page…"),
            tr("Save this page as one HTML file to attach to an issue"),
            acts["save"],
        )
        self.kind_list, self.module_list = HolderList(theme), HolderList(theme)
        self.kind_list.setAccessibleName(tr("Memory on the device, by kind"))
        self.module_list.setAccessibleName(tr("Memory on the device, by module"))
        self.kinds_card = ChartCard(tr("By kind"), theme, self.kind_list, self._kind_rows)
        self.modules_card = ChartCard(tr("By module"), theme, self.module_list, self._module_rows)
        self.fix_list = FixList(acts)
        self._fixes_card = ChartCard(tr("Fixes"), theme, self.fix_list)
        self._fixes_card.set_source(tr(PREDICTED))
        header = row((self.headline_label, 1), self.save_button, spacing=12, align=TOP)
        self._cards = row((self.kinds_card, 1), (self.modules_card, 1), spacing=10)
        column(
            header, self.cause_label, row(self.code_link, (self.code_label, 1), spacing=12, align=MIDDLE),
            (self._cards, 100), self._fixes_card, None, on=self, margins=(16, 14, 16, 12), spacing=8,
        )  # fmt: skip
        self.setFocusProxy(self.save_button)
        memory_why.changed.connect(self.refresh)
        clock.subscribe(self._on_frame)
        # Not through self, which is gone by then.
        self.destroyed.connect(lambda: acts["closed"]())
        self.refresh()

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), self.analysis.run.title, tr("Out of memory")]

    def tooltip(self) -> str:
        return str(self.analysis.run.run_dir.path)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._cards.setDirection(right if self.width() >= _TWO_COLUMN_WIDTH else down)

    def _on_frame(self) -> None:
        self.analysis.update()

    def refresh(self) -> None:
        """Show the current analysis."""
        ran_out = self.analysis.report
        if ran_out is None:
            # While the outcome is unknown, the events are not read to their end yet.
            if self.analysis.run.outcome is not None:
                self.headline_label.setText(tr("This run did not run out of memory."))
            self.code_link.hide()
            return
        title = f"{tr('Why')} · {self.analysis.run.title}"
        if title != self.title:
            self.set_title(title)
        self.headline_label.setText(translate(ran_out.headline))
        self.cause_label.setText(translate(ran_out.failed_allocation))
        self._show_code(ran_out)
        self.kind_list.set_data(_make_holders(ran_out.kinds))
        on_device = (
            tr("By kind on {device}", device=translate(ran_out.device)) if ran_out.device else tr("By kind")
        )
        self.kinds_card.set_title(on_device)
        self.kinds_card.set_subtitle(*map(translate, (ran_out.memory_time, *ran_out.short_memory_times)))
        self.kinds_card.set_source(tr(ran_out.source) if ran_out.kinds else "")
        self.module_list.set_data(_make_holders(ran_out.modules, "run"))
        self.modules_card.set_subtitle(*map(tr, _MODULE_SUBTITLES if ran_out.modules else (_NO_MODULES,)))
        # The same height for both, so that the cards align.
        for card in (self.kinds_card, self.modules_card):
            card.setMaximumHeight(
                _CARD_PADDING + _LINE_HEIGHT * max(3, len(ran_out.kinds), len(ran_out.modules))
            )
        message = self.analysis.status or ("" if ran_out.fixes else tr(ran_out.no_fixes_text))
        self.fix_list.show_fixes(ran_out.fixes, message)
        self._fixes_card.setFixedHeight(self._fixes_card.preferred_height)

    def _show_code(self, ran_out: OutOfMemoryReport) -> None:
        code = ran_out.code_line
        self.code_link.setVisible(code is not None)
        self.code_label.setVisible(code is not None)
        if code is not None:
            name = Path(code.file).name
            self.code_link.setText(tr("{file}, line {line}", file=name, line=code.line))
            self.code_link.setToolTip(tr("Open {file} at line {line}", file=code.file, line=code.line))
            self.code_label.setText(code.text)

    def _open_code(self) -> None:
        ran_out = self.analysis.report
        if ran_out is not None and ran_out.code_line is not None:
            self._actions["open_code"](
                Path(ran_out.code_line.file), ran_out.code_line.line, translate(ran_out.failed_allocation)
            )

    def _kind_rows(self) -> Iterator[Sequence[object]]:
        yield ("kind", "bytes")
        ran_out = self.analysis.report
        for share in () if ran_out is None else ran_out.kinds:
            yield (share.name, share.num_bytes)

    def _module_rows(self) -> Iterator[Sequence[object]]:
        yield ("module", "bytes", "of which")
        ran_out = self.analysis.report
        for share in () if ran_out is None else ran_out.modules:
            yield (share.name, share.num_bytes, share.detail)


def _make_holders(shares: Sequence[MemoryShare], kind: str = "") -> HolderListData:
    """Return the shares as data for a holder list. All entries have the kind `kind`; if it is empty, each
    share's name is also the kind of its entry."""
    total = sum(share.num_bytes for share in shares)
    holders = tuple(
        Holder(
            kind or share.name,
            translate(share.name) if kind else tr(share.name),
            share.num_bytes,
            translate(share.detail),
        )
        for share in shares
    )
    facts = ((tr("together"), format_bytes(total)),) if shares else ()
    return HolderListData(holders, total or None, facts)


class FixList(QWidget):
    """A row per fix: its text, the predicted headroom, whether the run then fits, and the button that applies
    the fix."""

    def __init__(self, acts: PageActions) -> None:
        super().__init__()
        self._actions = acts
        self._fixes: list[tuple[Fix, str]] = []
        self.buttons: list[QPushButton] = []
        self.message = text_label(tone="dim")
        self._grid = QGridLayout()
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(16)
        self._grid.setVerticalSpacing(0)
        self._grid.setColumnStretch(1, 1)
        column(self._grid, self.message, on=self, margins=(4, 0, 4, 2), spacing=6)

    def show_fixes(self, fixes: Sequence[Fix], text: str) -> None:
        """Show the fixes and the message `text`. Unchanged rows are reused, because one of their buttons may
        have the focus."""
        self.message.setText(text)
        self.message.setVisible(bool(text))
        labelled = [(fix, str(self._actions["label"](fix.changes))) for fix in fixes]
        if labelled == self._fixes:
            return
        self._fixes = labelled
        clear_layout(self._grid)
        self.buttons = []
        for at, (fix, label) in enumerate(labelled):
            self._add_row(at, fix, label)

    def sizeHint(self) -> QSize:
        message_height = self.message.sizeHint().height() + 6 if self.message.text() else 0
        return QSize(400, _FIX_HEIGHT * len(self._fixes) + message_height + 2)

    def _add_row(self, at: int, fix: Fix, label: str) -> None:
        def take() -> None:
            self._actions["take"](fix.changes)

        prediction = ", ".join(filter(None, (translate(fix.headroom), fix.verdict and tr(fix.verdict))))
        name, prediction_label = ElidedLabel(translate(fix.text)), text_label(prediction, wrap=False)
        button = push_button(label, tr("{act}: predicted {figure}", act=label, figure=prediction), take)
        button.setAccessibleName(tr("{act}: {figure}, predicted", act=label, figure=prediction))
        self.buttons.append(button)
        for column_index, widget in enumerate(
            (text_label(f"{at + 1}.", "mono", wrap=False), name, prediction_label, button)
        ):
            align = Qt.AlignmentFlag(0) if widget is name else MIDDLE
            self._grid.addWidget(widget, at, column_index, align)
