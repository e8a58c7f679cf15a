"""Shows the output of the current run's ranks, one row per line, the newest at the end.

The view follows new lines until the user scrolls up; it follows them again once the user scrolls to the end
or presses the lock button.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QRect, Qt, QTimer, Signal
from PySide6.QtGui import (
    QFontMetrics,
    QGuiApplication,
    QHideEvent,
    QKeyEvent,
    QKeySequence,
    QPainter,
    QShowEvent,
)
from PySide6.QtWidgets import QLineEdit, QListView, QStyle, QStyleOptionViewItem, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.output import OutputLine, OutputModel, OutputTail
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ComboBox, FitOrHideLabel, tool_button
from rankdeck_app.widgets.find_bar import FindBar, LineSearch, text_before
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.painting import Index, ListRowDelegate, chart_font, paint_text

ROW_HEIGHT = 16
POLL_INTERVAL_MS = 100
MAX_LINES_PER_POLL = 4_000
_NO_RUN = tr_noop("Open a run to see the output of its ranks.")
_NO_PAST_LINES = tr_noop(
    "No lines from that time are available. Output keeps only a run's last lines, and the time of a log line "
    "is the time at which it was read."
)
_TONES = {"warning": "editorWarning.foreground", "error": "errorForeground", "dim": "descriptionForeground"}


class _LineDelegate(ListRowDelegate):
    """Delegate that paints a line's time, source ("[rank 0]") and text in a monospace font, and highlights
    search matches."""

    search: LineSearch | None = None

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        line: OutputLine = index.data(OutputModel.LineRole)
        color, rect = self._theme.color, option.rect
        if option.state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, color("selection.background"))
        left, metrics = rect.x() + 16, QFontMetrics(chart_font(12, mono=True))
        source_tone = "editorInfo.foreground" if line.rank is not None else "descriptionForeground"
        for text, tone in (
            (f"{line.clock:12}", "descriptionForeground"),
            (f"[{line.source}]", source_tone),
            (line.text, _TONES.get(line.tone, "foreground")),
        ):
            room = QRect(left, rect.y(), rect.right() - 12 - left, rect.height())
            elide = Qt.TextElideMode.ElideRight
            # By identity, because the clock or the source may be an equal text.
            if text is line.text:
                self._highlight_matches(painter, room, text)
            paint_text(painter, room, text, color(tone), 12, mono=True, elide=elide)
            left += metrics.horizontalAdvance(f"{text} ")

    def _highlight_matches(self, painter: QPainter, room: QRect, text: str) -> None:
        """Paint the background of the search matches in a line."""
        pattern = self.search.pattern if self.search is not None else None
        if pattern is None:
            return
        metrics = QFontMetrics(chart_font(12, mono=True))
        matches = pattern.globalMatch(text)
        while matches.hasNext():
            match = matches.next()
            left = metrics.horizontalAdvance(text_before(text, match.capturedStart()))
            width = metrics.horizontalAdvance(match.captured())
            box = QRect(room.x() + left, room.y(), width, room.height()).intersected(room)
            painter.fillRect(box, self._theme.color("editor.findMatchHighlightBackground"))


class _LineList(QListView):
    """A list that copies the selected lines as text."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            # Qt does not sort the selection.
            rows = sorted(self.selectedIndexes(), key=lambda index: index.row())
            QGuiApplication.clipboard().setText("\n".join(str(index.data()) for index in rows))
        else:
            super().keyPressEvent(event)


class OutputView(QWidget):
    """Output of a run, updated while the view is visible. `set_path` sets the run's folder; None empties the
    view."""

    follow_changed = Signal(bool)
    name_changed = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.name = ""
        """Display name of the run."""
        self.model = OutputModel(self)
        self._path: Path | None = None
        self._tail: OutputTail | None = None
        self.rank: int | None = None
        self._filter_text = ""
        self.follows_end = True
        self._is_scrolling = False
        self.list = _LineList()
        self.list.setModel(self.model)
        delegate = _LineDelegate(theme, self.list, ROW_HEIGHT)
        self.list.setItemDelegate(delegate)
        self.list.setAccessibleName(tr("Output"))
        # With thousands of lines, Qt must not measure each one.
        self.list.setUniformItemSizes(True)
        self.list.setSelectionMode(QListView.SelectionMode.ExtendedSelection)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self._is_in_past = False
        self.empty_label = text_label(tr(_NO_RUN), "dim", wrap=False)
        self.empty_label.setContentsMargins(16, 8, 16, 8)
        delegate.search = LineSearch(self.list, self.model)
        self.find_bar = FindBar(theme, delegate.search)
        column(self.find_bar, self.empty_label, (self.list, 1), on=self, margins=(0, 4, 0, 4), spacing=0)
        self.setFocusProxy(self.list)
        self._timer = QTimer(self, interval=POLL_INTERVAL_MS)
        self._timer.timeout.connect(self.poll)
        theme.changed.connect(self.list.viewport().update)

    def set_path(self, path: Path | None) -> None:
        if path == self._path:
            return
        self.close_tail()
        self._path = path
        self.rank = None
        self.model.clear()
        # `clear` keeps the ranks: the Clear button must not empty the list of ranks.
        self.model.ranks.clear()
        # The rank belongs to the previous run; the filter text stays.
        self.model.set_filter(None, self._filter_text)
        self._update_empty_label()
        self.set_follow_end(True)
        if self.isVisible():
            self._start()

    def set_run(self, run: LiveRun | None) -> None:
        """Show the output of `run`; empty the view if it is None."""
        self.set_path(None if run is None else run.run_dir.path)
        self.name = "" if run is None else run.title
        self.name_changed.emit(self.name)

    def set_until(self, time_s: float | None) -> None:
        """Show only the stored lines up to `time_s` (Unix seconds), or all lines if it is None."""
        self.model.set_end_time(time_s)
        self._is_in_past = time_s is not None
        self._update_empty_label()
        self._scroll_to_end()

    def _update_empty_label(self) -> None:
        is_nothing = self._is_in_past and not self.model.rowCount()
        self.empty_label.setText(tr(_NO_PAST_LINES if is_nothing else _NO_RUN))
        self.empty_label.setVisible(self._path is None or is_nothing)

    def set_rank(self, rank: int | None) -> None:
        self.rank = rank
        self.model.set_filter(rank, self._filter_text)
        self._scroll_to_end()

    def set_filter_text(self, text: str) -> None:
        self._filter_text = text
        self.model.set_filter(self.rank, text)
        self._scroll_to_end()

    def set_follow_end(self, follows: bool) -> None:
        self.follows_end = follows
        self.follow_changed.emit(follows)
        self._scroll_to_end()

    def poll(self) -> None:
        """Append lines from the reader thread to the model, few enough per call that the UI stays
        responsive."""
        if self._tail is None or not self._tail.lines:
            return
        pending = self._tail.lines
        self._is_scrolling = True
        # With _is_scrolling set, _on_scrolled knows that the user did not scroll.
        self.model.append([pending.popleft() for _ in range(min(len(pending), MAX_LINES_PER_POLL))])
        self._is_scrolling = False
        self._update_empty_label()
        self._scroll_to_end()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._start()
        self._scroll_to_end()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def _start(self) -> None:
        if self._tail is None and self._path is not None:
            self._tail = OutputTail(self._path)
            self._tail.start()
        if self._tail is not None:
            self._timer.start()

    def close_tail(self) -> None:
        """Stop the reader thread; called when another run is shown or the window is closing."""
        self._timer.stop()
        if self._tail is not None:
            self._tail.stop()
            self._tail = None

    def _scroll_to_end(self) -> None:
        if self.follows_end:
            self._is_scrolling = True
            self.list.scrollToBottom()
            self._is_scrolling = False

    def _on_scrolled(self, value: int) -> None:
        """Update the follow lock after the user has scrolled: scrolling up releases the lock, and scrolling
        to the end restores it."""
        bar = self.list.verticalScrollBar()
        at_end = value >= bar.maximum() - 1
        # A list that fits has no scroll range, so its position says nothing about what the user wants.
        if not self._is_scrolling and bar.maximum() > 0 and at_end != self.follows_end:
            self.set_follow_end(at_end)


class OutputTools(QWidget):
    """Controls in the panel's header: run name, filter, rank box, follow lock and clear button."""

    def __init__(self, theme: Theme, view: OutputView) -> None:
        super().__init__()
        self._view = view
        self.filter = QLineEdit(placeholderText=tr("Filter"), clearButtonEnabled=True)
        self.filter.setProperty("compact", "true")
        self.filter.setFixedWidth(120)
        self.filter.setAccessibleName(tr("Filter output"))
        self.filter.textChanged.connect(view.set_filter_text)
        self.rank_box = ComboBox(theme)
        self.rank_box.setProperty("compact", "true")
        self.rank_box.setFixedWidth(110)
        self.rank_box.setAccessibleName(tr("Rank"))
        self.rank_box.setToolTip(tr("Ranks whose output is shown"))
        self.rank_box.addItem(tr("All ranks"), None)
        self.rank_box.activated.connect(lambda _index: view.set_rank(self.rank_box.currentData()))
        self.follow_button = tool_button(
            theme, "lock", tr("Follow Output"), lambda: view.set_follow_end(self.follow_button.isChecked())
        )
        self.follow_button.setCheckable(True)
        self.follow_button.setChecked(view.follows_end)
        view.follow_changed.connect(self.follow_button.setChecked)
        self.clear_button = tool_button(theme, "clear-all", tr("Clear Output"), view.model.clear)
        whose = FitOrHideLabel()
        whose.setProperty("tone", "small")
        whose.setText(view.name)
        whose.setContentsMargins(0, 0, 6, 0)
        view.name_changed.connect(whose.setText)
        row((whose, 1), self.filter, self.rank_box, self.follow_button, self.clear_button, on=self, spacing=4)
        view.model.rowsInserted.connect(self._list_ranks)
        view.model.modelReset.connect(self._list_ranks)

    def _list_ranks(self) -> None:
        ranks = sorted(self._view.model.ranks)
        listed = [self.rank_box.itemData(index) for index in range(1, self.rank_box.count())]
        if ranks != listed:
            self.rank_box.clear()
            self.rank_box.addItem(tr("All ranks"), None)
            for rank in ranks:
                self.rank_box.addItem(tr("Rank {rank}", rank=rank), rank)
        box_index = 0 if self._view.rank is None else self.rank_box.findData(self._view.rank)
        if box_index >= 0 and self.rank_box.currentIndex() != box_index:
            self.rank_box.setCurrentIndex(box_index)
