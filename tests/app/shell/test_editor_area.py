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
from rankdeck_app.theme import BUILT_IN
from rankdeck_app.widgets.painting import read_along
from tests.app.shell.pages import NotePage

CTRL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier


@pytest.fixture
def editor(window: MainWindow) -> EditorArea:
    window.editor.register_page_kind("note", NotePage)
    return window.editor


def titles(editor: EditorArea) -> list[list[str]]:
    return [[tab.shown_title() for tab in group.tabs] for group in editor.groups()]


def note(editor: EditorArea, name: str) -> NotePage:
    page = editor.open(f"note:{name}")
    assert isinstance(page, NotePage)
    return page


def test_opening_twice_focuses_the_first(editor: EditorArea) -> None:
    first, second = note(editor, "a"), note(editor, "b")
    assert editor.active_page() is second
    assert note(editor, "a") is first
    assert editor.active_page() is first
    assert titles(editor) == [["A", "B"]]


def test_a_page_of_no_registered_kind_needs_a_factory(editor: EditorArea) -> None:
    page = editor.open("free:x", lambda page_id: Page(page_id, title="Free"))
    assert editor.page("free:x") is page
    with pytest.raises(AssertionError, match="no factory"):
        editor.open("free:y")


def test_the_context_knows_the_active_page(window: MainWindow, editor: EditorArea) -> None:
    assert window.context.get("pageKind.note") is True
    assert not window.commands.enabled("editor.close")
    heard: list[object] = []
    editor.active_page_changed.connect(heard.append)
    page = note(editor, "a")
    assert window.context.get("activePage") == "note"
    assert window.commands.enabled("editor.close")
    assert window.windowTitle() == "A — Rankdeck"
    editor.close_page()
    assert heard == [page, None]
    assert window.windowTitle() == "Rankdeck"


def test_ctrl_w_closes_and_ctrl_shift_t_brings_it_back_with_its_state(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    note(editor, "a")
    note(editor, "b").field.setText("kept")
    qtbot.keyClick(window, Qt.Key.Key_W, CTRL)
    assert titles(editor) == [["A"]]
    qtbot.keyClick(window, Qt.Key.Key_W, CTRL)
    assert titles(editor) == [[]]
    qtbot.keyClick(window, Qt.Key.Key_T, CTRL | SHIFT)
    qtbot.keyClick(window, Qt.Key.Key_T, CTRL | SHIFT)
    assert sorted(titles(editor)[0]) == ["A", "B"]
    assert note(editor, "b").field.text() == "kept"


def test_ctrl_backslash_shows_the_page_twice(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    note(editor, "a").field.setText("both")
    qtbot.keyClick(window, Qt.Key.Key_Backslash, CTRL)
    assert titles(editor) == [["A"], ["A"]]
    pages = editor.pages()
    assert pages[0] is not pages[1]
    assert editor.active_page() is pages[1]
    assert isinstance(pages[1], NotePage) and pages[1].field.text() == "both"
    qtbot.keyClick(window, Qt.Key.Key_W, CTRL)
    assert titles(editor) == [["A"]]


def test_a_page_that_cannot_be_doubled_is_moved(editor: EditorArea) -> None:
    note(editor, "a")
    page = note(editor, "b")
    page.can_split = False
    editor.split("bottom")
    assert titles(editor) == [["A"], ["B"]]
    assert editor.page("note:b") is page


def test_groups_are_reached_by_number_and_focus_decides_where_pages_open(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    note(editor, "a")
    editor.split("right")
    qtbot.keyClick(window, Qt.Key.Key_1, CTRL)
    note(editor, "left")
    qtbot.keyClick(window, Qt.Key.Key_2, CTRL)
    note(editor, "right")
    assert titles(editor) == [["A", "Left"], ["A", "Right"]]
    left = editor.page("note:left")
    assert isinstance(left, NotePage)
    left.field.setFocus()
    assert editor.active_group is editor.groups()[0]


def test_pinned_tabs_come_first_and_survive_closing_the_others(editor: EditorArea) -> None:
    for name in "abc":
        note(editor, name)
    editor.toggle_pin()
    assert titles(editor) == [["C", "A", "B"]]
    note(editor, "b")
    editor.close_tabs("others")
    assert titles(editor) == [["C", "B"]]
    note(editor, "c")
    editor.toggle_pin()
    editor.close_tabs("all")
    assert titles(editor) == [[]]


def test_tabs_are_cycled_and_moved_by_keys(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    for name in "abc":
        note(editor, name)
    qtbot.keyClick(window, Qt.Key.Key_PageDown, CTRL)
    assert window.context.get("activePageId") == "note:a"
    qtbot.keyClick(window, Qt.Key.Key_PageDown, CTRL | SHIFT)
    assert titles(editor) == [["B", "A", "C"]]
    qtbot.keyClick(window, Qt.Key.Key_PageUp, CTRL)
    assert window.context.get("activePageId") == "note:b"


def test_the_buttons_and_path_are_those_of_the_page_on_show(qtbot: QtBot, editor: EditorArea) -> None:
    page = note(editor, "a")
    buttons = [b for b in editor.active_group.findChildren(QToolButton) if b.toolTip() == "Save Note"]
    qtbot.mouseClick(buttons[0], Qt.MouseButton.LeftButton)
    assert page.pressed == ["save"]
    page.set_title("New name")
    assert titles(editor) == [["New name"]]
    assert editor.active_group._breadcrumbs.accessibleName() == "notes › New name"


def test_the_path_of_a_page_leads_to_where_it_is_listed(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    shown: list[str] = []
    window.commands.register(Command("notes.show", "Notes: Show", lambda: shown.append("notes")))
    note(editor, "a").path_command = "notes.show"
    editor.active_group._retitle()
    crumbs = editor.active_group._breadcrumbs
    for x in (18, crumbs.link_width + 30):
        qtbot.mouseMove(crumbs, QPoint(x, 12))
        assert (crumbs.cursor().shape() == Qt.CursorShape.PointingHandCursor) == (x == 18)
        qtbot.mouseClick(crumbs, Qt.MouseButton.LeftButton, pos=QPoint(x, 12))
    assert shown == ["notes"], "the last one is the page itself"


def test_shift_f10_opens_the_menu_of_what_has_the_keyboard(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    page = note(editor, "a")
    rows = QListWidget(page)
    rows.addItems(["one", "two"])
    rows.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
    asked: list[str] = []
    rows.customContextMenuRequested.connect(lambda at: asked.append(rows.itemAt(at).text()))
    rows.show()
    rows.setFocus()
    rows.setCurrentRow(1)
    qtbot.keyClick(rows, Qt.Key.Key_F10, SHIFT)
    assert asked == ["two"] and QApplication.activePopupWidget() is None
    bar = editor.active_group.bar
    bar.setFocus()
    qtbot.keyClick(bar, Qt.Key.Key_F10, SHIFT)
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu) and menu.actions()[0].text().startswith("Close")
    menu.close()


def test_a_click_on_the_cross_or_with_the_middle_button_closes(qtbot: QtBot, editor: EditorArea) -> None:
    for name in "abc":
        note(editor, name)
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
def test_the_nearest_edge_s_quarter_is_a_zone(x: int, y: int, zone: Zone) -> None:
    from PySide6.QtCore import QRect, QSize

    assert zone_at(QPoint(x, y), QSize(100, 100)) == zone
    rect = zone_rect(zone, QRect(0, 0, 100, 100))
    assert rect.width() * rect.height() == (10_000 if zone == "center" else 5_000)


def drop(editor: EditorArea, page_id: str, group: int, at: QPoint) -> None:
    """What the mouse does: the tab is dragged from its bar and let go over a group."""
    from PySide6.QtCore import QMimeData
    from PySide6.QtGui import QDragEnterEvent, QDragMoveEvent

    from rankdeck_app.shell.tab_bar import MIME

    source = next(g for g in editor.groups() if any(tab.page_id == page_id for tab in g.tabs))
    index = next(i for i, tab in enumerate(source.tabs) if tab.page_id == page_id)
    target = editor.groups()[group]
    data = QMimeData()
    data.setData(MIME, page_id.encode())
    move, left = Qt.DropAction.MoveAction, Qt.MouseButton.LeftButton
    none = Qt.KeyboardModifier.NoModifier
    source.bar.dragged.emit(source.tabs[index])
    QApplication.sendEvent(target, QDragEnterEvent(at, move, data, left, none))
    QApplication.sendEvent(target, QDragMoveEvent(at, move, data, left, none))
    QApplication.sendEvent(target, QDropEvent(QPointF(at), move, data, left, none))
    source.bar.dragged.emit(None)
    QApplication.processEvents()


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ((0.95, 0.5), [["A"], ["B"]]),
        ((0.05, 0.5), [["B"], ["A"]]),
        ((0.5, 0.95), [["A"], ["B"]]),
        ((0.5, 0.2), [["B"], ["A"]]),
        ((0.5, 0.6), [["A", "B"]]),
    ],
)
def test_a_dragged_tab_splits_on_the_side_where_it_is_dropped(
    editor: EditorArea, place: tuple[float, float], expected: list[list[str]]
) -> None:
    note(editor, "a")
    page = note(editor, "b")
    group = editor.active_group
    drop(editor, "note:b", 0, QPoint(int(group.width() * place[0]), int(group.height() * place[1])))
    assert titles(editor) == expected
    assert editor.page("note:b") is page and editor.active_page() is page
    assert not any(g._overlay.isVisible() for g in editor.groups())


def test_a_tab_dropped_on_another_strip_is_inserted_there_and_its_empty_group_goes(
    editor: EditorArea,
) -> None:
    for name in "ab":
        note(editor, name)
    note(editor, "c")
    group = editor.active_group
    drop(editor, "note:c", 0, QPoint(group.width() - 5, group.height() // 2))
    assert titles(editor) == [["A", "B"], ["C"]]
    middle_of_b = editor.groups()[0].bar.tabRect(1)
    drop(editor, "note:c", 0, QPoint(middle_of_b.x() + 5, 10))
    assert titles(editor) == [["A", "C", "B"]]


@pytest.mark.parametrize("on_the_strip", [False, True])
def test_a_tab_dropped_into_a_group_that_has_its_page_takes_that_one_s_place(
    editor: EditorArea, on_the_strip: bool
) -> None:
    note(editor, "a")
    note(editor, "b")
    editor.split("right")
    note(editor, "c")
    moved = next(page for page in editor.groups()[1].tabs if page.page_id == "note:b").page
    group = editor.groups()[0]
    editor.focus_group(1)
    at = QPoint(2, 10) if on_the_strip else QPoint(group.width() // 2, int(group.height() * 0.6))
    editor._set_dragged(next(tab for tab in editor.groups()[1].tabs if tab.page_id == "note:b"))
    editor._drop(group, "center", group._drop_place(at)[1])
    QApplication.processEvents()
    assert titles(editor) == [["B", "A"] if on_the_strip else ["A", "B"], ["C"]]
    assert editor.active_page() is moved and len(editor.pages()) == 3


def test_a_tab_is_reordered_on_its_own_strip(editor: EditorArea) -> None:
    for name in "abc":
        note(editor, name)
    bar = editor.active_group.bar
    drop(editor, "note:a", 0, QPoint(bar.tabRect(2).right() - 2, 10))
    assert titles(editor) == [["B", "C", "A"]]
    drop(editor, "note:a", 0, QPoint(2, 10))
    assert titles(editor) == [["A", "B", "C"]]


def test_a_lone_tab_dropped_beside_itself_stays(editor: EditorArea) -> None:
    note(editor, "a")
    drop(editor, "note:a", 0, QPoint(editor.width() - 5, editor.height() // 2))
    assert titles(editor) == [["A"]]


def test_opening_and_closing_splits_never_grows_the_tree(editor: EditorArea) -> None:
    note(editor, "a")
    for zone in ("right", "bottom", "right", "top", "left") * 2:
        editor.split(zone)  # type: ignore[arg-type]
    assert len(editor.groups()) == 11
    while len(editor.groups()) > 1:
        editor.close_page()
    assert editor._tree.root.count() == 1
    assert editor._tree.root.widget(0) is editor.groups()[0]


def test_the_layout_comes_back_from_its_state(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    note(editor, "a").field.setText("text of a")
    editor.toggle_pin()
    note(editor, "b")
    editor.split("right")
    note(editor, "c")
    editor.split("bottom")
    state = json.loads(json.dumps(editor.save_state()))
    fresh = EditorArea(window.services)
    qtbot.addWidget(fresh)
    fresh._kinds = editor._kinds
    fresh.restore_state(state)
    fresh.resize(900, 600)
    assert titles(fresh) == [["A", "B"], ["B", "C"], ["C"]]
    assert fresh.groups().index(fresh.active_group) == 2
    assert fresh.groups()[0].tabs[0].pinned
    assert fresh.groups()[0].tabs[0].page is None, "a page is built when it is first shown"
    restored = note(fresh, "a")
    assert restored.field.text() == "text of a"
    assert fresh.save_state()["tree"]["children"][1]["orientation"] == "vertical"


def test_a_kind_with_a_title_says_it_and_not_what_was_saved_in_another_language(
    window: MainWindow, editor: EditorArea
) -> None:
    editor.register_page_kind("same", NotePage, "Same")
    saved = [{"id": "same:", "title": "Otherwise"}, {"id": "note:b", "title": "Bee"}]
    assert [tab.shown_title() for tab in editor._kinds.tabs_from(saved)] == ["Same", "Bee"]


def test_tabs_of_unknown_kinds_and_broken_states_are_left_out(window: MainWindow, editor: EditorArea) -> None:
    group = {"tabs": [{"id": "other:x"}, {"id": "note:a"}], "current": "other:x"}
    tree = {"orientation": "horizontal", "sizes": [1, 1], "children": [group, {"tabs": [{"id": "other:y"}]}]}
    editor.restore_state({"tree": tree, "active": 7, "closed": ["nonsense"]})
    assert titles(editor) == [["note:a"]] or titles(editor) == [["A"]]
    assert editor.active_page() is not None


def test_a_page_that_is_gone_says_so_in_its_tab(editor: EditorArea) -> None:
    page = editor.open("note:gone-run")
    assert isinstance(page, UnavailablePage)
    assert page._label.text() == "note:gone-run is gone. Open another one."


# Previews


def looked_at(editor: EditorArea, name: str, **how: Any) -> None:
    editor.open(f"note:{name}", preview=True, **how)


def previews(editor: EditorArea) -> list[str]:
    return [tab.shown_title() for group in editor.groups() for tab in group.tabs if tab.preview]


def test_a_preview_takes_the_place_of_the_one_before_it(editor: EditorArea) -> None:
    note(editor, "kept")
    looked_at(editor, "a")
    note(editor, "right")
    first = editor.page("note:a")
    assert titles(editor) == [["Kept", "A", "Right"]] and previews(editor) == ["A"]
    looked_at(editor, "b")
    assert titles(editor) == [["Kept", "B", "Right"]] and previews(editor) == ["B"]
    assert editor.active_page() is editor.page("note:b") and first is not None
    looked_at(editor, "kept")
    assert previews(editor) == ["B"] and editor.active_page() is editor.page("note:kept"), (
        "it is open already"
    )


def test_a_preview_is_kept_by_opening_a_double_click_a_key_a_pin_or_a_move(
    qtbot: QtBot, window: MainWindow, editor: EditorArea
) -> None:
    def by_a_double_click() -> None:
        bar = editor.active_group.bar
        qtbot.mouseDClick(bar, Qt.MouseButton.LeftButton, pos=bar.tabRect(bar.currentIndex()).center())

    for keep in (
        lambda: note(editor, "a"),
        by_a_double_click,
        lambda: window.commands.run("editor.keep"),
        lambda: window.commands.run("editor.togglePin"),
    ):
        looked_at(editor, "a")
        assert window.commands.enabled("editor.keep")
        keep()
        assert previews(editor) == [] and not window.commands.enabled("editor.keep")
        looked_at(editor, "b")
        assert sorted(titles(editor)[0]) == ["A", "B"]
        for _ in range(2):
            editor.close_page()


def test_a_preview_beside_a_page_leaves_the_keyboard_there(editor: EditorArea) -> None:
    page = note(editor, "list")
    for name in ("a", "b"):
        looked_at(editor, name, beside=page, focus=False)
        assert titles(editor) == [["List"], [name.upper()]]
        assert editor.active_page() is page
    looked_at(editor, "b", beside=page)
    assert editor.active_page() is editor.page("note:b") and len(editor.groups()) == 2


def test_what_is_open_in_the_page_s_own_group_is_shown_beside_it_too(
    editor: EditorArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(editor, "a")
    note(editor, "b")
    page = note(editor, "list")
    looked_at(editor, "a", beside=page, focus=False)
    assert titles(editor) == [["A", "B", "List"], ["A"]] and previews(editor) == ["A"]
    assert editor.active_page() is page and page.isVisible() and page.field.hasFocus()
    monkeypatch.setattr(NotePage, "can_split", False)
    looked_at(editor, "b", beside=page, focus=False)
    assert titles(editor) == [["A", "List"], ["A", "B"]]
    assert page.isVisible() and page.field.hasFocus(), "what cannot be shown twice is moved"


def test_a_preview_comes_back_as_one(qtbot: QtBot, window: MainWindow, editor: EditorArea) -> None:
    looked_at(editor, "a")
    fresh = EditorArea(window.services)
    qtbot.addWidget(fresh)
    fresh.register_page_kind("note", NotePage)
    fresh.restore_state(json.loads(json.dumps(editor.save_state())))
    assert previews(fresh) == ["A"]


@pytest.mark.parametrize("theme", BUILT_IN)
def test_arrows_of_tabs_have_the_inks_of_icons(window: MainWindow, editor: EditorArea, theme: str) -> None:
    window.settings.set("theme.name", theme)
    for at in range(40):
        note(editor, f"page {at}")
    left, right = editor.active_group.bar.findChildren(QToolButton)
    assert left.isVisible() and left.isEnabled()
    right.setEnabled(False)
    for arrow, ink in ((left, "icon.foreground"), (right, "disabledForeground")):
        image = arrow.grab().toImage()
        room = itertools.product(range(image.width()), range(image.height() - 1))
        ground = window.theme.color("editorGroupHeader.tabsBackground").lightness()
        drawn = max(abs(image.pixelColor(x, y).lightness() - ground) for x, y in room)
        wanted = abs(window.theme.color(ink).lightness() - ground)
        assert 0.7 * wanted < drawn <= wanted, ink


def test_long_tabs_keep_what_tells_them_apart(editor: EditorArea) -> None:
    names = [f"mlp 1024x1024 · single · seed 5 · batch 32 · lr 0.00{number}" for number in (1, 3)]
    for name in names:
        note(editor, name)
    painted: list[str] = []
    with read_along(painted.append):
        editor.active_group.bar.grab()
    shown = [text for text in painted if "Lr 0.00" in text]
    assert [text[-5:] for text in shown] == ["0.001", "0.003"] and all(text[0] == "…" for text in shown)
