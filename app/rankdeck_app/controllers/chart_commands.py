"""Registers the chart commands, which act on the active tab's card grid, active card or single chart."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from weakref import WeakSet

from PySide6.QtWidgets import QFileDialog

from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import error_text, tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_export import FILE_KINDS
from rankdeck_app.widgets.card_layout import ArrangeableGrid


def grid_of(page: Page | None) -> ArrangeableGrid | None:
    """Return the page's card grid, or None."""
    grid = getattr(page, "grid", None)
    return grid if isinstance(grid, ArrangeableGrid) else None


def card_of(page: Page | None) -> ChartCard | None:
    """Return the active card of the page's grid, or the page's only chart."""
    grid = grid_of(page)
    card = getattr(page, "chart_card", None) if grid is None else grid.active_card
    return card if isinstance(card, ChartCard) else None


class ChartCommands:
    """The chart commands, and the context facts on which they depend: `activeCards` (the active tab has
    cards) and `activeChart` (the active tab has a chart, on a card or on its own)."""

    def __init__(self, window: MainWindow, exports: Exports) -> None:
        self._window, self._exports = window, exports
        self._connected_pages: WeakSet[Page] = WeakSet()
        """Pages whose cards' signals are connected."""
        window.editor.active_page_changed.connect(self._on_page_activated)

    def _on_page_activated(self, page: Page | None) -> None:
        has_cards = grid_of(page) is not None
        has_charts = has_cards or card_of(page) is not None
        self._window.context.set("activeCards", has_cards)
        self._window.context.set("activeChart", has_charts)
        if page is not None and page not in self._connected_pages:
            self._connected_pages.add(page)
            for card in page.findChildren(ChartCard):
                card.export_requested.connect(self._export)
                if has_charts:
                    card.get_shortcut = self._window.keymap.text_for

    def _export(self, card: ChartCard, kind: str) -> None:
        """Ask for a file, suggesting a name made from the titles of the page and the card, and write the
        card's current content to it."""
        page = next(candidate for candidate in self._window.editor.pages() if candidate.isAncestorOf(card))
        name = f"{file_name(page.title, card.title)}.{kind}"
        title = tr("Export {card}", card=card.title)
        file = self._exports.ask_file(title, name, f"{kind.upper()} (*.{kind})")
        if file is not None:
            message = tr("Exported {card} to {file}.", file=file, card=card.title)
            self._exports.write(file, card.make_export(kind), message)

    def commands(self) -> list[Command]:
        def row(
            name: str, title: str, act: Callable[[], None], keys: str, when: str = "activeCards"
        ) -> Command:
            return Command(f"chart.{name}", title, act, (f"Ctrl+K {keys}",), when)

        grid, card = self._on_grid, self._on_card
        exports = [
            row(
                kind,
                phrase("Chart: Export {kind}…", kind=kind.upper()),
                card(methodcaller("request_export", kind)),
                f"Ctrl+{at}",
                "activeChart",
            )
            for at, kind in enumerate(FILE_KINDS, 1)
        ]
        return [
            row(
                "maximise",
                phrase("Chart: Maximise or Restore"),
                grid(ArrangeableGrid.toggle_maximised),
                "Ctrl+M",
            ),
            row("moveBack", phrase("Chart: Move Back"), grid(lambda cards: cards.move_card(-1)), "Ctrl+Up"),
            row("moveOn", phrase("Chart: Move Forward"), grid(lambda cards: cards.move_card(1)), "Ctrl+Down"),
            row("hide", phrase("Chart: Hide"), grid(ArrangeableGrid.hide_card), "Ctrl+H"),
            row("showAll", phrase("Chart: Show All Charts"), grid(ArrangeableGrid.show_all), "Ctrl+A"),
            row("resetLayout", phrase("Chart: Reset Layout"), grid(ArrangeableGrid.reset), "Ctrl+0"),
            row("log", phrase("Chart: Toggle Logarithmic Scale"), card(ChartCard.toggle_log), "Ctrl+L"),
            row(
                "smoother",
                phrase("Chart: Increase Smoothing"),
                card(lambda chart: chart.smooth_by(1)),
                "Ctrl+.",
            ),
            row(
                "rougher",
                phrase("Chart: Decrease Smoothing"),
                card(lambda chart: chart.smooth_by(-1)),
                "Ctrl+,",
            ),
            row(
                "xAxis",
                phrase("Chart: Next X Axis (Step, Time, Samples)"),
                card(ChartCard.next_x_axis),
                "Ctrl+X",
            ),
            row(
                "copy",
                phrase("Chart: Copy as Image"),
                card(ChartCard.copy_image),
                "Ctrl+C",
                "activeChart",
            ),
            *exports,
        ]

    def _on_grid(self, act: Callable[[ArrangeableGrid], object]) -> Callable[[], None]:
        def run() -> None:
            grid = grid_of(self._window.editor.active_page())
            if grid is not None:
                act(grid)

        return run

    def _on_card(self, act: Callable[[ChartCard], object]) -> Callable[[], None]:
        def run() -> None:
            card = card_of(self._window.editor.active_page())
            if card is not None:
                act(card)

        return run


# Exported files: chosen in a dialog, written whole or not at all, and announced in a toast that can open
# their folder. The io thread writes what the window has; the engine writes the rest (comparisons.py).

_FORBIDDEN_CHARACTERS = frozenset('/\\:*?"<>|')
_MAX_NAME_BYTES = 200
"""Maximum size of a file name in bytes; file systems allow 255, but temporary names are longer."""


def file_name(*parts: str) -> str:
    """Join titles into a file name that is valid on any system, such as 'gpt-dp - Training loss'."""
    signs = (
        sign if sign.isprintable() and sign not in _FORBIDDEN_CHARACTERS else "-"
        for sign in " - ".join(parts)
    )
    # The cut may split a character, which "ignore" drops. Windows accepts no name that ends in a dot or a
    # space.
    return "".join(signs).encode()[:_MAX_NAME_BYTES].decode(errors="ignore").strip(" .")


class Exports:
    """Writes files that the user exports. `reveal` opens a folder."""

    def __init__(self, window: MainWindow, session: Session, reveal: Callable[[Path], object]) -> None:
        self._window, self._session, self._reveal = window, session, reveal

    def ask_file(self, title: str, name: str, kind: str) -> Path | None:
        """Ask where to save a file, suggesting `name`; `kind` is the dialog's file filter. If the user types
        no suffix, add that of `name`. Return None if the user cancels."""
        workspace = self._session.workspace
        suggested = str(workspace.dialog_folder / name)
        chosen, _ = QFileDialog.getSaveFileName(self._window, title, suggested, kind)
        path = Path(chosen)
        if not chosen:
            return None
        workspace.remember_dialog_path(path)
        return path if path.suffix else path.with_suffix(Path(name).suffix)

    def write(self, file: Path, fill: Callable[[Path], object], text: str) -> None:
        """Call `fill` on the io thread to write the file, then show `text` in a toast."""

        def write() -> None:
            from rankdeck.run.export import write_export  # up to a third of a second

            write_export(file, fill)

        self._session.io_thread.submit(
            write, lambda _: self.show_saved_toast(file, text), self._show_error, key=file
        )

    def _show_error(self, error: Exception) -> None:
        self._window.toasts.error(error_text(error))

    def show_saved_toast(self, file: Path, text: str) -> None:
        show = (tr("Show in File Manager"), lambda: self._reveal(file.parent))
        self._window.toasts.show(text, actions=[show])
