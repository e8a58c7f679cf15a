"""Shows a comparison's runs as chips at the top of its page, where runs are added, removed or made the
baseline.

A click on a chip makes its run the baseline; the chip's menu has the other actions. The chips of a row share
its width; there are as many rows as are needed to keep the chips readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QFontMetricsF,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractButton, QMenu, QSizePolicy, QWidget

from rankdeck.compare.run_ref import MAX_RUNS, RunRef
from rankdeck.compare.table import run_letter
from rankdeck_app.language import tr, translate
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.painting import chart_font, dashed_pen, paint_text
from rankdeck_app.widgets.run_list import outcome_style, outcome_text
from rankdeck_app.widgets.run_markers import LETTER_HEIGHT, LETTER_WIDTH, paint_dash, paint_letter
from rankdeck_app.widgets.run_names import NameShortener

_HEIGHT, _GAP = 48, 10
_MIN_WIDTH, _MAX_WIDTH = 196, 300
_ELIDE = Qt.TextElideMode.ElideRight


@dataclass(frozen=True)
class ChipData:
    """Data of one chip. `facts` is its second line; `attempts` are the run's attempts that can be added to
    the comparison on their own."""

    ref: RunRef
    index: int
    name: str
    outcome: str
    facts: str
    is_baseline: bool = False
    attempts: tuple[int, ...] = ()


class RunChip(QAbstractButton):
    """A run's chip. `acts` contains the callbacks `baseline`, `open`, `remove` and `attempt`. Each receives
    the run; `attempt` also receives an attempt's number."""

    def __init__(self, theme: Theme, data: ChipData, acts: Mapping[str, Callable[..., object]]) -> None:
        super().__init__()
        self._theme, self._actions = theme, acts
        self.data = data
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.remove_button = tool_button(theme, "close", "", lambda: self._run_action("remove"))
        self.remove_button.setParent(self)
        self.clicked.connect(lambda: self._run_action("baseline"))
        theme.changed.connect(self.update)
        self.set_data(data)

    def set_data(self, data: ChipData, names: NameShortener | None = None) -> None:
        """Show the data; `names` is the shortener for the names of all chips."""
        self.data, self._names = data, names or NameShortener([data.name])
        letter, base, what = (
            run_letter(data.index),
            "",
            tr("Click to show differences relative to this run"),
        )
        if data.is_baseline:
            base, what = tr("baseline"), tr("Differences are relative to this run")
        facts = ", ".join(filter(None, (translate(outcome_text(data.outcome)), data.facts)))
        self.setAccessibleName(", ".join(filter(None, (f"{letter}: {data.name}", facts, base))))
        self.setToolTip(f"{data.name}\n{facts}\n{data.ref}\n{what}")
        self.remove_button.setToolTip(tr("Remove"))
        self.remove_button.setAccessibleName(tr("Remove {letter}: {run}", letter=letter, run=data.name))
        self.update()

    def _run_action(self, name: str, *more: object) -> None:
        self._actions[name](self.data.ref, *more)

    def sizeHint(self) -> QSize:
        return QSize(_MIN_WIDTH, _HEIGHT)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.remove_button.move(self.width() - 26, 4)

    def build_menu(self) -> QMenu:
        menu = QMenu(self)
        base = menu.addAction(tr("Set as Baseline"), lambda: self._run_action("baseline"))
        base.setDisabled(self.data.is_baseline)
        menu.addAction(tr("Open"), lambda: self._run_action("open"))
        for attempt in self.data.attempts:
            text = tr("Add Only Attempt {attempt}", attempt=attempt)
            if attempt == 0:
                text = tr("Add Only Attempt {attempt} (before the run was resumed)", attempt=attempt)
            menu.addAction(text, partial(self._run_action, "attempt", attempt))
        menu.addSeparator()
        menu.addAction(tr("Remove"), lambda: self._run_action("remove"))
        return menu

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace):
            self._run_action("remove")
        else:
            super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.build_menu()
        # Otherwise every menu would live as long as the chip, its parent.
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(event.globalPos())

    def paintEvent(self, event: QPaintEvent) -> None:
        data, color = self.data, self._theme.color
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        frame = "focusBorder" if data.is_baseline or self.hasFocus() else "rankdeck.card.border"
        painter.setPen(QPen(color(frame), 1))
        painter.setBrush(color("list.hoverBackground" if self.underMouse() else "rankdeck.card.background"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        plate = QRectF(10, 7, LETTER_WIDTH, LETTER_HEIGHT)
        paint_letter(painter, self._theme, plate, data.index, is_baseline=data.is_baseline)
        paint_dash(painter, self._theme, QRectF(10, 28, LETTER_WIDTH, 12), data.index)
        left = plate.right() + 10
        title = QRectF(left, 6, self.width() - left - 30, 20)
        metrics = QFontMetricsF(chart_font(12, bold=True))
        name = self._names.shorten(data.name, metrics, title.width())
        paint_text(painter, title, name, color("foreground"), 12, bold=True)
        icon, tone, _ = outcome_style(data.outcome)
        draw_icon(painter, icon, QRectF(left, 27, 14, 14), color(tone))
        facts = QRectF(left + 19, 26, self.width() - left - 29, 16)
        paint_text(painter, facts, data.facts, color("descriptionForeground"), 11, elide=_ELIDE)
        painter.end()


class _AddTile(QAbstractButton):
    """Button that adds runs, placed where the next chip will be."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.setAccessibleName(tr("Add runs"))
        self.setToolTip(tr("Add runs to this comparison"))
        theme.changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        color, lit = self._theme.color, self.hasFocus() or self.underMouse()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(dashed_pen(color("focusBorder" if lit else "rankdeck.axis")))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        ink = color("foreground" if lit else "descriptionForeground")
        draw_icon(painter, "add", QRectF(14, (self.height() - 16) / 2, 16, 16), ink)
        room = QRectF(40, 0, self.width() - 46, self.height())
        paint_text(painter, room, tr("Add runs…"), ink, 12, elide=_ELIDE)
        painter.end()


class ChipRow(QWidget):
    """The chips and the add button. `add_requested` is emitted when the user wants to add runs."""

    add_requested = Signal()

    def __init__(self, theme: Theme, acts: Mapping[str, Callable[..., object]]) -> None:
        super().__init__()
        self._theme, self._actions = theme, acts
        self.chips: list[RunChip] = []
        self._names: list[str] = []
        self.add_tile = _AddTile(theme)
        self.add_tile.setParent(self)
        self.add_tile.clicked.connect(lambda: self.add_requested.emit())
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.setAccessibleName(tr("Compared runs"))

    def set_chips(self, chips_data: Sequence[ChipData]) -> None:
        """Update the chips. Chips of runs that are still compared are reused, so that the focus is not
        lost."""
        if [chip.data.ref for chip in self.chips] != [chip_data.ref for chip_data in chips_data]:
            self._rebuild(chips_data)
        names = [chip_data.name for chip_data in chips_data]
        # The shortened name of each chip depends on all names.
        is_new, self._names = names != self._names, names
        for chip, chip_data in zip(self.chips, chips_data, strict=True):
            if is_new or chip.data != chip_data:
                chip.set_data(chip_data, NameShortener(names))

    def _rebuild(self, chips_data: Sequence[ChipData]) -> None:
        old_chips = {chip.data.ref: chip for chip in self.chips}
        self.chips = []
        for chip_data in chips_data:
            chip = old_chips.pop(chip_data.ref, None) or RunChip(self._theme, chip_data, self._actions)
            chip.setParent(self)
            chip.show()
            self.chips.append(chip)
        for chip in old_chips.values():
            # deleteLater takes effect after this event; until then the chip would stay visible.
            chip.hide()
            chip.deleteLater()
        self.add_tile.setVisible(len(chips_data) < MAX_RUNS)
        for before, after in pairwise([*self.chips, self.add_tile]):
            # Without this, chips created later would come last in the tab order.
            QWidget.setTabOrder(before, after)
        self._lay_out()
        self.updateGeometry()

    def _tiles(self) -> list[QWidget]:
        return [*self.chips, *([self.add_tile] if len(self.chips) < MAX_RUNS else [])]

    def _num_columns(self, width: int) -> int:
        return max(1, min(len(self._tiles()), (width + _GAP) // (_MIN_WIDTH + _GAP)))

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        num_rows = -(-len(self._tiles()) // self._num_columns(width))
        return num_rows * (_HEIGHT + _GAP) - _GAP

    def sizeHint(self) -> QSize:
        return QSize(3 * _MIN_WIDTH, self.heightForWidth(max(_MIN_WIDTH, self.width())))

    def minimumSizeHint(self) -> QSize:
        return QSize(_MIN_WIDTH, _HEIGHT)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        num_columns = self._num_columns(self.width())
        width = min(_MAX_WIDTH, (self.width() - _GAP * (num_columns - 1)) // num_columns)
        for index, tile in enumerate(self._tiles()):
            row, column = divmod(index, num_columns)
            tile.setGeometry(column * (width + _GAP), row * (_HEIGHT + _GAP), width, _HEIGHT)
