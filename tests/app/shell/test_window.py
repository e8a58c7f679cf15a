from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from rankdeck_app.shell.notifications_page import NotificationsPage
from rankdeck_app.shell.panel import PanelTab
from rankdeck_app.shell.services import Services, make_services
from rankdeck_app.shell.side_bar import Activity, SideBarView
from rankdeck_app.shell.toasts import OneTimeAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.shell.window_state import WindowState
from tests.app.shell.pages import NotePage, add_frame_pages

CTRL = Qt.KeyboardModifier.ControlModifier
Make = Callable[..., MainWindow]


def compose(window: MainWindow) -> None:
    def view(name: str) -> SideBarView:
        view = SideBarView(window.theme)
        view.add_section(name, QLabel(name))
        return view

    window.add_activity(Activity("launch", "Launch", "rocket", lambda: view("Devices"), priority=2))
    window.add_activity(Activity("runs", "Runs", "history", lambda: view("Runs")))
    window.add_panel_tab(PanelTab("problems", "Problems", QWidget, priority=1))
    window.add_panel_tab(PanelTab("output", "Output", QWidget))
    window.editor.register_page_kind("note", NotePage)
    window.start()


def test_the_whole_state_is_restored_after_a_restart(
    qtbot: QtBot, services: Services, make_window: Make
) -> None:
    window = make_window(services, compose)
    window.resize(780, 612)
    page = window.editor.open("note:a")
    assert isinstance(page, NotePage)
    page.text_field.setText("kept")
    window.editor.split("right")
    window.show_activity("runs")
    view = window.side_bar.get_view("runs")
    assert isinstance(view, SideBarView)
    view.sections[0].set_open(False)
    window.show_panel("output")
    window.toggle_part("panel")
    window.columns.setSizes([330, 421])
    side_width = window.side_bar.width()
    window.close()

    again = make_window(make_services(), compose)
    assert again.size() == window.size()
    assert again.side_bar.current_id == "runs" and again.side_bar.width() == side_width
    restored = again.side_bar.get_view("runs")
    assert isinstance(restored, SideBarView) and not restored.sections[0].is_open
    assert not again.panel.isVisible() and again.panel.current_id == "output"
    assert [len(group.tabs) for group in again.editor.groups()] == [1, 1]
    page = again.editor.active_page()
    assert isinstance(page, NotePage) and page.text_field.text() == "kept"


def test_the_layout_survives_a_killed_app(qtbot: QtBot, services: Services, make_window: Make) -> None:
    window = make_window(services, compose)
    window.editor.open("note:a")
    path = services.state_folder / "window.json"
    qtbot.waitUntil(path.exists, timeout=5000)
    tabs = json.loads(path.read_text())["editor"]["tree"]["children"][0]["tabs"]
    assert [tab["id"] for tab in tabs] == ["note:a"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"columns": ["x", 2], "visible": 3, "editor": [], "geometry": "zz"}']
)
def test_an_invalid_state_file_opens_the_default_window(
    services: Services, make_window: Make, text: str
) -> None:
    services.state_folder.mkdir(parents=True)
    (services.state_folder / "window.json").write_text(text)
    window = make_window(services, compose)
    assert window.side_bar.isVisible() and window.panel.isVisible()
    assert window.side_bar.current_id == "launch"


def test_tabs_are_not_restored_when_the_setting_is_off(services: Services, make_window: Make) -> None:
    window = make_window(services, compose)
    window.editor.open("note:a")
    window.close()
    services = make_services()
    services.settings.set("window.restore_tabs", False)
    assert make_window(services, compose).editor.pages() == []


def test_an_unwritable_state_file_is_reported_once(services: Services, make_window: Make) -> None:
    window = make_window(services, compose)
    path = services.state_folder
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file where the folder should be")
    state = window.findChild(WindowState)
    assert state is not None
    state.save_now()
    state.save_now()
    assert [n.text.split(":")[0] for n in window.toasts.history] == ["The layout cannot be saved"]


def test_zen_mode_shows_only_the_editor(qtbot: QtBot, services: Services, make_window: Make) -> None:
    window = make_window(services, compose)
    window.editor.open("note:a")
    qtbot.keyClick(window, Qt.Key.Key_K, CTRL)
    qtbot.keyClick(window, Qt.Key.Key_Z)
    bars = (window.title_bar, window.activity_bar, window.side_bar, window.panel, window.status_bar)
    assert not any(bar.isVisible() for bar in bars) and window.editor.isVisible()
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    assert all(bar.isVisible() for bar in bars)


def test_chords_work_in_a_text_field(qtbot: QtBot, window: MainWindow) -> None:
    add_frame_pages(window)
    page = window.editor.open("note:a", NotePage)
    assert isinstance(page, NotePage)
    qtbot.keyClick(page.text_field, Qt.Key.Key_K, CTRL)
    chord = window.status_bar.item("chord")
    assert chord.text() == "Ctrl+K was pressed. Waiting for the second key…"
    qtbot.keyClick(page.text_field, Qt.Key.Key_S, CTRL)
    assert window.context.get("activePage") == "keys" and chord.isHidden()


def test_a_theme_chosen_by_keyboard_is_saved(qtbot: QtBot, window: MainWindow) -> None:
    qtbot.keyClick(window, Qt.Key.Key_K, CTRL)
    qtbot.keyClick(window, Qt.Key.Key_T, CTRL)
    qtbot.keyClicks(window.command_palette.input, "light")
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Return)
    assert window.theme.name == "Light Modern" == window.status_bar.item("theme").text()
    assert make_services().settings.get("theme.name", str) == "Light Modern"


def test_a_missing_theme_is_reported_and_the_window_opens(services: Services, make_window: Make) -> None:
    services.settings.set("theme.name", "/gone/theme.json")
    window = make_window(services)
    QApplication.processEvents()
    assert window.theme.name == "Dark Modern"
    assert "/gone/theme.json" in window.toasts.history[0].text


def test_f6_moves_the_focus_between_parts(qtbot: QtBot, services: Services, make_window: Make) -> None:
    window = make_window(services, compose)
    window.editor.open("note:a")
    part_indices = []
    for _ in range(5):
        qtbot.keyClick(window, Qt.Key.Key_F6)
        focused = QApplication.focusWidget()
        parts = (window.editor, window.panel, window.status_bar, window.activity_bar, window.side_bar)
        part_indices.append(
            next(at for at, part in enumerate(parts) if focused is not None and part.isAncestorOf(focused))
        )
    assert sorted(part_indices) == [0, 1, 2, 3, 4]


def test_the_window_title_follows_the_active_page(services: Services, make_window: Make) -> None:
    window = make_window(services, compose)
    first, second = window.editor.open("note:a"), window.editor.open("note:b")
    second.set_title("renamed")
    assert window.windowTitle().startswith("renamed — ")
    first.set_title("behind")
    assert window.windowTitle().startswith("renamed — ")
    window.editor.close_page(second.page_id)
    assert window.windowTitle().startswith("behind — ")
    first.set_title("in front")
    assert window.windowTitle().startswith("in front — ")


def test_toasts_follow_the_panel_and_limit_their_height(
    qtbot: QtBot, services: Services, make_window: Make
) -> None:
    window = make_window(services, compose)
    window.resize(1280, 720)
    window.show_panel("output")
    window.toasts.show("A long one. " * 200, "warning", [("Do it", lambda: None)])
    for number in range(30):
        window.toasts.info(f"notice {number}")

    def boxes() -> list[QRect]:
        return [toast.geometry() for toast in window.toasts.visible_toasts]

    def lie_above(widget: QWidget) -> bool:
        top = widget.mapTo(window, QPoint(0, 0)).y()
        return all(top - 14 > box.bottom() >= top - 14 - window.height() // 3 for box in boxes()[-1:])

    assert lie_above(window.panel) and 2 <= len(boxes()) <= 6
    assert sum(box.height() for box in boxes()) <= 240 and len(window.toasts.history) == 31
    assert not any(toast_box.intersects(other) for toast_box, other in pairwise(boxes()))
    window.commands.run("view.togglePanel")
    qtbot.waitUntil(lambda: lie_above(window.status_bar))
    window.commands.run("view.togglePanel")
    qtbot.waitUntil(lambda: lie_above(window.panel))
    window.toasts.dismiss_all()
    window.toasts.show("A long one. " * 200, "warning", [("Do it", lambda: None)])
    (toast,) = window.toasts.visible_toasts
    label = max(toast.findChildren(QLabel), key=lambda label: len(label.text()))
    assert toast.height() <= 240 and label.text().endswith("…") and label.toolTip() == toast.notification.text


def test_a_toast_button_runs_its_action_and_closes_the_toast(qtbot: QtBot, window: MainWindow) -> None:
    answered: list[str] = []
    window.toasts.show("Compare?", "warning", [("Compare", lambda: answered.append("yes"))])
    (toast,) = window.toasts.visible_toasts
    button = next(b for b in toast.findChildren(QPushButton) if b.text() == "Compare")
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert answered == ["yes"] and window.toasts.visible_toasts == []
    assert [notice.text for notice in window.toasts.history] == ["Compare?"]


def test_a_toast_expires_unless_focused_or_with_buttons(qtbot: QtBot, window: MainWindow) -> None:
    window.settings.set("notifications.seconds", 2.0)
    window.toasts.show("Compare?", actions=[("Compare", lambda: None)], key="asks")
    window.toasts.show("stays", key="stays")
    window.toasts.show("bye")
    qtbot.mouseMove(window, QPoint(5, 5))
    focused_toast, question = window.toasts.find("stays"), window.toasts.find("asks")
    assert focused_toast is not None and question is not None
    button = focused_toast.findChildren(QAbstractButton)[0]
    with qtbot.waitActive(window):
        window.activateWindow()
    button.setFocus()
    qtbot.waitUntil(lambda: window.toasts.visible_toasts == [question, focused_toast], timeout=5000)
    button.clearFocus()
    qtbot.waitUntil(lambda: window.toasts.visible_toasts == [question], timeout=5000)
    question.dismiss()
    assert window.toasts.visible_toasts == []


def test_toasts_of_one_key_replace_each_other(window: MainWindow) -> None:
    for number in range(5):
        window.toasts.show(f"{number} runs ended", key="over")
    window.toasts.info("another")
    assert [toast.notification.text for toast in window.toasts.visible_toasts] == [
        "4 runs ended",
        "another",
    ]
    window.toasts.update_text("over", "5 runs ended")
    window.toasts.update_text("gone", "nothing")
    assert [notice.text for notice in window.toasts.history] == ["5 runs ended", "another"]
    assert window.status_bar.item("notifications").text() == "2"
    window.toasts.dismiss("over")
    assert [toast.notification.text for toast in window.toasts.visible_toasts] == ["another"]


def test_no_toast_is_shown_beside_the_notifications_page(qtbot: QtBot, window: MainWindow) -> None:
    answered: list[str] = []
    add_frame_pages(window)
    window.toasts.show("before", actions=[("Do it", lambda: answered.append("before"))])
    window.commands.run("notifications.show")
    page = window.editor.active_page()
    assert window.toasts.unread == 0 and page is not None
    qtbot.waitUntil(lambda: page.isVisible() and window.toasts.visible_toasts == [])
    window.toasts.show("after", actions=[("Do it", lambda: answered.append("after"))])
    assert window.toasts.visible_toasts == [] and window.toasts.unread == 0
    for button in page.findChildren(QPushButton):
        if button.text() == "Do it" and button.isVisible():
            assert button.visibleRegion().boundingRect() == button.rect(), "none is cut"
            assert button.height() >= button.sizeHint().height()
            qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert sorted(answered) == ["after", "before"]
    window.editor.close_page(page.page_id)
    qtbot.waitUntil(lambda: not window.toasts.is_history_open)
    window.toasts.info("shown again")
    assert len(window.toasts.visible_toasts) == 1


def test_a_one_time_action_is_disabled_everywhere_once_run(qtbot: QtBot, window: MainWindow) -> None:
    done: list[str] = []
    add_frame_pages(window)
    window.commands.run("notifications.show")
    page = window.editor.active_page()
    assert isinstance(page, NotificationsPage)

    def button(name: str) -> QPushButton:
        window.editor.open(page.page_id)
        (push_button,) = (b for b in page.findChildren(QPushButton) if b.text() == name and b.isVisible())
        return push_button

    for name in ("Undo it", "Undo that"):
        window.commands.run("preferences.keys")
        window.toasts.show(f"{name}?", actions=[(name, OneTimeAction(lambda name=name: done.append(name)))])  # type: ignore[misc]
    on_toast = window.toasts.visible_toasts[0].findChild(QPushButton)
    assert on_toast is not None and on_toast.isEnabled()
    on_toast.click()
    assert not on_toast.isEnabled() and not button("Undo it").isEnabled()
    in_list = button("Undo that")
    assert in_list.isEnabled()
    in_list.click()
    assert not in_list.isEnabled() and done == ["Undo it", "Undo that"]
    window.toasts.show("Show?", actions=[("Show", lambda: done.append("Show"))])
    for _ in range(2):
        button("Show").click()
    assert done[2:] == ["Show", "Show"] and not button("Undo that").isEnabled()


def test_notification_buttons_are_laid_out_in_a_row_if_they_fit(qtbot: QtBot, window: MainWindow) -> None:
    add_frame_pages(window)
    window.resize(800, 600)
    names = ("Open train.py", "Open Race · GPT · 2", "Open what is alive")
    window.toasts.show("before", actions=[(name, lambda: None) for name in names], key="said")
    for page_id in ("keys:", "notifications:"):
        window.editor.open(page_id)
    window.editor.split("right")
    (page,) = (page for page in window.editor.pages() if isinstance(page, NotificationsPage))

    def button_edges() -> tuple[set[int], set[int]]:
        """(tops, left edges) of the buttons that are on show."""
        boxes = [button.geometry() for button in page.findChildren(QPushButton) if button.text() in names]
        return {box.y() for box in boxes}, {box.x() for box in boxes}

    qtbot.waitUntil(lambda: (len(button_edges()[0]), len(button_edges()[1])) == (3, 1))
    window.editor.close_page("keys:")
    qtbot.waitUntil(lambda: (len(button_edges()[0]), len(button_edges()[1])) == (1, 3))
    assert min(button_edges()[1]) < 40, "below what they are for, however wide the page is"
    window.toasts.clear_history()
    window.toasts.show("again", key="said")
    window.toasts.update_text("said", "anew")
    assert [notice.text for notice in window.toasts.history] == ["again"]


def test_frame_time_is_shown_while_views_run(qtbot: QtBot, window: MainWindow) -> None:
    item = window.status_bar.item("frames")
    window.clock.subscribe(lambda: None)
    qtbot.waitUntil(lambda: "fps" in item.text())
    window.settings.set("window.show_frame_time", False)
    assert item.isHidden()
    window.settings.set("window.show_frame_time", True)
    window.clock.stop()
    assert item.isHidden()


def test_closing_the_window_stops_the_clock(qtbot: QtBot, window: MainWindow) -> None:
    signals: list[str] = []
    window.closing.connect(lambda: signals.append("closing"))
    window.clock.subscribe(lambda: None)
    window.close()
    assert signals == ["closing"] and not window.clock._timer.isActive()


def test_a_closed_window_is_freed(qtbot: QtBot, services: Services, make_window: Make) -> None:
    import gc
    import weakref

    from tests.app.conftest import process_events

    window = make_window(services, compose)
    window.editor.open("note:a")
    window.command_palette.show_commands()
    window.command_palette.dismiss()
    ghost = weakref.ref(window)
    services.context.set("after", 1)
    window.close()
    window.deleteLater()
    process_events()
    services.context.set("after", 2)
    services.commands.changed.emit()
    from shiboken6 import isValid

    assert not isValid(window)
    del window
    gc.collect()
    assert ghost() is None or not isValid(ghost())


def test_both_themes_paint_the_whole_window(services: Services, make_window: Make, tmp_path: Path) -> None:
    window = make_window(services, compose)
    window.resize(1280, 720)
    dark = window.grab().toImage()
    window.settings.set("theme.name", "Light Modern")
    light = window.grab().toImage()
    assert dark.pixelColor(700, 300).lightness() < 60 < 200 < light.pixelColor(700, 300).lightness()
