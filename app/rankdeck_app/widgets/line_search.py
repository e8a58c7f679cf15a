"""What find_bar.py looks for in the lines of the output."""

from __future__ import annotations

from bisect import bisect_left

from PySide6.QtCore import QModelIndex, QRegularExpression, Qt
from PySide6.QtWidgets import QListView

from rankdeck_app.state.output import OutputLine, OutputModel
from rankdeck_app.widgets.find_bar import Search


class LineSearch(Search):
    """Finds lines by what they say. Lines that come while it looks are looked at once, as they come."""

    def __init__(self, lines: QListView, model: OutputModel) -> None:
        super().__init__(lines)
        self._list, self._model = lines, model
        self.wanted: QRegularExpression | None = None
        self._rows: list[int] = []
        model.rowsInserted.connect(self._came)
        model.rowsRemoved.connect(self._went)
        model.modelReset.connect(self._look)
        lines.selectionModel().currentChanged.connect(lambda _new, _old: self._tell())

    def find(self, wanted: QRegularExpression | None) -> None:
        """The first line from the one that is marked on is chosen; without one, the last: output is read from
        its end."""
        self.wanted = wanted
        self._look()
        if self._rows:
            here = self._list.currentIndex().row()
            later = (row for row in self._rows if row >= here >= 0)
            self._choose(next(later, self._rows[-1]))

    def _look(self) -> None:
        self._rows = []
        self._add(0, self._model.rowCount() - 1)

    def _came(self, _parent: QModelIndex, first: int, last: int) -> None:
        self._add(first, last)

    def _add(self, first: int, last: int) -> None:
        if self.wanted is not None:
            self._rows += [row for row in range(first, last + 1) if self._holds(row)]
        self._tell()

    def _holds(self, row: int) -> bool:
        line: OutputLine = self._model.index(row).data(OutputModel.LineRole)
        return self.wanted is not None and self.wanted.match(line.text).hasMatch()

    def _went(self, _parent: QModelIndex, _first: int, last: int) -> None:
        """The oldest lines go."""
        self._rows = [row - last - 1 for row in self._rows if row > last]
        self._tell()

    def step(self, step: int) -> None:
        if not self._rows:
            return
        here = self._list.currentIndex().row()
        if step > 0:
            self._choose(next((row for row in self._rows if row > here), self._rows[0]))
        else:
            self._choose(next((row for row in reversed(self._rows) if row < here), self._rows[-1]))

    def _choose(self, row: int) -> None:
        self._list.setCurrentIndex(self._model.index(row))

    def _tell(self) -> None:
        here = self._list.currentIndex().row()
        at = bisect_left(self._rows, here)
        self.num_found = len(self._rows)
        self.at = at if at < len(self._rows) and self._rows[at] == here else None
        self._list.viewport().update()
        self.changed.emit()

    def chosen_text(self) -> str:
        return ""

    def leave(self) -> None:
        self._list.setFocus(Qt.FocusReason.OtherFocusReason)


def text_before(text: str, place: int) -> str:
    """The beginning of a text up to a place that Qt has counted, in units of UTF-16."""
    return text.encode("utf-16-le", "surrogatepass")[: 2 * place].decode("utf-16-le", "replace")
