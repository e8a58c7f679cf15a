"""Whatever a person does in whatever order: no exception, no warning of Qt, no text without its room, and no
view that outlives its tab. The actions are drawn by a seed, which a failure names, with what was done.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QSize
from shiboken6 import isValid

from rankdeck_app.composition import App
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.tab_group import Zone
from rankdeck_app.theme import BUILT_IN_THEMES
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from tests.helpers.app_window import process_events
from tests.helpers.every_view import ACTIVITIES, PANELS, EveryView

ZONES: tuple[Zone, ...] = ("center", "left", "right", "top", "bottom")
COMMANDS = [
    "editor.splitRight",
    "editor.splitDown",
    "editor.close",
    "editor.close",
    "editor.reopen",
    "editor.next",
    "editor.previous",
    "editor.moveRight",
    "editor.togglePin",
    "editor.keep",
    "editor.closeOthers",
    "editor.focusNextGroup",
    "view.toggleSideBar",
    "view.togglePanel",
    "view.maximizePanel",
    "view.restorePanel",
    "view.toggleStatusBar",
    "view.zenMode",
    "view.zoomIn",
    "view.zoomIn",
    "view.zoomOut",
    "view.zoomReset",
    "view.focusNextPart",
    "notifications.clear",
    "palette.quickOpen",
    "palette.commands",
    "edit.find",
    "problems.next",
    "editor.closeAll",
]
MAX_GROUPS = 4
PANE, FRAME_SIZE = QSize(300, 180), QSize(348, 320)
"""No smaller is a group of tabs made by resizing and zooming; what stands around all of them."""


class Monkey:
    """Does one thing after another; `actions` says what, in words."""

    def __init__(self, app: App, every: EveryView, seed: int) -> None:
        self.app, self.every, self.rng = app, every, random.Random(seed)
        self.actions: list[str] = []
        self.page_refs: list[weakref.ref[Page]] = []
        self.cut_texts: dict[str, str] = {}

    def act(self) -> None:
        acts: list[tuple[int, Callable[[], str]]] = [
            (8, self.open_page),
            (8, self.run_command),
            (4, self.resize),
            (3, self.drag),
            (2, self.show_part),
            (1, self.change_theme),
        ]
        (act,) = self.rng.choices([candidate for _, candidate in acts], [weight for weight, _ in acts])
        with watch_overflows(self.note_cut):
            self.actions.append(act.__name__)
            self.actions[-1] = act()
            self.make_room()
            process_events()
        page_ids = {id(ref()) for ref in self.page_refs}
        pages = self.app.window.editor.pages()
        self.page_refs += [weakref.ref(page) for page in pages if id(page) not in page_ids]

    def note_cut(self, overflow: Overflow) -> None:
        groups = [(group.width(), group.height()) for group in self.app.window.editor.groups()]
        self.cut_texts.setdefault(str(overflow), f"groups {groups} after {self.actions[-4:]}")

    def make_room(self) -> None:
        """A window that is smaller than its groups can be is not asked for."""
        window = self.app.window
        min_size = FRAME_SIZE + PANE * len(window.editor.groups())
        if window.size().expandedTo(min_size) != window.size():
            window.resize(window.size().expandedTo(min_size))

    def open_page(self) -> str:
        page_id = self.rng.choice([*self.every.page_ids, "compare", "code"])
        if page_id == "compare":
            self.app.comparisons.open_comparison([self.every.alive.path, self.every.failed.path])
        elif page_id == "code":
            self.app.problem_navigator.open_location(Path(__file__), 3, "what is wrong here")
        else:
            self.app.window.editor.open(page_id, preview=self.rng.random() < 0.3)
        return f"open {page_id}"

    def run_command(self) -> str:
        window, name = self.app.window, self.rng.choice(COMMANDS)
        if not (name.startswith("editor.split") and len(window.editor.groups()) >= MAX_GROUPS):
            window.commands.run(name)
        if name.startswith("palette"):
            process_events()
            window.command_palette.input.setText(self.rng.choice(("", "split", "> th", "gpt", "zzz")))
            process_events()
            window.command_palette.dismiss()
        return name

    def resize(self) -> str:
        size = QSize(self.rng.randint(800, 2560), self.rng.randint(500, 1440))
        self.app.window.resize(size)
        return f"resize {size.width()}x{size.height()}"

    def drag(self) -> str:
        groups = self.app.window.editor.groups()
        source, target, zone = self.rng.choice(groups), self.rng.choice(groups), self.rng.choice(ZONES)
        if not source.tabs or (zone != "center" and len(groups) >= MAX_GROUPS):
            return "no drag"
        tab = self.rng.choice(source.tabs)
        source.bar.dragged.emit(tab)
        target.dropped.emit(zone, self.rng.randint(-1, len(target.tabs)))
        source.bar.dragged.emit(None)
        return f"drag {tab.page_id} to {zone}"

    def show_part(self) -> str:
        name = self.rng.choice([*ACTIVITIES, *PANELS])
        show = self.app.window.show_activity if name in ACTIVITIES else self.app.window.show_panel
        show(name)
        return f"show {name}"

    def change_theme(self) -> str:
        name = self.rng.choice(list(BUILT_IN_THEMES))
        self.app.window.settings.set("theme.name", name)
        return name

    def leaked(self) -> list[str]:
        """Pages whose tab is closed and that are still there."""
        self.app.window.commands.run("view.zoomReset")
        self.app.window.editor.close_all()
        for _ in range(2):
            process_events()
            gc.collect()
        pages = [page for ref in self.page_refs if (page := ref()) is not None]
        return [f"{page.page_id if isValid(page) else f'wrapper of {type(page).__name__}'}" for page in pages]


def run_monkey(app: App, every: EveryView, seed: int, count: int) -> None:
    monkey = Monkey(app, every, seed)
    try:
        for _ in range(count):
            monkey.act()
    finally:
        print(f"seed {seed}, {len(monkey.actions)} actions:", *monkey.actions, sep="\n  ")
    assert not monkey.cut_texts, f"seed {seed}:\n" + "\n".join(
        f"{what}: {where}" for what, where in monkey.cut_texts.items()
    )
    assert not (left := monkey.leaked()), f"seed {seed}: {left}"
    assert len(monkey.page_refs) > count // 20


@pytest.mark.parametrize("seed", [11])
def test_thirty_random_actions(app: App, every: EveryView, seed: int) -> None:
    run_monkey(app, every, seed, 30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_three_hundred_random_actions(app: App, every: EveryView, seed: int) -> None:
    run_monkey(app, every, seed, 300)
