"""What every tab of a run is: the strip of figures, the banner, a grid of cards, and what drives them.

Every frame takes what the reader thread has (at most 4 ms of it), and then repaints only the cards whose
figures changed, and only while somebody can see them. page.py has the cards of a configured run,
script_page.py those of a person's own script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtGui import QShowEvent

from rankdeck.run.batch import Changed
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.card_layouts import SCRIPT, CardLayouts
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard.banner import Banner
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_layout import ArrangedGrid
from rankdeck_app.widgets.layouts import Part, column
from rankdeck_app.widgets.run_list import OUTCOME_TONES
from rankdeck_app.widgets.stat_strip import Stat, StatStrip
from rankdeck_app.widgets.zoom_plot import ZoomPlot

PAGE_KIND = "run"
# Figures that change faster cannot be read.
_STATS_EVERY_S = 0.25


def page_id(run_path: object) -> str:
    return f"{PAGE_KIND}:{run_path}"


class RunTab(Page):
    """It does not own the run: `closed` is called once when the tab is gone. `run_command` runs a command by
    its id; without it nothing can be done with the run. `layouts` keeps how its cards are arranged.
    """

    def __init__(
        self,
        run: LiveRun,
        theme: Theme,
        clock: FrameClock,
        *,
        run_command: Callable[[str], object] | None = None,
        closed: Callable[[], object] | None = None,
        layouts: CardLayouts | None = None,
    ) -> None:
        super().__init__(page_id(run.run.path), title=run.name, icon="pulse")
        self.run = run
        self._can_act = run_command is not None
        self._shown_actions: list[PageAction] = []
        self._pending = ~Changed.NOTHING
        self._stats_at = 0.0
        self._aged_at = 0
        self._known_devices = 0
        self._strip = StatStrip(theme)
        self._banner = Banner(theme)
        if run_command is not None:
            self._banner.acted.connect(run_command)
        self.cards: dict[str, ChartCard] = {}
        self.grid = self._make_cards(theme)
        self._layouts, self._layout_kind = layouts, ""
        self.grid.arranged.connect(self._keep_layout)
        column(*self._parts(theme), on=self, margins=(16, 2, 16, 12), spacing=10)
        for card in self.cards.values():
            if isinstance(card.body, ZoomPlot):
                card.body.zoom_changed.connect(partial(self._show_zoom, card, card.body))
        run.changed.connect(self._note)
        if closed is not None:
            self.destroyed.connect(lambda *_: closed())
        clock.subscribe(self._frame)
        self._refresh()

    # What the kinds of tabs differ in

    def _make_cards(self, theme: Theme) -> ArrangedGrid:
        """Every chart in its card, and the cards in their grid."""
        raise NotImplementedError

    def _parts(self, theme: Theme) -> Sequence[Part]:
        """What stands under each other."""
        return (self._strip, self._banner, (self.grid, 1))

    def _plots(self) -> Sequence[ZoomPlot]:
        """Those of which one is drawn a frame."""
        raise NotImplementedError

    def _stats(self) -> tuple[Stat, ...]:
        raise NotImplementedError

    def _headline(self) -> tuple[str, str, str] | None:
        """(tone, message, advice) of the banner."""
        raise NotImplementedError

    def _live_actions(self) -> list[PageAction]:
        """What one can do while it runs."""
        raise NotImplementedError

    def _ended_actions(self) -> list[PageAction]:
        """And once it is over, the most likely first."""
        raise NotImplementedError

    def _refresh_cards(self, pending: Changed) -> None:
        raise NotImplementedError

    # The tab

    def breadcrumbs(self) -> list[str]:
        name = self.run.name
        stamp, _, rest = name.partition("-")
        if len(stamp) != 8 or not stamp.isdigit():
            return ["runs", name, "Dashboard"]
        return ["runs", f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:]}", rest.partition("-")[2] or rest, "Dashboard"]

    def tooltip(self) -> str:
        return str(self.run.run.path)

    def tab_actions(self) -> list[PageAction]:
        if not self._can_act:
            return []
        return self._ended_actions() if self.run.is_over else self._live_actions()

    def _banner_actions(self) -> list[PageAction]:
        if self.run.ending == "stopping" and self._can_act:
            return [PageAction("debug-stop", "Stop Now", "run.stopNow")]
        return self.tab_actions() if self.run.is_over else []

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._pending = ~Changed.NOTHING

    def _note(self, changed: Changed) -> None:
        self._pending |= changed

    def _frame(self) -> None:
        """One tick of the clock: take, then repaint what changed."""
        self.run.drain()
        if self._pending & Changed.STATE:
            self._show_state()
        if self.isVisible():
            self._grow_old()
            self._refresh()
            # One plot a frame, the one that waited longest: all together would make a slow one.
            any(plot.tick() for plot in sorted(self._plots(), key=lambda plot: plot.drawn_at))

    def _show_heat(self) -> None:
        """The strip of utilisation shows the time that memory does."""
        raise NotImplementedError

    def _show_zoom(self, card: ChartCard, plot: ZoomPlot) -> None:
        words = plot.zoom_words
        card.set_note(*((words, "zoomed") if words else ()))
        self._show_heat()

    def _grow_old(self) -> None:
        """Once a second what is shown is a second older, whether anything new came or not."""
        second = int(time.monotonic())
        if not self.run.is_over and second != self._aged_at:
            self._aged_at = second
            self._pending |= Changed.MEMORY | Changed.READINGS | Changed.ANATOMY

    def _keep_layout(self) -> None:
        if self._layouts is not None and self._layout_kind:
            self._layouts.keep(self._layout_kind, self.grid.layout_state())

    def _find_layout(self) -> None:
        """Once it is known which strategy this is: as a person arranged the cards of such a run before."""
        kind = SCRIPT if self.run.is_script else self.run.strategy
        if self._layouts is not None and kind and kind != self._layout_kind:
            self._layout_kind = kind
            self.grid.restore(self._layouts.of(kind))

    def _show_state(self) -> None:
        self._find_layout()
        """Tab, title and buttons: they are seen even while the page is not."""
        color = OUTCOME_TONES.get(self.run.outcome or "running", "descriptionForeground")
        title = self.run.title
        if (title, color) != (self.title, self.icon_color):
            self.set_title(title, icon_color=color)
        if (actions := self.tab_actions()) != self._shown_actions:
            self._shown_actions = actions
            self.actions_changed.emit()

    def _refresh(self) -> None:
        pending = self._pending
        now = time.monotonic()
        if now - self._stats_at >= _STATS_EVERY_S or pending & Changed.STATE:
            self._stats_at = now
            self._strip.set_figure(self._stats())
        if pending & (Changed.STATE | Changed.PROBLEMS | Changed.STEPS):
            self._banner.say(self._headline(), self._banner_actions())
        self._refresh_cards(pending)
        if len(self.run.devices) != self._known_devices:
            self._known_devices = len(self.run.devices)
            self.grid.lay_out()
        self._pending = Changed.NOTHING
