"""The Compare side bar: the runs of the current comparison, runs to add, and recent comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QObject, QRect, QRectF, QSortFilterProxyModel, Qt
from PySide6.QtGui import QColor, QKeyEvent, QPainter
from PySide6.QtWidgets import QLineEdit, QListView, QListWidget, QListWidgetItem, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck.compare.run_ref import RunRef
from rankdeck_app.language import tr
from rankdeck_app.shell.side_bar import SideBarView
from rankdeck_app.state.runs import Runs, RunsModel
from rankdeck_app.state.state_file import RecentComparisons
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import column, push_button, text_label
from rankdeck_app.widgets.painting import DATA_ROLE, Index, ListRowDelegate, paint_text
from rankdeck_app.widgets.run_list import ROW_HEIGHT, RunDelegate
from rankdeck_app.widgets.run_markers import LETTER_HEIGHT, LETTER_WIDTH, paint_dash, paint_letter

if TYPE_CHECKING:
    from rankdeck_app.state.run_comparison import RunComparison

_COMPARED_HEIGHT, _RECENT_HEIGHT = 30, 40
_MAX_VISIBLE = 8
_EMPTY = tr_noop("No comparison is open. Choose a run or a recent comparison below.")
_ELIDE = Qt.TextElideMode.ElideRight


class _ComparedDelegate(ListRowDelegate):
    """Delegate that paints a run's letter, dash pattern and name; its data are (index, name, is_baseline)."""

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        run_index, name, is_baseline = index.data(DATA_ROLE)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        plate = QRectF(rect.x() + 14, rect.y() + 6, LETTER_WIDTH, LETTER_HEIGHT)
        paint_letter(painter, self._theme, plate, run_index, is_baseline=is_baseline)
        paint_dash(painter, self._theme, QRectF(plate.right() + 8, rect.y(), 22, rect.height()), run_index)
        left = round(plate.right()) + 38
        room = QRect(left, rect.y(), rect.right() - left - 12, rect.height())
        text = tr("{run} (baseline)", run=name) if is_baseline else name
        paint_text(painter, room, text, ink("foreground"), 12, elide=Qt.TextElideMode.ElideMiddle)


class _CandidateDelegate(RunDelegate):
    """Delegate that paints a run, dimmed if it is already in the comparison."""

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        is_enabled = bool(index.flags() & Qt.ItemFlag.ItemIsEnabled)
        super().paint_row(painter, rect, index, ink if is_enabled else lambda _: ink("disabledForeground"))


class _RecentDelegate(ListRowDelegate):
    """Delegate that paints a recent comparison as two lines of text, which are the item's data."""

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        first, second = index.data(DATA_ROLE)
        room = QRect(rect.x() + 14, rect.y() + 2, rect.width() - 26, 20)
        paint_text(painter, room, first, ink("foreground"), 12, elide=_ELIDE)
        room.translate(0, 17)
        paint_text(painter, room, second, ink("descriptionForeground"), 11, elide=_ELIDE)


class _ComparableFilter(QSortFilterProxyModel):
    """Filter of the runs to add. It applies the search text and hides races and their entries; runs in
    `compared` cannot be selected."""

    compared: Sequence[RunRef] = ()

    def flags(self, index: Index) -> Qt.ItemFlag:
        is_compared = RunRef(index.data(RunsModel.InfoRole).path) in self.compared
        return Qt.ItemFlag.NoItemFlags if is_compared else super().flags(index)

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        info = self.sourceModel().index(row, 0).data(RunsModel.InfoRole)
        is_run = info.race is None and info.entry_of is None
        return is_run and super().filterAcceptsRow(row, parent)


class CompareView(SideBarView):
    """The Compare side bar. `acts` contains the callbacks `add` (add runs), `open` (open a recent comparison)
    and `pick` (let the user choose several runs).

    `set_comparing` sets the current comparison.
    """

    def __init__(
        self,
        theme: Theme,
        runs: Runs,
        recent: RecentComparisons,
        acts: Mapping[str, Callable[..., object]],
    ) -> None:
        super().__init__(theme)
        self._runs, self._recent, self._actions = runs, recent, acts
        self._comparing: RunComparison | None = None
        self._make_lists(theme)
        self.empty_label = text_label(tr(_EMPTY), "dim")
        self.empty_label.setContentsMargins(14, 0, 14, 0)
        chosen = QWidget()
        column(self.empty_label, self.compared_list, on=chosen)
        adding = QWidget()
        pick = push_button(tr("Choose Several…"), tr("Choose several runs from a list"), acts["pick"])
        column(
            column(self.filter, pick, margins=(12, 0, 12, 0), spacing=6),
            self.candidate_list,
            on=adding,
            spacing=6,
        )
        self.add_section(tr("Compared"), chosen)
        self.add_section(tr("Add a run"), adding)
        self.recent_section = self.add_section(tr("Recent"), self.recent_list)
        self.setFocusProxy(self.filter)
        runs.changed.connect(self._size_lists)
        runs.changed.connect(self._show_recent)
        recent.changed.connect(self._show_recent)
        self._show_recent()
        self._show_compared()

    def _make_lists(self, theme: Theme) -> None:
        self.compared_list, self.recent_list = QListWidget(), QListWidget()
        self.filter = QLineEdit(placeholderText=tr("Name, strategy or outcome"), clearButtonEnabled=True)
        self.filter.setAccessibleName(tr("Find runs to compare"))
        self.proxy = _ComparableFilter(self)
        self.proxy.setSourceModel(self._runs.model)
        self.proxy.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.filter.textChanged.connect(self.proxy.setFilterFixedString)
        self.filter.textChanged.connect(self._size_lists)
        self.candidate_list = QListView()
        self.candidate_list.setModel(self.proxy)
        # With thousands of runs, Qt must not measure each row.
        self.candidate_list.setUniformItemSizes(True)
        lists: Sequence[tuple[QListView, str, ListRowDelegate]] = (
            (
                self.compared_list,
                tr("Compared runs"),
                _ComparedDelegate(theme, self.compared_list, _COMPARED_HEIGHT),
            ),
            (self.candidate_list, tr("Runs to add"), _CandidateDelegate(theme, self.candidate_list, ())),
            (
                self.recent_list,
                tr("Recent comparisons"),
                _RecentDelegate(theme, self.recent_list, _RECENT_HEIGHT),
            ),
        )
        for list_view, name, delegate in lists:
            list_view.setAccessibleName(name)
            list_view.setItemDelegate(delegate)
            list_view.setMouseTracking(True)
            list_view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
            theme.changed.connect(list_view.viewport().update)
        self.compared_list.setToolTip(
            tr("Press Enter to make a run the baseline, or Delete to remove it from the comparison.")
        )
        self.compared_list.installEventFilter(self)
        self.compared_list.activated.connect(lambda index: self._make_baseline(index.row()))
        for signal in (self.candidate_list.clicked, self.candidate_list.activated):
            signal.connect(lambda index: self._add(index.data(RunsModel.InfoRole).path))
        for signal in (self.recent_list.clicked, self.recent_list.activated):
            signal.connect(lambda index: self._actions["open"](self._recent.comparisons[index.row()]))
        self._size_lists()

    # Contents

    def set_comparing(self, comparing: RunComparison | None) -> None:
        """Show the runs of `comparing`, the comparison whose tab was active last, or none if it is None."""
        if comparing is self._comparing:
            return
        if self._comparing is not None:
            self._comparing.runs_changed.disconnect(self._show_compared)
            self._comparing.changed.disconnect(self._show_compared)
        self._comparing = comparing
        if comparing is not None:
            comparing.runs_changed.connect(self._show_compared)
            comparing.changed.connect(self._show_compared)
        self._show_compared()

    def _show_compared(self) -> None:
        runs = self._comparing.runs if self._comparing is not None else []
        baseline = self._comparing.baseline if self._comparing is not None else 0
        rows = [
            (index, run.compared_run.name if run.compared_run is not None else run.title, index == baseline)
            for index, run in enumerate(runs)
        ]
        accessible_texts = [tr("{run}, baseline", run=name) if base else name for _, name, base in rows]
        _fill(self.compared_list, rows, accessible_texts)
        self.compared_list.setFixedHeight(_COMPARED_HEIGHT * len(rows))
        self.compared_list.setVisible(bool(rows))
        self.empty_label.setVisible(not rows)
        self.proxy.compared = [run.ref for run in runs]
        # `compared` changes the items' flags without a signal of the model.
        self.candidate_list.viewport().update()

    def _show_recent(self) -> None:
        rows = []
        for ats in self._recent.comparisons:
            names = [self._name_of(at) for at in ats]
            rows.append((names[0], tr("vs {runs}", runs=", ".join(names[1:]))))
        _fill(self.recent_list, rows, [" ".join(row) for row in rows])
        self.recent_list.setFixedHeight(_RECENT_HEIGHT * len(rows))
        self.recent_section.setVisible(bool(rows))

    def _name_of(self, at: RunRef) -> str:
        title = self._runs.get_title(at.path)
        return title if at.attempt is None else f"{title} @{at.attempt}"

    def _size_lists(self) -> None:
        self.candidate_list.setFixedHeight(ROW_HEIGHT * max(1, min(_MAX_VISIBLE, self.proxy.rowCount())))

    # Actions

    def _add(self, path: Any) -> None:
        # A desktop that activates rows with a single click emits both `clicked` and `activated`.
        if RunRef(path) not in self.proxy.compared:
            self._actions["add"]([RunRef(path)])

    def _make_baseline(self, index: int) -> None:
        if self._comparing is not None:
            self._comparing.set_baseline(self._comparing.refs[index])

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        is_delete = isinstance(event, QKeyEvent) and event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace)
        if watched is self.compared_list and event.type() == QEvent.Type.KeyPress and is_delete:
            index = self.compared_list.currentRow()
            if self._comparing is not None and index >= 0:
                self._comparing.remove(self._comparing.refs[index])
                # The next row becomes current, so that several runs can be removed by pressing Delete again.
                self.compared_list.setCurrentRow(min(index, self.compared_list.count() - 1))
            return True
        return super().eventFilter(watched, event)


def _fill(list_widget: QListWidget, rows: Sequence[object], spoken: Sequence[str]) -> None:
    """Fill the list with `rows` and with the texts for screen readers in `spoken`. Existing items are reused,
    so that the selection is not lost."""
    while list_widget.count() > len(rows):
        list_widget.takeItem(list_widget.count() - 1)
    for index, (row, text) in enumerate(zip(rows, spoken, strict=True)):
        item = list_widget.item(index) or QListWidgetItem(list_widget)
        item.setData(DATA_ROLE, row)
        item.setData(Qt.ItemDataRole.AccessibleTextRole, text)
