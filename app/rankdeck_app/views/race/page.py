"""The race tab: the entries so far, measurements beside predictions, and whether the losses agree.

The tab only reads the race's folder, so it can be closed and reopened while the race runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from rankdeck.run.race import RUNNING, RaceEntry
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.state.draft_race import RaceMonitor
from rankdeck_app.theme import Theme
from rankdeck_app.views.race import race_chart_data
from rankdeck_app.views.race.table import RaceHeader, RaceTable
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.layouts import MIDDLE, column, make_scroll_area, push_button, row, text_label
from rankdeck_app.widgets.run_list import folder_breadcrumbs
from rankdeck_app.widgets.stat_strip import StatStrip


class RacePage(Page):
    """Page of a race.

    Signals: `stop_requested`; `again_requested`, to repeat an inconclusive race; `entry_opened`, which
    carries an entry; `winner_used`, which carries the winning entry.
    """

    breadcrumb_command = "view.show.runs"
    stop_requested = Signal()
    again_requested = Signal()
    entry_opened = Signal(object)
    winner_used = Signal(object)
    can_split = False

    def __init__(
        self, page_id: str, watch: RaceMonitor, theme: Theme, on_closed: Callable[[], object]
    ) -> None:
        super().__init__(page_id, title=tr("Race"), icon="list-ordered")
        self._watch = watch
        self.stat_strip = StatStrip(theme)
        self.stat_strip.setAccessibleName(tr("Race summary"))
        self.table = RaceTable(theme)
        self.table.picked.connect(self._open_entry)
        self._header = RaceHeader(theme, self.table)
        body = QWidget()
        column(self._header, (self.table, 1), on=body, spacing=4)
        self._card = ChartCard(tr("Strategies by step time"), theme, body, self._csv_rows)
        self.notes_label = text_label(tone="dim", selectable=True)
        ends = tr("Stop the race and keep the measurements so far")
        self.stop_button = push_button(tr("Stop the Race"), ends, self.stop)
        uses = tr("Use the winner's strategy in the configuration")
        self.winner_button = push_button(tr("Use the Winner"), uses, self._use_winner, kind="primary")
        again = tr("Race the same strategies again; do this when nothing else is using the machine")
        self.again_button = push_button(tr("Race Again"), again, self.again_requested.emit, kind="primary")
        buttons = (self.stop_button, self.again_button, self.winner_button)
        bar = row((self.stat_strip, 1), *buttons, spacing=8, align=MIDDLE)
        inside = QWidget()
        column(bar, (self._card, 1), self.notes_label, on=inside, margins=(16, 2, 16, 12), spacing=10)
        column(make_scroll_area(inside, tr("Race")), on=self)
        self.setFocusProxy(self.table)
        watch.changed.connect(self.refresh)
        self.destroyed.connect(lambda: on_closed())
        self.refresh()

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), *folder_breadcrumbs(self._watch.folder.name), tr("Race")]

    def tooltip(self) -> str:
        return str(self._watch.folder.path)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._watch.set_active(True)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._watch.set_active(False)

    def refresh(self) -> None:
        """Show the latest snapshot of the race."""
        snapshot = self._watch.snapshot
        race = snapshot.race
        is_running = race is not None and race.outcome == RUNNING
        self.stat_strip.set_data(race_chart_data.stats(snapshot))
        rows = race_chart_data.rows(snapshot)
        self.table.set_rows(rows)
        self._header.set_has_plan(
            any(race_row.predicted_s is not None and race_row.step_s is not None for race_row in rows)
        )
        self.stop_button.setVisible(is_running)
        self.again_button.setVisible(race is not None and not is_running and bool(race.verdicts.inconclusive))
        self.winner_button.setVisible(self._winner() is not None)
        self.notes_label.setText(self._notes_text())
        self.notes_label.setVisible(bool(self.notes_label.text()))
        if race is None:
            return
        self._card.set_source(tr(race.source))
        counts = {"steps": race.steps, "seed": race.seed}
        self._card.set_subtitle(
            tr(
                "{steps} steps each with seed {seed}, the first {first} not timed",
                first=race.warm_up_steps,
                **counts,
            ),
            tr("{steps} steps each with seed {seed}", **counts),
        )
        if self.title != race.title:
            self.set_title(race.title)

    def show_stopping(self) -> None:
        """Show that a stop was requested, until the race is over."""
        self.stop_button.setText(tr("Stopping…"))
        self.stop_button.setEnabled(False)

    def _notes_text(self) -> str:
        if self._watch.race is not None:
            return "\n".join(race_chart_data.notes(self._watch.race))
        file = self._watch.folder.file
        unreadable = tr("{file} cannot be read, or was written by a newer version of Rankdeck.", file=file)
        return unreadable if self._watch.has_read else ""

    def _winner(self) -> RaceEntry | None:
        race = self._watch.race
        return None if race is None or race.outcome == RUNNING else race.entry(race.verdicts.winner)

    def stop(self) -> None:
        """Request that the race stop, unless this has already been requested."""
        if self.stop_button.isEnabled():
            self.show_stopping()
            self.stop_requested.emit()

    def _use_winner(self) -> None:
        winner = self._winner()
        if winner is not None:
            self.winner_used.emit(winner)

    def _open_entry(self, number: int) -> None:
        race = self._watch.race
        entry = None if race is None else race.entry(number)
        if entry is not None:
            self.entry_opened.emit(entry)

    def _csv_rows(self) -> Iterable[Sequence[object]]:
        return race_chart_data.csv_rows(self._watch.snapshot)
