"""Output: what the ranks of the run on show say, one line each, newest at the end.

Following the end is a lock: scrolling up opens it, scrolling to the end or the button closes it.
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

from rankdeck.base.phrases import marked
from rankdeck_app.language import tr
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.output import OutputLine, OutputModel, OutputTail
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import ComboBox, WholeLabel, tool_button
from rankdeck_app.widgets.find_bar import FindBar, LineSearch, text_before
from rankdeck_app.widgets.layouts import column, row, text_label
from rankdeck_app.widgets.painting import Index, ListRowDelegate, chart_font, paint_text

ROW_HEIGHT = 16
TAKE_EVERY_MS = 100
MAX_LINES_PER_TAKE = 4_000
_NO_RUN = marked("Open a run to see what its ranks say.")
_NOTHING_BY_THEN = marked(
    "No line of then is kept: Output holds the last lines of a run, and of logs when they were read."
)
_TONES = {"warning": "editorWarning.foreground", "error": "errorForeground", "dim": "descriptionForeground"}


class _LineDelegate(ListRowDelegate):
    """Time, [rank 0], text, in a mono face; what is looked for is lit."""

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
            if text is line.text:
                self._light(painter, room, text)
            paint_text(painter, room, text, color(tone), 12, mono=True, elide=elide)
            left += metrics.horizontalAdvance(f"{text} ")

    def _light(self, painter: QPainter, room: QRect, text: str) -> None:
        """The ground under what is found in a line."""
        wanted = self.search.wanted if self.search is not None else None
        if wanted is None:
            return
        metrics = QFontMetrics(chart_font(12, mono=True))
        matches = wanted.globalMatch(text)
        while matches.hasNext():
            match = matches.next()
            left = metrics.horizontalAdvance(text_before(text, match.capturedStart()))
            width = metrics.horizontalAdvance(match.captured())
            box = QRect(room.x() + left, room.y(), width, room.height()).intersected(room)
            painter.fillRect(box, self._theme.color("editor.findMatchHighlightBackground"))


class _LineList(QListView):
    """Copies the chosen lines as text."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            rows = sorted(self.selectedIndexes(), key=lambda index: index.row())
            QGuiApplication.clipboard().setText("\n".join(str(index.data()) for index in rows))
        else:
            super().keyPressEvent(event)


class OutputView(QWidget):
    """`show_run` follows a run while the view is visible; None shows nothing."""

    follow_changed = Signal(bool)
    named = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.name = ""
        """Of the run on show, as a person knows it."""
        self.model = OutputModel(self)
        self._path: Path | None = None
        self._tail: OutputTail | None = None
        self.rank: int | None = None
        self._text = ""
        self.follows = True
        self._moving = False
        self.list = _LineList()
        self.list.setModel(self.model)
        delegate = _LineDelegate(theme, self.list, ROW_HEIGHT)
        self.list.setItemDelegate(delegate)
        self.list.setAccessibleName(tr("Output"))
        self.list.setUniformItemSizes(True)
        self.list.setSelectionMode(QListView.SelectionMode.ExtendedSelection)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.verticalScrollBar().valueChanged.connect(self._scrolled)
        self._is_past = False
        self.empty = text_label(tr(_NO_RUN), "dim", wrap=False)
        self.empty.setContentsMargins(16, 8, 16, 8)
        delegate.search = LineSearch(self.list, self.model)
        self.find_bar = FindBar(theme, delegate.search)
        column(self.find_bar, self.empty, (self.list, 1), on=self, margins=(0, 4, 0, 4), spacing=0)
        self.setFocusProxy(self.list)
        self._timer = QTimer(self, interval=TAKE_EVERY_MS)
        self._timer.timeout.connect(self.take)
        theme.changed.connect(self.list.viewport().update)

    def show_run(self, path: Path | None) -> None:
        if path == self._path:
            return
        self.close_tail()
        self._path = path
        self.rank = None
        self.model.clear()
        self.model.ranks.clear()
        self.model.set_filter(None, self._text)
        self._say_empty()
        self.set_follow(True)
        if self.isVisible():
            self._start()

    def follow(self, run: LiveRun | None) -> None:
        """Show the run that is current now."""
        self.show_run(None if run is None else run.run.path)
        self.name = "" if run is None else run.title
        self.named.emit(self.name)

    def set_until(self, moment: float | None) -> None:
        """What was said until then (Unix seconds), of the lines that are kept; None is now."""
        self.model.set_until(moment)
        self._is_past = moment is not None
        self._say_empty()
        self._to_end()

    def _say_empty(self) -> None:
        is_nothing = self._is_past and not self.model.rowCount()
        self.empty.setText(tr(_NOTHING_BY_THEN if is_nothing else _NO_RUN))
        self.empty.setVisible(self._path is None or is_nothing)

    def set_rank(self, rank: int | None) -> None:
        self.rank = rank
        self.model.set_filter(rank, self._text)
        self._to_end()

    def set_text(self, text: str) -> None:
        self._text = text
        self.model.set_filter(self.rank, text)
        self._to_end()

    def set_follow(self, follows: bool) -> None:
        self.follows = follows
        self.follow_changed.emit(follows)
        self._to_end()

    def take(self) -> None:
        """Move what the thread has read into the model; at most so much that a click is never late."""
        if self._tail is None or not self._tail.lines:
            return
        waiting = self._tail.lines
        self._moving = True
        self.model.append([waiting.popleft() for _ in range(min(len(waiting), MAX_LINES_PER_TAKE))])
        self._moving = False
        self._say_empty()
        self._to_end()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._start()
        self._to_end()

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
        """Ends the reader thread: there is another run, or the window closes."""
        self._timer.stop()
        if self._tail is not None:
            self._tail.stop()
            self._tail = None

    def _to_end(self) -> None:
        if self.follows:
            self._moving = True
            self.list.scrollToBottom()
            self._moving = False

    def _scrolled(self, value: int) -> None:
        """A move that is not ours is the person's: up opens the lock, to the end closes it."""
        bar = self.list.verticalScrollBar()
        at_end = value >= bar.maximum() - 1
        if not self._moving and bar.maximum() > 0 and at_end != self.follows:
            self.set_follow(at_end)


class OutputTools(QWidget):
    """At the right of the panel's header: whose run, a filter, which rank, the follow lock, and clear."""

    def __init__(self, theme: Theme, view: OutputView) -> None:
        super().__init__()
        self._view = view
        self.filter = QLineEdit(placeholderText=tr("Filter"), clearButtonEnabled=True)
        self.filter.setProperty("compact", "true")
        self.filter.setFixedWidth(120)
        self.filter.setAccessibleName(tr("Filter output"))
        self.filter.textChanged.connect(view.set_text)
        self.ranks = ComboBox(theme)
        self.ranks.setProperty("compact", "true")
        self.ranks.setFixedWidth(110)
        self.ranks.setAccessibleName(tr("Rank"))
        self.ranks.setToolTip(tr("Whose output is shown"))
        self.ranks.addItem(tr("All ranks"), None)
        self.ranks.activated.connect(lambda _index: view.set_rank(self.ranks.currentData()))
        self.lock = tool_button(
            theme, "lock", tr("Follow the End"), lambda: view.set_follow(self.lock.isChecked())
        )
        self.lock.setCheckable(True)
        self.lock.setChecked(view.follows)
        view.follow_changed.connect(self.lock.setChecked)
        self.clear = tool_button(theme, "clear-all", tr("Clear Output"), view.model.clear)
        whose = WholeLabel()
        whose.setProperty("tone", "small")
        whose.setText(view.name)
        whose.setContentsMargins(0, 0, 6, 0)
        view.named.connect(whose.setText)
        row((whose, 1), self.filter, self.ranks, self.lock, self.clear, on=self, spacing=4)
        view.model.rowsInserted.connect(self._list_ranks)
        view.model.modelReset.connect(self._list_ranks)

    def _list_ranks(self) -> None:
        ranks = sorted(self._view.model.ranks)
        listed = [self.ranks.itemData(index) for index in range(1, self.ranks.count())]
        if ranks != listed:
            self.ranks.clear()
            self.ranks.addItem(tr("All ranks"), None)
            for rank in ranks:
                self.ranks.addItem(tr("Rank {rank}", rank=rank), rank)
        wanted = 0 if self._view.rank is None else self.ranks.findData(self._view.rank)
        if wanted >= 0 and self.ranks.currentIndex() != wanted:
            self.ranks.setCurrentIndex(wanted)
