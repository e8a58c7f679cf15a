"""Model of the table of runs. It filters, sorts and groups the rows, so that a view only has to show them.

    all runs -> search matches -> sorted -> grouped -> with entries of expanded races -> rows

Arranging five thousand runs takes only a few milliseconds, because the texts and values of a run are computed
once and cached until its info changes. A run that changes in place does not affect other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QObject, Qt, Signal

from rankdeck.base.phrases import phrase
from rankdeck.run.row import EVENTS_LOST_TEXT, RunInfo
from rankdeck_app.language import tr, translate
from rankdeck_app.state.run_search import RunSearch
from rankdeck_app.widgets.painting import DATA_ROLE, Index
from rankdeck_app.widgets.run_columns import COLUMNS, COLUMNS_BY_KEY, TIME_COLUMNS, RunColumn
from rankdeck_app.widgets.run_list import outcome_text, title_text
from rankdeck_app.widgets.run_names import NameShortener

_UNKNOWN_LABEL = phrase("unknown")
# column key -> label of the group of runs without a value
_EMPTY_GROUP_LABELS = {"tags": phrase("no tags"), "note": phrase("no note")}
_MAX_REPLACED = 200


@dataclass(frozen=True)
class RunGroup:
    """Header of a group of runs. `label` is the same in every language; `display_label` is translated."""

    label: str
    count: int
    is_open: bool

    @property
    def display_label(self) -> str:
        return translate(self.label)

    @property
    def text(self) -> str:
        return f"{self.display_label}  {self.count}"


RunTableRow = RunInfo | RunGroup


@dataclass(frozen=True)
class RunArrangement:
    """Order of the rows: `sort` and `group` are column keys, `collapsed` the labels of folded groups."""

    sort: str = "began"
    is_descending: bool = True
    group: str = ""
    collapsed: frozenset[str] = frozenset()
    shows_archived: bool = False


class _CachedRun:
    """A run with its column texts and values, computed on demand."""

    def __init__(self, info: RunInfo) -> None:
        self.info = info
        self.texts: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def text(self, column: RunColumn) -> str:
        if column.is_time_relative:
            return translate(column.text(self.info))
        if column.key not in self.texts:
            self.texts[column.key] = translate(column.text(self.info))
        return self.texts[column.key]

    def value(self, column: RunColumn) -> Any:
        if column.key not in self.values:
            self.values[column.key] = column.value(self.info)
        return self.values[column.key]


class RunTableModel(QAbstractTableModel):
    """Model of the table of runs.

    `rows_changed` is emitted after rows have been added, removed or moved. `rename_requested` carries the
    run's path and its new name. DATA_ROLE returns the row of a cell: a RunInfo or a RunGroup.
    """

    rows_changed = Signal()
    rename_requested = Signal(object, str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: list[RunTableRow] = []
        self.arrangement = RunArrangement()
        self.search = RunSearch()
        self.num_found = 0
        self.expanded_races: set[Path] = set()
        """Races whose entries are shown."""
        self.num_archived = 0
        """Number of archived runs that match the search but are hidden."""
        self.names = NameShortener(())
        self._infos: Sequence[RunInfo] = ()
        self._cache: dict[Path, _CachedRun] = {}
        self._row_indices: dict[Path, int] = {}

    # Arrangement

    def set_infos(self, infos: Sequence[RunInfo]) -> None:
        before, self._infos = self._infos, infos
        # A generator, which is consumed only if a name does not fit.
        self.names = NameShortener(title_text(info) for info in infos)
        if self._replace_rows(before, infos):
            return
        old_cache = self._cache
        self._cache = {}
        for info in infos:
            cached = old_cache.get(info.path)
            self._cache[info.path] = (
                cached if cached is not None and cached.info is info else _CachedRun(info)
            )
        self._arrange()

    def _replace_rows(self, before: Sequence[RunInfo], infos: Sequence[RunInfo]) -> bool:
        """Replace changed runs in place, as happens every second for live runs. Return False if rows would
        move."""
        if len(before) != len(infos):
            return False
        changed = [pair for pair in zip(before, infos, strict=True) if pair[0] is not pair[1]]
        if len(changed) > _MAX_REPLACED or any(old.path != new.path for old, new in changed):
            return False
        if self.arrangement.group == "tags" or any(old.path in self.expanded_races for old, _ in changed):
            return False  # a run may be in several rows, or have entries below it
        fresh = {new.path: _CachedRun(new) for _, new in changed}
        if any(
            self._position_key(self._cache[path]) != self._position_key(cached_run)
            for path, cached_run in fresh.items()
        ):
            return False
        self._cache |= fresh
        for path, cached_run in fresh.items():
            if (at := self._row_indices.get(path)) is not None:
                self.rows[at] = cached_run.info
                self.dataChanged.emit(self.index(at, 0), self.index(at, len(COLUMNS) - 1))
        return True

    def update_ages(self) -> None:
        """Refresh the columns whose text changes as time passes, in every row."""
        for at in TIME_COLUMNS if self.rows else ():
            self.dataChanged.emit(self.index(0, at), self.index(len(self.rows) - 1, at))

    def _position_key(self, cached_run: _CachedRun) -> object:
        """Return all values that determine a run's position and whether it is shown."""
        info, by = cached_run.info, COLUMNS_BY_KEY.get(self.arrangement.group)
        sorted_by = cached_run.value(COLUMNS_BY_KEY.get(self.arrangement.sort, COLUMNS[0]))
        buckets = () if by is None else by.list_groups(info)
        return self.search.matches(info), info.labels.is_archived, sorted_by, buckets

    def set_search(self, text: str) -> None:
        self.search = RunSearch(text)
        self._arrange()

    def arrange(self, arrangement: RunArrangement) -> None:
        self.arrangement = arrangement
        self._arrange()

    def set_expanded(self, race: Path, *, is_open: bool) -> None:
        """Show or hide a race's entries below the race."""
        self.expanded_races = self.expanded_races | {race} if is_open else self.expanded_races - {race}
        self._arrange()

    def _arrange(self) -> None:
        rows = list(self._with_entries(self._arrange_rows()))
        if list(map(row_key, rows)) != list(map(row_key, self.rows)):
            self.beginResetModel()
            self.rows = rows
            self._row_indices = {row.path: at for at, row in enumerate(rows) if isinstance(row, RunInfo)}
            self.endResetModel()
            self.rows_changed.emit()
            return
        before, self.rows = self.rows, rows
        for at, (old, new) in enumerate(zip(before, rows, strict=True)):
            # `is` first, since comparing runs field by field is slower.
            if old is not new and old != new:
                self.dataChanged.emit(self.index(at, 0), self.index(at, len(COLUMNS) - 1))

    def _arrange_rows(self) -> list[RunTableRow]:
        infos, arrangement = self._find_shown(), self.arrangement
        column = COLUMNS_BY_KEY.get(arrangement.sort, COLUMNS[0])
        values = [(self._cache[info.path].value(column), info) for info in infos]
        known_pairs = [pair for pair in values if pair[0] is not None]
        known_pairs.sort(key=lambda pair: pair[0], reverse=arrangement.is_descending)
        ordered = [info for _, info in known_pairs] + [info for value, info in values if value is None]
        by = COLUMNS_BY_KEY.get(arrangement.group)
        return [*ordered] if by is None else list(self._group_rows(ordered, by))

    def _with_entries(self, rows: Iterable[RunTableRow]) -> Iterable[RunTableRow]:
        for row in rows:
            yield row
            if isinstance(row, RunInfo) and row.race is not None and row.path in self.expanded_races:
                for entry in row.race.entries:
                    cached = self._cache.get(entry.path)
                    if cached is None or cached.info is not entry:
                        self._cache[entry.path] = _CachedRun(entry)
                    yield entry

    def _find_shown(self) -> list[RunInfo]:
        matches = [info for info in self._infos if self.search.matches(info)]
        if self.arrangement.shows_archived or self.search.includes_archived:
            visible = matches
        else:
            visible = [info for info in matches if not info.labels.is_archived]
        self.num_found, self.num_archived = len(visible), len(matches) - len(visible)
        return visible

    def _group_rows(self, ordered: Iterable[RunInfo], by: RunColumn) -> Iterable[RunTableRow]:
        groups: dict[tuple[Any, str], list[RunInfo]] = {}
        unknown: list[RunInfo] = []
        for info in ordered:
            buckets = by.list_groups(info)
            for bucket in buckets:
                groups.setdefault(bucket, []).append(info)
            if not buckets:
                unknown.append(info)
        # Groups of days are always newest first.
        is_turned = self.arrangement.is_descending and self.arrangement.sort == by.key and by.key != "began"
        labelled_groups = [(bucket[1], groups[bucket]) for bucket in sorted(groups, reverse=is_turned)]
        for label, infos in [*labelled_groups, (_EMPTY_GROUP_LABELS.get(by.key, _UNKNOWN_LABEL), unknown)]:
            if infos:
                is_open = label not in self.arrangement.collapsed
                yield RunGroup(label, len(infos), is_open)
                yield from infos if is_open else ()

    # Qt's model interface

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(COLUMNS)

    def text_at(self, row: int, column: int) -> str:
        """Return the text of a run's cell; empty for a group header."""
        info = self.rows[row]
        return "" if isinstance(info, RunGroup) else self._cache[info.path].text(COLUMNS[column])

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row, column = self.rows[index.row()], COLUMNS[index.column()]
        if role == DATA_ROLE:
            return row
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            is_shown = role == Qt.ItemDataRole.DisplayRole
            if isinstance(row, RunGroup):
                return row.text if is_shown else _fold_text(row.text, is_open=row.is_open)
            text = self._cache[row.path].text(column)
            if is_shown:
                return text
            cell_text = f"{tr(column.title)}: {text or translate(_UNKNOWN_LABEL)}"
            is_race = row.race is not None and column.key == "name"
            return _fold_text(cell_text, is_open=row.path in self.expanded_races) if is_race else cell_text
        if isinstance(row, RunGroup):
            return None
        if role == Qt.ItemDataRole.EditRole:
            return row.title
        return self._tooltip(row, column) if role == Qt.ItemDataRole.ToolTipRole else None

    def _tooltip(self, info: RunInfo, column: RunColumn) -> str:
        if column.key == "name":
            return "\n".join(filter(None, (info.title, info.labels.note[:500], str(info.path))))
        if column.key == "state" and info.reason:
            full_text = outcome_text(info.state) if info.state == EVENTS_LOST_TEXT else ""
            return "\n".join(filter(None, (full_text, info.reason)))
        return self._cache[info.path].text(column)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        column = COLUMNS[section]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if column.is_number else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.ToolTipRole:
            return tr(column.meaning) if column.meaning else None
        return tr(column.title) if role == Qt.ItemDataRole.DisplayRole else None

    def flags(self, index: Index) -> Qt.ItemFlag:
        if not index.isValid():
            return Qt.ItemFlag.NoItemFlags
        flags = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
        row = self.rows[index.row()]
        is_named = isinstance(row, RunInfo) and row.entry_of is None
        is_name = COLUMNS[index.column()].key == "name" and is_named
        return flags | Qt.ItemFlag.ItemIsEditable if is_name else flags

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        """Request that a run be renamed, and return whether there is anything to rename. The new name is
        shown once it has been saved."""
        row = self.rows[index.row()]
        if role != Qt.ItemDataRole.EditRole or isinstance(row, RunGroup) or value == row.title:
            return False
        self.rename_requested.emit(row.path, str(value))
        return True

    def find_row(self, path: Path) -> int | None:
        return self._row_indices.get(path)


def _fold_text(row: str, *, is_open: bool) -> str:
    return tr("{row}, expanded", row=row) if is_open else tr("{row}, collapsed", row=row)


def row_key(row: RunTableRow) -> object:
    return row.path if isinstance(row, RunInfo) else row.label
