"""The Strategies activity: every strategy with one sentence; a click opens its page."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QListWidgetItem, QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import column
from rankdeck_app.widgets.strategy_list import StrategyList


class StrategiesView(QWidget):
    """`opened` carries the strategy's name."""

    opened = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.list = StrategyList(theme, two_lines=True)
        self.list.itemClicked.connect(self._open)
        self.list.itemActivated.connect(self._open)
        column(self.list, on=self)
        self.setFocusProxy(self.list)

    def _open(self, item: QListWidgetItem) -> None:
        self.opened.emit(StrategyList.name_of(item))
