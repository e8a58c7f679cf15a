"""Card grid that the user can rearrange: cards can be focused, maximised, moved and hidden.

The active card is the card that has the focus or was the last to have it; commands and keys act on it. The
layout is saved as state (state/state_file.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import QEvent, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from rankdeck_app.language import tr
from rankdeck_app.widgets.card import HEADER_HEIGHT, ChartCard
from rankdeck_app.widgets.card_grid import CardGrid


class ArrangeableGrid(CardGrid):
    """Card grid that the user can rearrange.

    `layout_changed` is emitted when the user changes the layout or how a chart is drawn.
    """

    layout_changed = Signal()

    def __init__(
        self, cards: Mapping[str, ChartCard], *, optional: Collection[str] = (), **kinds: Any
    ) -> None:
        """Create the grid. The `optional` cards are hidden until the user shows them."""
        super().__init__(cards, **kinds)
        self._default_hidden = self.hidden = frozenset(optional)
        self._default_order = list(cards)
        self._last_active_name = ""
        for name, card in cards.items():
            card.maximise_requested.connect(partial(self.toggle_maximised, name))
            card.menu_requested.connect(partial(self._fill_menu, name))
            card.style_changed.connect(self.layout_changed)
        CardDrag(self.cards, self).dropped.connect(self.move_to)
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        # The active card stays active when the focus leaves the grid, as for the command palette.
        app.focusChanged.connect(self._on_focus_changed)

    # Active card

    def _on_focus_changed(self, _before: QWidget | None, now: QWidget | None) -> None:
        for name, card in self.cards.items():
            if now is not None and (now is card or card.isAncestorOf(now)):
                self._last_active_name = name

    @property
    def active_name(self) -> str:
        """Name of the active card if it is visible, else of the first visible card; "" if no card is
        visible."""
        names = self.visible_names
        return self._last_active_name if self._last_active_name in names else next(iter(names), "")

    @property
    def active_card(self) -> ChartCard | None:
        return self.cards.get(self.active_name)

    # Actions on a card

    def toggle_maximised(self, name: str = "") -> None:
        """Let the card `name` (default: the active card) fill the page; if a card fills it already, restore
        the grid."""
        name = name or self.active_name
        self.maximise("" if self.maximised else name)
        if name in self.visible_names:
            self.cards[name].setFocus()

    def move_card(self, by: int, name: str = "") -> None:
        """Move the card `name` (default: the active card) by `by` positions among the visible cards."""
        name, names = name or self.active_name, self.visible_names
        if name not in names or not 0 <= names.index(name) + by < len(names):
            return
        self.move_to(name, names[names.index(name) + by])

    def move_to(self, name: str, other: str) -> None:
        """Move a card to the position of `other`; the cards between them shift by one."""
        if self.maximised or name == other:
            return
        is_forth = self.order.index(name) < self.order.index(other)
        order = [card_name for card_name in self.order if card_name != name]
        # A forward move inserts after the target, which the removal has shifted by one.
        order.insert(order.index(other) + is_forth, name)
        self.set_order(order)
        self.cards[name].setFocus()
        self.layout_changed.emit()

    def hide_card(self, name: str = "") -> None:
        """Hide the card `name` (default: the active card) unless it is the only visible card."""
        name = name or self.active_name
        if len(self.visible_names) > 1 and name in self.visible_names:
            self.maximise("")
            self.set_hidden({*self.hidden, name})
            self.layout_changed.emit()

    def show_card(self, name: str) -> None:
        self.set_hidden(self.hidden - {name})
        self.layout_changed.emit()

    def show_all(self) -> None:
        self.set_hidden(())
        self.layout_changed.emit()

    def reset(self) -> None:
        """Restore the default layout."""
        self.restore({})
        self.layout_changed.emit()

    def _fill_menu(self, name: str, menu: QMenu) -> None:
        """Add the layout actions to a card's menu."""
        names, offer = self.visible_names, partial(self.cards[name].add_action, menu)
        at = names.index(name) if name in names else 0
        offer(
            tr("Restore") if self.maximised else tr("Maximise"),
            partial(self.toggle_maximised, name),
            "maximise",
        )
        for text, by, command in ((tr("Move Back"), -1, "moveBack"), (tr("Move Forward"), 1, "moveOn")):
            action = offer(text, partial(self.move_card, by, name), command)
            action.setEnabled(0 <= at + by < len(names) and not self.maximised)
        offer(tr("Hide"), partial(self.hide_card, name), "hide").setEnabled(len(names) > 1)
        for hidden in (card_name for card_name in self.order if card_name in self.hidden & self.available):
            show = tr("Show {card}", card=self.cards[hidden].title)
            menu.addAction(show, partial(self.show_card, hidden))
        offer(tr("Reset Layout"), self.reset, "resetLayout").setEnabled(bool(self.layout_state()))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.maximised:
            self.toggle_maximised()
        else:
            super().keyPressEvent(event)

    # Saved layout

    def layout_state(self) -> dict[str, Any]:
        """Return the differences from the default layout."""
        state: dict[str, Any] = {}
        if self.order != self._default_order:
            state["order"] = self.order
        if self.hidden != self._default_hidden:
            state["hidden"] = sorted(self.hidden)
        charts = {name: style for name, card in self.cards.items() if (style := card.style_state())}
        return state | ({"charts": charts} if charts else {})

    def set_default_order(self, names: Sequence[str]) -> None:
        """Set the default order; cards that `names` does not contain come last.

        If the cards are in the old default order, they move to the new default order.
        """
        default_order = [*names, *(name for name in self.cards if name not in names)]
        is_usual, self._default_order = self.order == self._default_order, default_order
        if is_usual:
            self.set_order(default_order)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved layout, ignoring unknown cards and values of the wrong type, which a layout saved
        by another version can contain."""
        order, hidden, charts = (state.get(key) for key in ("order", "hidden", "charts"))
        names = [name for name in order if isinstance(name, str)] if isinstance(order, list) else []
        self.set_order([*names, *self._default_order])
        hidden_names = {name for name in hidden if name in self.cards} if isinstance(hidden, list) else None
        self.set_hidden(self._default_hidden if hidden_names is None else hidden_names)
        for name, card in self.cards.items():
            style = charts.get(name) if isinstance(charts, dict) else None
            card.restore_style(style if isinstance(style, dict) else {})


# Cards are dragged by their headers: the drop target is outlined, and the card takes its position on release.
# Escape cancels.


class CardDrag(QObject):
    """Event filter that lets the user move cards by dragging. `dropped` carries the names of the dragged card
    and its drop target."""

    dropped = Signal(str, str)

    def __init__(self, cards: Mapping[str, ChartCard], parent: QObject) -> None:
        super().__init__(parent)
        self._cards = cards
        self._dragged_name = self._target_name = ""
        self._press_position: QPoint | None = None
        for card in cards.values():
            card.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QMouseEvent) and isinstance(watched, ChartCard):
            return self._on_mouse(watched, event)
        is_escape = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape
        if is_escape and self._dragged_name:
            self._end_drag()
            return True
        return False

    def _on_mouse(self, card: ChartCard, event: QMouseEvent) -> bool:
        """Handle a mouse event on a card and return whether it belongs to a drag.

        The card itself handles clicks and double clicks.
        """
        at = event.position().toPoint()
        if event.type() == QEvent.Type.MouseButtonPress:
            is_grip = event.button() == Qt.MouseButton.LeftButton and at.y() < HEADER_HEIGHT
            self._press_position = at if is_grip else None
            return is_grip
        if self._press_position is None:
            return False
        if event.type() == QEvent.Type.MouseMove:
            if (
                not self._dragged_name
                and (at - self._press_position).manhattanLength() >= QApplication.startDragDistance()
            ):
                self._dragged_name = next(
                    name for name, other_card in self._cards.items() if other_card is card
                )
                card.setCursor(Qt.CursorShape.ClosedHandCursor)
            if self._dragged_name:
                self._update_target(event.globalPosition().toPoint())
        elif event.type() == QEvent.Type.MouseButtonRelease:
            name, onto = self._dragged_name, self._target_name
            self._end_drag()
            if name and onto:
                self.dropped.emit(name, onto)
        return event.type() in (QEvent.Type.MouseMove, QEvent.Type.MouseButtonRelease)

    def _update_target(self, at: QPoint) -> None:
        self._set_target(
            next(
                (
                    name
                    for name, card in self._cards.items()
                    if name != self._dragged_name
                    and card.isVisible()
                    and card.rect().contains(card.mapFromGlobal(at))
                ),
                "",
            )
        )

    def _set_target(self, onto: str) -> None:
        for name, card in self._cards.items():
            card.set_drop_target(name == onto)
        self._target_name = onto

    def _end_drag(self) -> None:
        self._set_target("")
        if self._dragged_name:
            self._cards[self._dragged_name].unsetCursor()
        self._dragged_name, self._press_position = "", None
