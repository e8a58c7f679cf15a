from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QApplication, QListWidget, QMenu, QToolButton
from pytestqt.qtbot import QtBot

from rankdeck_app.commands.table import Command
from rankdeck_app.shell.editor_area import EditorArea
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.tab import UnavailablePage
from rankdeck_app.shell.tab_group import Zone, zone_at, zone_rect
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.theme import BUILT_IN_THEMES
from rankdeck_app.widgets.painting import record_painted_text
from tests.app.shell.pages import NotePage

CTRL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier


@pytest.fixture
def editor(window: MainWindow) -> EditorArea:
    window.editor.register_page_kind("note", NotePage)
    return window.editor


def titles(editor: EditorArea) -> list[list[str]]:
    return [[tab.display_title() for tab in group.tabs] for group in editor.groups()]


def open_note(editor: EditorArea, name: str) -> NotePage:
    page = editor.open(f"note:{name}")
    assert isinstance(page, NotePage)
    return page


def test_opening_a_page_twice_focuses_it(editor: EditorArea) -> None:
    first, second = open_note(editor, "a"), open_note(editor, "b")
    assert editor.active_page() is second
    assert open_note(editor, "a") is first
    assert editor.active_page() is first
    assert titles(editor) == [["A", "B"]]


def test_a_page_of_no_registered_kind_needs_a_factory(editor: EditorArea) -> None:
    page = editor.open("free:x", lambda page_id: Page(page_id, title="Free"))
    assert editor.page("free:x") is page
    with pytest.raises(AssertionError, match="no factory"):
        editor.open("free:y")


def test_the_context_knows_the_active_page(window: MainWindow, editor: EditorArea) -> None:
    assert window.context.get("pageKind.note") is True
    assert not window.commands.is_enabled("editor.close")
    active_pages: list[object] = []
    editor.active_page_changed.connect(active_pages.append)
    page = open_note(editor, "a")
    assert window.context.get("activePage") == "note"
    assert window.commands.is_enabled("editor.close")
    assert window.windowTitle() == "A — Rankdeck"
    editor.close_page()
    assert active_pages == [page, None]
    assert window.windowTitle() == "Rankdeck"


def test_a_closed_tab_is_reopened_with_its_state(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    open_note(editor, "a")
    open_note(editor, "b").text_field.setText("kept")
    qtbot.keyClick(window, Qt.Key.Key_W, CTRL)
    assert titles(editor) == [["A"]]
    qtbot.keyClick(window, Qt.Key.Key_W, CTRL)
    assert titles(editor) == [[]]
    qtbot.keyClick(window, Qt.Key.Key_T, CTRL | SHIFT)
    qtbot.keyClick(window, Qt.Key.Key_T, CTRL | SHIFT)
    assert sorted(titles(editor)[0]) == ["A", "B"]
    assert open_note(editor, "b").text_field.text() == "kept"


def test_ctrl_backslash_shows_the_page_twice(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    open_note(editor, "a").text_field.setText("both")
    qtbot.keyClick(window, Qt.Key.Key_Backslash, CTRL)
    assert titles(editor) == [["A"], ["A"]]
    pages = editor.pages()
    assert pages[0] is not pages[1]
    assert editor.active_page() is pages[1]
    assert isinstance(pages[1], NotePage) and pages[1].text_field.text() == "both"
    qtbot.keyClick(window, Qt.Key.Key_W, CTRL)
    assert titles(editor) == [["A"]]


def test_splitting_a_single_copy_page_moves_it(editor: EditorArea) -> None:
    open_note(editor, "a")
    page = open_note(editor, "b")
    page.can_split = False
    editor.split("bottom")
    assert titles(editor) == [["A"], ["B"]]
    assert editor.page("note:b") is page


def test_pages_open_in_the_focused_group(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    open_note(editor, "a")
    editor.split("right")
    qtbot.keyClick(window, Qt.Key.Key_1, CTRL)
    open_note(editor, "left")
    qtbot.keyClick(window, Qt.Key.Key_2, CTRL)
    open_note(editor, "right")
    assert titles(editor) == [["A", "Left"], ["A", "Right"]]
    left = editor.page("note:left")
    assert isinstance(left, NotePage)
    left.text_field.setFocus()
    assert editor.active_group is editor.groups()[0]


def test_pinned_tabs_come_first_and_survive_closing_the_others(editor: EditorArea) -> None:
    for name in "abc":
        open_note(editor, name)
    editor.toggle_pin()
    assert titles(editor) == [["C", "A", "B"]]
    open_note(editor, "b")
    editor.close_tabs("others")
    assert titles(editor) == [["C", "B"]]
    open_note(editor, "c")
    editor.toggle_pin()
    editor.close_tabs("all")
    assert titles(editor) == [[]]


def test_tabs_are_cycled_and_moved_by_keys(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    for name in "abc":
        open_note(editor, name)
    qtbot.keyClick(window, Qt.Key.Key_PageDown, CTRL)
    assert window.context.get("activePageId") == "note:a"
    qtbot.keyClick(window, Qt.Key.Key_PageDown, CTRL | SHIFT)
    assert titles(editor) == [["B", "A", "C"]]
    qtbot.keyClick(window, Qt.Key.Key_PageUp, CTRL)
    assert window.context.get("activePageId") == "note:b"


def test_buttons_and_breadcrumbs_follow_the_active_page(qtbot: QtBot, editor: EditorArea) -> None:
    page = open_note(editor, "a")
    buttons = [b for b in editor.active_group.findChildren(QToolButton) if b.toolTip() == "Save Note"]
    qtbot.mouseClick(buttons[0], Qt.MouseButton.LeftButton)
    assert page.run_actions == ["save"]
    page.set_title("New name")
    assert titles(editor) == [["New name"]]
    assert editor.active_group._breadcrumbs.accessibleName() == "notes › New name"


def test_breadcrumbs_run_the_command_of_the_page(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    calls: list[str] = []
    window.commands.register(Command("notes.show", "Notes: Show", lambda: calls.append("notes")))
    open_note(editor, "a").breadcrumb_command = "notes.show"
    editor.active_group._on_title_changed()
    crumbs = editor.active_group._breadcrumbs
    for x in (18, crumbs.link_width + 30):
        qtbot.mouseMove(crumbs, QPoint(x, 12))
        assert (crumbs.cursor().shape() == Qt.CursorShape.PointingHandCursor) == (x == 18)
        qtbot.mouseClick(crumbs, Qt.MouseButton.LeftButton, pos=QPoint(x, 12))
    assert calls == ["notes"], "the last one is the page itself"


def test_shift_f10_opens_the_context_menu_of_the_focused_widget(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    page = open_note(editor, "a")
    rows = QListWidget(page)
    rows.addItems(["one", "two"])
    rows.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
    requested_rows: list[str] = []
    rows.customContextMenuRequested.connect(lambda at: requested_rows.append(rows.itemAt(at).text()))
    rows.show()
    rows.setFocus()
    rows.setCurrentRow(1)
    qtbot.keyClick(rows, Qt.Key.Key_F10, SHIFT)
    assert requested_rows == ["two"] and QApplication.activePopupWidget() is None
    bar = editor.active_group.bar
    bar.setFocus()
    qtbot.keyClick(bar, Qt.Key.Key_F10, SHIFT)
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu) and menu.actions()[0].text().startswith("Close")
    menu.close()


def test_the_close_button_and_a_middle_click_close_a_tab(qtbot: QtBot, editor: EditorArea) -> None:
    for name in "abc":
        open_note(editor, name)
    bar = editor.active_group.bar
    qtbot.mouseClick(bar, Qt.MouseButton.LeftButton, pos=bar._close_rect(2).center())
    assert titles(editor) == [["A", "B"]]
    qtbot.mouseClick(bar, Qt.MouseButton.MiddleButton, pos=bar.tabRect(0).center())
    assert titles(editor) == [["B"]]


@pytest.mark.parametrize(
    ("x", "y", "zone"),
    [
        (50, 50, "center"),
        (5, 50, "left"),
        (95, 50, "right"),
        (50, 5, "top"),
        (50, 95, "bottom"),
        (20, 10, "top"),
    ],
)
def test_the_drop_zone_is_the_nearest_edge(x: int, y: int, zone: Zone) -> None:
    from PySide6.QtCore import QRect, QSize

    assert zone_at(QPoint(x, y), QSize(100, 100)) == zone
    rect = zone_rect(zone, QRect(0, 0, 100, 100))
    assert rect.width() * rect.height() == (10_000 if zone == "center" else 5_000)


def drop_tab(editor: EditorArea, page_id: str, group: int, at: QPoint) -> None:
    """What the mouse does: the tab is dragged from its bar and let go over a group."""
    from PySide6.QtCore import QMimeData
    from PySide6.QtGui import QDragEnterEvent, QDragMoveEvent

    from rankdeck_app.shell.tab_bar import TAB_MIME_TYPE

    source = next(g for g in editor.groups() if any(tab.page_id == page_id for tab in g.tabs))
    index = next(i for i, tab in enumerate(source.tabs) if tab.page_id == page_id)
    target = editor.groups()[group]
    data = QMimeData()
    data.setData(TAB_MIME_TYPE, page_id.encode())
    move, left = Qt.DropAction.MoveAction, Qt.MouseButton.LeftButton
    none = Qt.KeyboardModifier.NoModifier
    source.bar.dragged.emit(source.tabs[index])
    QApplication.sendEvent(target, QDragEnterEvent(at, move, data, left, none))
    QApplication.sendEvent(target, QDragMoveEvent(at, move, data, left, none))
    QApplication.sendEvent(target, QDropEvent(QPointF(at), move, data, left, none))
    source.bar.dragged.emit(None)
    QApplication.processEvents()


@pytest.mark.parametrize(
    ("drop_point", "expected"),
    [
        ((0.95, 0.5), [["A"], ["B"]]),
        ((0.05, 0.5), [["B"], ["A"]]),
        ((0.5, 0.95), [["A"], ["B"]]),
        ((0.5, 0.2), [["B"], ["A"]]),
        ((0.5, 0.6), [["A", "B"]]),
    ],
)
def test_a_tab_dropped_at_an_edge_splits_the_group(
    editor: EditorArea, drop_point: tuple[float, float], expected: list[list[str]]
) -> None:
    open_note(editor, "a")
    page = open_note(editor, "b")
    group = editor.active_group
    drop_tab(
        editor, "note:b", 0, QPoint(int(group.width() * drop_point[0]), int(group.height() * drop_point[1]))
    )
    assert titles(editor) == expected
    assert editor.page("note:b") is page and editor.active_page() is page
    assert not any(g._overlay.isVisible() for g in editor.groups())


def test_a_tab_dropped_on_another_tab_bar_moves_there(
    editor: EditorArea,
) -> None:
    for name in "ab":
        open_note(editor, name)
    open_note(editor, "c")
    group = editor.active_group
    drop_tab(editor, "note:c", 0, QPoint(group.width() - 5, group.height() // 2))
    assert titles(editor) == [["A", "B"], ["C"]]
    middle_of_b = editor.groups()[0].bar.tabRect(1)
    drop_tab(editor, "note:c", 0, QPoint(middle_of_b.x() + 5, 10))
    assert titles(editor) == [["A", "C", "B"]]


@pytest.mark.parametrize("on_the_strip", [False, True])
def test_a_dropped_tab_replaces_the_same_page_of_the_group(editor: EditorArea, on_the_strip: bool) -> None:
    open_note(editor, "a")
    open_note(editor, "b")
    editor.split("right")
    open_note(editor, "c")
    moved = next(page for page in editor.groups()[1].tabs if page.page_id == "note:b").page
    group = editor.groups()[0]
    editor.focus_group(1)
    at = QPoint(2, 10) if on_the_strip else QPoint(group.width() // 2, int(group.height() * 0.6))
    editor._set_dragged(next(tab for tab in editor.groups()[1].tabs if tab.page_id == "note:b"))
    editor._on_dropped(group, "center", group._drop_target(at)[1])
    QApplication.processEvents()
    assert titles(editor) == [["B", "A"] if on_the_strip else ["A", "B"], ["C"]]
    assert editor.active_page() is moved and len(editor.pages()) == 3


def test_a_tab_is_reordered_on_its_own_tab_bar(editor: EditorArea) -> None:
    for name in "abc":
        open_note(editor, name)
    bar = editor.active_group.bar
    drop_tab(editor, "note:a", 0, QPoint(bar.tabRect(2).right() - 2, 10))
    assert titles(editor) == [["B", "C", "A"]]
    drop_tab(editor, "note:a", 0, QPoint(2, 10))
    assert titles(editor) == [["A", "B", "C"]]


def test_dropping_the_only_tab_at_an_edge_changes_nothing(editor: EditorArea) -> None:
    open_note(editor, "a")
    drop_tab(editor, "note:a", 0, QPoint(editor.width() - 5, editor.height() // 2))
    assert titles(editor) == [["A"]]


def test_splitting_and_closing_does_not_grow_the_tree(editor: EditorArea) -> None:
    open_note(editor, "a")
    for zone in ("right", "bottom", "right", "top", "left") * 2:
        editor.split(zone)  # type: ignore[arg-type]
    assert len(editor.groups()) == 11
    while len(editor.groups()) > 1:
        editor.close_page()
    assert editor._tree.root.count() == 1
    assert editor._tree.root.widget(0) is editor.groups()[0]


def test_the_layout_is_restored_from_its_state(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    open_note(editor, "a").text_field.setText("text of a")
    editor.toggle_pin()
    open_note(editor, "b")
    editor.split("right")
    open_note(editor, "c")
    editor.split("bottom")
    state = json.loads(json.dumps(editor.save_state()))
    fresh = EditorArea(window.services)
    qtbot.addWidget(fresh)
    fresh._page_kinds = editor._page_kinds
    fresh.restore_state(state)
    fresh.resize(900, 600)
    assert titles(fresh) == [["A", "B"], ["B", "C"], ["C"]]
    assert fresh.groups().index(fresh.active_group) == 2
    assert fresh.groups()[0].tabs[0].pinned
    assert fresh.groups()[0].tabs[0].page is None, "a page is built when it is first shown"
    restored = open_note(fresh, "a")
    assert restored.text_field.text() == "text of a"
    assert fresh.save_state()["tree"]["children"][1]["orientation"] == "vertical"


def test_the_title_of_a_page_kind_replaces_a_saved_title(window: MainWindow, editor: EditorArea) -> None:
    editor.register_page_kind("same", NotePage, "Same")
    saved = [{"id": "same:", "title": "Otherwise"}, {"id": "note:b", "title": "Bee"}]
    assert [tab.display_title() for tab in editor._page_kinds.restore_tabs(saved)] == ["Same", "Bee"]


def test_unknown_page_kinds_and_invalid_states_are_ignored(window: MainWindow, editor: EditorArea) -> None:
    group = {"tabs": [{"id": "other:x"}, {"id": "note:a"}], "current": "other:x"}
    tree = {"orientation": "horizontal", "sizes": [1, 1], "children": [group, {"tabs": [{"id": "other:y"}]}]}
    editor.restore_state({"tree": tree, "active": 7, "closed": ["nonsense"]})
    assert titles(editor) == [["note:a"]] or titles(editor) == [["A"]]
    assert editor.active_page() is not None


def test_an_unavailable_page_shows_its_reason(editor: EditorArea) -> None:
    page = editor.open("note:gone-run")
    assert isinstance(page, UnavailablePage)
    assert page._label.text() == "note:gone-run is gone. Open another one."


# Previews


def open_preview(editor: EditorArea, name: str, **how: Any) -> None:
    editor.open(f"note:{name}", preview=True, **how)


def previews(editor: EditorArea) -> list[str]:
    return [tab.display_title() for group in editor.groups() for tab in group.tabs if tab.preview]


def test_a_preview_replaces_the_previous_preview(editor: EditorArea) -> None:
    open_note(editor, "kept")
    open_preview(editor, "a")
    open_note(editor, "right")
    first = editor.page("note:a")
    assert titles(editor) == [["Kept", "A", "Right"]] and previews(editor) == ["A"]
    open_preview(editor, "b")
    assert titles(editor) == [["Kept", "B", "Right"]] and previews(editor) == ["B"]
    assert editor.active_page() is editor.page("note:b") and first is not None
    open_preview(editor, "kept")
    assert previews(editor) == ["B"] and editor.active_page() is editor.page("note:kept"), (
        "it is open already"
    )


def test_every_way_to_keep_a_preview_works(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    def by_a_double_click() -> None:
        bar = editor.active_group.bar
        qtbot.mouseDClick(bar, Qt.MouseButton.LeftButton, pos=bar.tabRect(bar.currentIndex()).center())

    for keep_preview in (
        lambda: open_note(editor, "a"),
        by_a_double_click,
        lambda: window.commands.run("editor.keep"),
        lambda: window.commands.run("editor.togglePin"),
    ):
        open_preview(editor, "a")
        assert window.commands.is_enabled("editor.keep")
        keep_preview()
        assert previews(editor) == [] and not window.commands.is_enabled("editor.keep")
        open_preview(editor, "b")
        assert sorted(titles(editor)[0]) == ["A", "B"]
        for _ in range(2):
            editor.close_page()


def test_a_preview_beside_a_page_keeps_the_focus(editor: EditorArea) -> None:
    page = open_note(editor, "list")
    for name in ("a", "b"):
        open_preview(editor, name, beside=page, focus=False)
        assert titles(editor) == [["List"], [name.upper()]]
        assert editor.active_page() is page
    open_preview(editor, "b", beside=page)
    assert editor.active_page() is editor.page("note:b") and len(editor.groups()) == 2


def test_a_page_of_the_same_group_can_open_beside(
    editor: EditorArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_note(editor, "a")
    open_note(editor, "b")
    page = open_note(editor, "list")
    open_preview(editor, "a", beside=page, focus=False)
    assert titles(editor) == [["A", "B", "List"], ["A"]] and previews(editor) == ["A"]
    assert editor.active_page() is page and page.isVisible() and page.text_field.hasFocus()
    monkeypatch.setattr(NotePage, "can_split", False)
    open_preview(editor, "b", beside=page, focus=False)
    assert titles(editor) == [["A", "List"], ["A", "B"]]
    assert page.isVisible() and page.text_field.hasFocus(), "what cannot be shown twice is moved"


def test_a_preview_is_restored_as_a_preview(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    open_preview(editor, "a")
    fresh = EditorArea(window.services)
    qtbot.addWidget(fresh)
    fresh.register_page_kind("note", NotePage)
    fresh.restore_state(json.loads(json.dumps(editor.save_state())))
    assert previews(fresh) == ["A"]


@pytest.mark.parametrize("theme", BUILT_IN_THEMES)
def test_tab_scroll_arrows_use_the_icon_colours(window: MainWindow, editor: EditorArea, theme: str) -> None:
    window.settings.set("theme.name", theme)
    for at in range(40):
        open_note(editor, f"page {at}")
    left, right = editor.active_group.bar.findChildren(QToolButton)
    assert left.isVisible() and left.isEnabled()
    right.setEnabled(False)
    for arrow, ink in ((left, "icon.foreground"), (right, "disabledForeground")):
        image = arrow.grab().toImage()
        room = itertools.product(range(image.width()), range(image.height() - 1))
        ground = window.theme.color("editorGroupHeader.tabsBackground").lightness()
        drawn = max(abs(image.pixelColor(x, y).lightness() - ground) for x, y in room)
        expected = abs(window.theme.color(ink).lightness() - ground)
        assert 0.7 * expected < drawn <= expected, ink


def test_long_tab_titles_keep_their_distinguishing_part(editor: EditorArea) -> None:
    names = [f"mlp 1024x1024 · single · seed 5 · batch 32 · lr 0.00{number}" for number in (1, 3)]
    for name in names:
        open_note(editor, name)
    painted: list[str] = []
    with record_painted_text(painted.append):
        editor.active_group.bar.grab()
    elided = [text for text in painted if "Lr 0.00" in text]
    assert [text[-5:] for text in elided] == ["0.001", "0.003"] and all(text[0] == "…" for text in elided)
