"""The Compare activity: the runs of the comparison on show, runs to add to it, and recent comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QObject, QRect, QRectF, QSortFilterProxyModel, Qt
from PySide6.QtGui import QColor, QKeyEvent, QPainter
from PySide6.QtWidgets import QLineEdit, QListView, QListWidget, QListWidgetItem, QWidget

from rankdeck.base.phrases import marked
from rankdeck.compare.naming import RunAt
from rankdeck_app.language import tr
from rankdeck_app.shell.side_bar import SideBarView
from rankdeck_app.state.kept_file import RecentComparisons
from rankdeck_app.state.runs import Runs, RunsModel
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import column, push_button, text_label
from rankdeck_app.widgets.painting import DATA_ROLE, Index, ListRowDelegate, paint_text
from rankdeck_app.widgets.run_list import ROW_HEIGHT, RunDelegate
from rankdeck_app.widgets.run_signs import LETTER_HEIGHT, LETTER_WIDTH, paint_dash, paint_letter

if TYPE_CHECKING:
    from rankdeck_app.state.comparing import Comparing

_CHOSEN_HEIGHT, _RECENT_HEIGHT = 30, 40
_MOST_SHOWN = 8
_NOTHING = marked("No comparison is open. Choose a run below, or one of the recent ones.")
_PLAIN = Qt.TextElideMode.ElideRight


class _ChosenDelegate(ListRowDelegate):
    """A run with its letter and dash; `DATA_ROLE` has (place, name, is it the baseline)."""

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        place, name, is_baseline = index.data(DATA_ROLE)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        plate = QRectF(rect.x() + 14, rect.y() + 6, LETTER_WIDTH, LETTER_HEIGHT)
        paint_letter(painter, self._theme, plate, place, is_baseline=is_baseline)
        paint_dash(painter, self._theme, QRectF(plate.right() + 8, rect.y(), 22, rect.height()), place)
        left = round(plate.right()) + 38
        room = QRect(left, rect.y(), rect.right() - left - 12, rect.height())
        text = tr("{run} (baseline)", run=name) if is_baseline else name
        paint_text(painter, room, text, ink("foreground"), 12, elide=Qt.TextElideMode.ElideMiddle)


class _FoundDelegate(RunDelegate):
    """A run; those that are compared already are dim."""

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        is_enabled = bool(index.flags() & Qt.ItemFlag.ItemIsEnabled)
        super().paint_row(painter, rect, index, ink if is_enabled else lambda _: ink("disabledForeground"))


class _RecentDelegate(ListRowDelegate):
    """`DATA_ROLE` has the first line and the second."""

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        first, second = index.data(DATA_ROLE)
        room = QRect(rect.x() + 14, rect.y() + 2, rect.width() - 26, 20)
        paint_text(painter, room, first, ink("foreground"), 12, elide=_PLAIN)
        room.translate(0, 17)
        paint_text(painter, room, second, ink("descriptionForeground"), 11, elide=_PLAIN)


class _Comparable(QSortFilterProxyModel):
    """The runs that are looked for, without races and their entries; those in `compared` cannot be chosen."""

    compared: Sequence[RunAt] = ()

    def flags(self, index: Index) -> Qt.ItemFlag:
        is_compared = RunAt(index.data(RunsModel.InfoRole).path) in self.compared
        return Qt.ItemFlag.NoItemFlags if is_compared else super().flags(index)

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        info = self.sourceModel().index(row, 0).data(RunsModel.InfoRole)
        is_run = info.race is None and info.entry_of is None
        return is_run and super().filterAcceptsRow(row, parent)


class CompareView(SideBarView):
    """`acts`: add a run, open (a list of runs), pick. `comparing` of what is on show is given to `follow`."""

    def __init__(
        self,
        theme: Theme,
        runs: Runs,
        recent: RecentComparisons,
        acts: Mapping[str, Callable[..., object]],
    ) -> None:
        super().__init__(theme)
        self._runs, self._recent, self._acts = runs, recent, acts
        self._comparing: Comparing | None = None
        self._make_lists(theme)
        self.empty = text_label(tr(_NOTHING), "dim")
        self.empty.setContentsMargins(14, 0, 14, 0)
        chosen = QWidget()
        column(self.empty, self.chosen, on=chosen)
        adding = QWidget()
        pick = push_button(tr("Choose Several…"), tr("Choose runs one after another"), acts["pick"])
        column(column(self.filter, pick, margins=(12, 0, 12, 0), spacing=6), self.found, on=adding, spacing=6)
        self.add_section(tr("Compared"), chosen)
        self.add_section(tr("Add a run"), adding)
        self.recent_section = self.add_section(tr("Recent"), self.recents)
        self.setFocusProxy(self.filter)
        runs.changed.connect(self._size_lists)
        runs.changed.connect(self._show_recent)
        recent.changed.connect(self._show_recent)
        self._show_recent()
        self._show_chosen()

    def _make_lists(self, theme: Theme) -> None:
        self.chosen, self.recents = QListWidget(), QListWidget()
        self.filter = QLineEdit(placeholderText=tr("Name, strategy or outcome"), clearButtonEnabled=True)
        self.filter.setAccessibleName(tr("Find runs to compare"))
        self.proxy = _Comparable(self)
        self.proxy.setSourceModel(self._runs.model)
        self.proxy.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.filter.textChanged.connect(self.proxy.setFilterFixedString)
        self.filter.textChanged.connect(self._size_lists)
        self.found = QListView()
        self.found.setModel(self.proxy)
        self.found.setUniformItemSizes(True)
        lists: Sequence[tuple[QListView, str, ListRowDelegate]] = (
            (self.chosen, tr("Compared runs"), _ChosenDelegate(theme, self.chosen, _CHOSEN_HEIGHT)),
            (self.found, tr("Runs to add"), _FoundDelegate(theme, self.found, ())),
            (self.recents, tr("Recent comparisons"), _RecentDelegate(theme, self.recents, _RECENT_HEIGHT)),
        )
        for one, name, delegate in lists:
            one.setAccessibleName(name)
            one.setItemDelegate(delegate)
            one.setMouseTracking(True)
            one.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
            theme.changed.connect(one.viewport().update)
        self.chosen.setToolTip(tr("Enter: make it the baseline. Delete: take it out."))
        self.chosen.installEventFilter(self)
        self.chosen.activated.connect(lambda index: self._make_baseline(index.row()))
        for signal in (self.found.clicked, self.found.activated):
            signal.connect(lambda index: self._add(index.data(RunsModel.InfoRole).path))
        for signal in (self.recents.clicked, self.recents.activated):
            signal.connect(lambda index: self._acts["open"](self._recent.all[index.row()]))
        self._size_lists()

    # What is on show

    def follow(self, comparing: Comparing | None) -> None:
        """The comparison of the active tab, or of the one that was active last."""
        if comparing is self._comparing:
            return
        if self._comparing is not None:
            self._comparing.runs_changed.disconnect(self._show_chosen)
            self._comparing.changed.disconnect(self._show_chosen)
        self._comparing = comparing
        if comparing is not None:
            comparing.runs_changed.connect(self._show_chosen)
            comparing.changed.connect(self._show_chosen)
        self._show_chosen()

    def _show_chosen(self) -> None:
        runs = self._comparing.runs if self._comparing is not None else []
        baseline = self._comparing.baseline if self._comparing is not None else 0
        rows = [
            (place, run.figures.name if run.figures is not None else run.title, place == baseline)
            for place, run in enumerate(runs)
        ]
        said = [tr("{run}, the baseline", run=name) if base else name for _, name, base in rows]
        _fill(self.chosen, rows, said)
        self.chosen.setFixedHeight(_CHOSEN_HEIGHT * len(rows))
        self.chosen.setVisible(bool(rows))
        self.empty.setVisible(not rows)
        self.proxy.compared = [run.at for run in runs]
        self.found.viewport().update()

    def _show_recent(self) -> None:
        rows = []
        for ats in self._recent.all:
            names = [self._name_of(at) for at in ats]
            rows.append((names[0], tr("vs {runs}", runs=", ".join(names[1:]))))
        _fill(self.recents, rows, [" ".join(row) for row in rows])
        self.recents.setFixedHeight(_RECENT_HEIGHT * len(rows))
        self.recent_section.setVisible(bool(rows))

    def _name_of(self, at: RunAt) -> str:
        title = self._runs.title_of(at.path)
        return title if at.attempt is None else f"{title} @{at.attempt}"

    def _size_lists(self) -> None:
        self.found.setFixedHeight(ROW_HEIGHT * max(1, min(_MOST_SHOWN, self.proxy.rowCount())))

    # Acting on it

    def _add(self, path: Any) -> None:
        if RunAt(path) not in self.proxy.compared:
            self._acts["add"]([RunAt(path)])

    def _make_baseline(self, place: int) -> None:
        if self._comparing is not None:
            self._comparing.set_baseline(self._comparing.ats[place])

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        is_delete = isinstance(event, QKeyEvent) and event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace)
        if watched is self.chosen and event.type() == QEvent.Type.KeyPress and is_delete:
            place = self.chosen.currentRow()
            if self._comparing is not None and place >= 0:
                self._comparing.remove(self._comparing.ats[place])
                self.chosen.setCurrentRow(min(place, self.chosen.count() - 1))
            return True
        return super().eventFilter(watched, event)


def _fill(shown: QListWidget, rows: Sequence[object], spoken: Sequence[str]) -> None:
    """Rows with the words that a screen reader says; those that stay keep the selection."""
    while shown.count() > len(rows):
        shown.takeItem(shown.count() - 1)
    for place, (row, words) in enumerate(zip(rows, spoken, strict=True)):
        item = shown.item(place) or QListWidgetItem(shown)
        item.setData(DATA_ROLE, row)
        item.setData(Qt.ItemDataRole.AccessibleTextRole, words)
