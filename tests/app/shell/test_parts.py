"""Title bar, activity bar, side bar, panel, status bar: what is registered is there, works, and is
reachable.
"""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QLineEdit, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from rankdeck_app.commands.table import Command
from rankdeck_app.language import pseudolocalize
from rankdeck_app.shell.panel import PanelTab
from rankdeck_app.shell.side_bar import Activity, SideBarView
from rankdeck_app.shell.window import MainWindow

CTRL = Qt.KeyboardModifier.ControlModifier


def add_activities(window: MainWindow) -> list[str]:
    """Two activities; the list notes which views were built."""
    built: list[str] = []

    def view(name: str) -> SideBarView:
        built.append(name)
        view = SideBarView(window.theme)
        view.add_section("First", QLineEdit())
        view.add_section("Second", QLineEdit())
        return view

    window.add_activity(Activity("runs", "Runs", "history", lambda: view("runs"), priority=1))
    window.add_activity(
        Activity("launch", "Run Configuration", "rocket", lambda: view("launch"), 2, ("Ctrl+Shift+D",))
    )
    window.start()
    return built


def menu_labels(window: MainWindow, name: str) -> list[str]:
    return [
        action.text().split("\t")[0]
        for action in window.title_bar.build_menu(name).actions()
        if action.text()
    ]


def test_menu_ids_are_the_same_in_every_language(made_up: None, window: MainWindow) -> None:
    assert window.title_bar._menus["File"].title() == pseudolocalize("File")
    assert window.keymap.keys_for("menu.file") == ("Alt+F",)
    assert window.commands["menu.file"].display_title == pseudolocalize("View: Open the File Menu")


def test_menus_list_the_enabled_commands_of_the_table(window: MainWindow) -> None:
    bar = window.title_bar
    assert "Run" not in bar._menus
    ran: list[str] = []
    window.commands.register(
        Command("run.launch", "Run: Launch", lambda: ran.append("x"), ("Ctrl+F5",), menu="Run/1"),
        Command("run.stop", "Run: Stop", lambda: None, when="alive", menu="Run/2"),
        Command("help.about", "Help: About", lambda: None, when="never", menu="Help/1"),
    )
    assert menu_labels(window, "Run") == ["Launch"]
    about = bar._menus["Help"].menuAction()
    assert about.isVisible() and not about.isEnabled()
    before = bar.menu_bar.actionGeometry(about)
    window.context.update({"alive": True, "never": True})
    assert about.isEnabled() and bar.menu_bar.actionGeometry(about) == before, "no menu moves another"
    assert menu_labels(window, "Run") == ["Launch", "Stop"]
    action = bar.build_menu("Run").actions()[0]
    assert action.text() == "Launch\tCtrl+F5"
    action.trigger()
    assert ran == ["x"]


def test_menu_order_is_the_usual_one(window: MainWindow) -> None:
    for name in ("Help", "Run", "Zebra"):
        window.commands.register(Command(f"x.{name}", f"X: {name}", lambda: None, menu=f"{name}/1"))
    assert [*window.title_bar._menus] == ["File", "Edit", "View", "Run", "Help", "Zebra"]


def test_a_checked_command_shows_its_state(window: MainWindow) -> None:
    add_activities(window)
    action = next(
        a for a in window.title_bar.build_menu("View").actions() if a.text().startswith("Toggle Side")
    )
    assert action.isCheckable() and action.isChecked()


def test_the_command_centre_fits_between_menus_and_toggles(window: MainWindow) -> None:
    add_activities(window)
    for width in (1440, 900, 800):
        window.resize(width, 600)
        window.title_bar._arrange()
        center = window.title_bar.command_center.geometry()
        assert center.left() >= window.title_bar.menu_bar.geometry().right()
        toggles = [b for b in window.title_bar._toggle_buttons if not b.isHidden()]
        assert all(center.right() < toggle.x() for toggle in toggles)
    window.resize(1440, 600)
    window.title_bar._arrange()
    assert window.title_bar.command_center.width() == 460


def test_unregistered_parts_are_hidden(window: MainWindow) -> None:
    window.start()
    assert not window.side_bar.isVisible() and not window.panel.isVisible()
    assert not window.commands.is_enabled("view.toggleSideBar")
    assert not window.commands.is_enabled("preferences.settings")
    assert window.activity_bar._buttons == {}


def test_activity_views_are_built_when_first_shown(qtbot: QtBot, window: MainWindow) -> None:
    built = add_activities(window)
    assert built == ["launch"] and window.side_bar.current_id == "launch"
    assert window.activity_bar.get_button("launch").is_active
    assert window.activity_bar.get_button("launch").toolTip() == "Run Configuration (Ctrl+Shift+D)"
    qtbot.mouseClick(window.activity_bar.get_button("runs"), Qt.MouseButton.LeftButton)
    assert built == ["launch", "runs"] and window.side_bar.current_id == "runs"
    qtbot.mouseClick(window.activity_bar.get_button("runs"), Qt.MouseButton.LeftButton)
    assert not window.side_bar.isVisible()
    qtbot.keyClick(window, Qt.Key.Key_D, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.side_bar.isVisible() and window.side_bar.current_id == "launch"


def test_ctrl_b_folds_the_side_bar(qtbot: QtBot, window: MainWindow) -> None:
    add_activities(window)
    qtbot.keyClick(window, Qt.Key.Key_B, CTRL)
    assert not window.side_bar.isVisible()
    qtbot.keyClick(window, Qt.Key.Key_B, CTRL)
    assert window.side_bar.isVisible()


def test_collapsed_sections_are_restored(qtbot: QtBot, window: MainWindow) -> None:
    add_activities(window)
    view = window.side_bar.get_view("launch")
    assert isinstance(view, SideBarView)
    first = view.sections[0]
    qtbot.mouseClick(first.header, Qt.MouseButton.LeftButton)
    assert not first.body.isVisible() and view.sections[1].body.isVisible()
    state = view.save_state()
    first.set_open(True)
    view.restore_state(state)
    assert not first.is_open


def test_a_footer_stays_below_the_sections(window: MainWindow) -> None:
    add_activities(window)
    view = window.side_bar.get_view("launch")
    assert isinstance(view, SideBarView)
    footer = QLabel("No estimate yet")
    view.set_footer(footer)
    QApplication.processEvents()
    assert footer.geometry().bottom() == view.rect().bottom()


def add_panel_tabs(window: MainWindow) -> list[str]:
    built: list[str] = []

    def body(name: str) -> QWidget:
        built.append(name)
        return QLabel(name)

    window.add_panel_tab(
        PanelTab("output", "Output", lambda: body("output"), lambda b: QLabel(f"tools of {b.text()}"), 1)
    )
    window.add_panel_tab(
        PanelTab("problems", "Problems", lambda: body("problems"), priority=2, keys=("Ctrl+Shift+M",))
    )
    window.start()
    return built


def test_panel_tabs_are_ordered_and_built_when_first_shown(qtbot: QtBot, window: MainWindow) -> None:
    built = add_panel_tabs(window)
    assert window.panel._order == ["problems", "output"] and built == ["problems"]
    window.show_panel("output")
    assert built == ["problems", "output"] and window.panel.current_id == "output"
    tools = window.panel._tools.currentWidget()
    assert isinstance(tools, QLabel) and tools.text() == "tools of output"
    qtbot.keyClick(window, Qt.Key.Key_M, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.panel.current_id == "problems"
    assert window.panel._tools.currentWidget() is window.panel._no_tools


def test_a_badge_widens_its_tab_and_is_accessible(window: MainWindow) -> None:
    add_panel_tabs(window)
    bar = window.panel._bar
    before = bar.tabRect(0).width()
    window.panel.set_badge("problems", 3, "error")
    assert bar.tabRect(0).width() > before
    assert bar.accessibleTabName(0) == "Problems, 3"
    window.panel.set_badge("problems", None)
    assert bar.tabRect(0).width() == before and bar.accessibleTabName(0) == "Problems"


def test_a_badge_stays_with_its_tab(window: MainWindow) -> None:
    window.add_panel_tab(PanelTab("a", "A", QWidget))
    window.panel.set_badge("a", 2)
    window.add_panel_tab(PanelTab("b", "B", QWidget, priority=5))
    assert [window.panel._bar.tabData(at) for at in (0, 1)] == [None, (2, "normal")]


def test_the_panel_can_be_hidden_and_maximized(qtbot: QtBot, window: MainWindow) -> None:
    add_panel_tabs(window)
    qtbot.keyClick(window, Qt.Key.Key_J, CTRL)
    assert not window.panel.isVisible()
    qtbot.keyClick(window, Qt.Key.Key_J, CTRL)
    window.commands.run("view.maximizePanel")
    assert window.panel.isVisible() and not window.editor.isVisible()
    window.commands.run("view.restorePanel")
    assert window.editor.isVisible()


def test_status_items_are_ordered_and_hidden_while_empty(window: MainWindow) -> None:
    status = window.status_bar
    for name, side, priority in (("a", "left", 1), ("b", "left", 9), ("c", "right", 99), ("d", "right", 1)):
        status.item(name, side, priority).show_text(name)  # type: ignore[arg-type]
    items = (*status._items_by_side["left"], *status._items_by_side["right"])
    texts = [item.text() for item in items if not item.isHidden()]
    assert texts == ["b", "a", "d", "Dark Modern", "c"]
    status.item("b").show_text("")
    assert status.item("b").isHidden()


def test_a_status_item_runs_its_command(qtbot: QtBot, window: MainWindow) -> None:
    ran: list[str] = []
    window.commands.register(Command("x.y", "X: Y", lambda: ran.append("y")))
    item = window.status_bar.item("x")
    item.show_text("press me", icon="error")
    assert item.focusPolicy() == Qt.FocusPolicy.NoFocus
    item.show_text("press me", icon="error", command="x.y")
    qtbot.mouseClick(item, Qt.MouseButton.LeftButton)
    item.setFocus()
    qtbot.keyClick(item, Qt.Key.Key_Space)
    assert ran == ["y", "y"]


def test_a_slightly_shorter_text_keeps_its_width(window: MainWindow) -> None:
    item = window.status_bar.item("n", "right")
    item.show_text("100 samples/s")
    width = item.sizeHint().width()
    item.show_text("99 samples/s")
    assert item.sizeHint().width() == width
    item.show_text("1000 samples/s")
    assert item.sizeHint().width() > width
    item.show_text("1")
    assert item.sizeHint().width() < width


def test_a_narrow_window_hides_the_least_important_items(window: MainWindow) -> None:
    window.resize(800, 500)
    window.status_bar.item("long", "left", 5, importance=1).show_text("long " * 24)
    window.status_bar.item("dropped", "right", 200).show_text("not worth it " * 4)
    assert not window.status_bar.item("long").isHidden()
    assert window.status_bar.item("dropped").isHidden()
    window.resize(1440, 900)
    window.status_bar._hide_overflow()
    assert not window.status_bar.item("dropped").isHidden()


@pytest.mark.parametrize("theme", ["Dark Modern", "Light Modern"])
def test_every_control_is_named_and_in_the_tab_order(window: MainWindow, theme: str) -> None:
    add_activities(window)
    add_panel_tabs(window)
    window.settings.set("theme.name", theme)
    window.grab()
    buttons = [b for b in window.findChildren(QAbstractButton) if b.isVisible() and b.isEnabled()]
    own_buttons = [
        b
        for b in buttons
        if not b.objectName().startswith("qt_")
        and not (isinstance(b, QToolButton) and b.arrowType() != Qt.ArrowType.NoArrow)
    ]
    assert len(own_buttons) > 8
    assert [b for b in own_buttons if not (b.accessibleName() or b.text())] == []
    assert [b.accessibleName() for b in own_buttons if not b.focusPolicy() & Qt.FocusPolicy.TabFocus] == []
