"""Devices over several hosts: a tab for each, a bar that leads from one to the other and says how all are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.host_gpus import HostGpus
from rankdeck_app.views.devices.host_bar import HostBar
from rankdeck_app.views.devices.page import DevicesPage
from tests.helpers.device_lines import feed_machine


@pytest.fixture
def app(make_app: Callable[[], App], monkeypatch: pytest.MonkeyPatch) -> App:
    """An app whose samplers are left out: lines are fed by the test."""
    monkeypatch.setattr(Gpus, "start", lambda _gpus: None)
    return make_app()


def show_host_page(app: App, host: str) -> tuple[DevicesPage, HostBar]:
    app.device_monitor.show_host(host)
    page = app.window.editor.active_page()
    assert isinstance(page, DevicesPage)
    return page, page.findChildren(HostBar)[0]


def feed_host(hosts: HostGpus, host: str, count: int) -> Gpus:
    gpus = hosts.get(host) if host else hosts.local
    assert gpus is not None
    feed_machine(gpus, count)
    return gpus


def test_one_machine_has_no_host_bar(app: App) -> None:
    feed_host(app.session.hosts, "", 2)
    page, bar = show_host_page(app, "")
    assert not bar.buttons and page.title == "Devices"


def test_each_host_has_a_tab_and_a_button(qtbot: QtBot, app: App) -> None:
    hosts = app.session.hosts
    app.session.draft.set_value(("hosts", "use"), ["localhost", "box1", "gone1"])
    qtbot.waitUntil(lambda: [gpus.host for gpus in hosts.all_gpus] == ["", "box1", "gone1"], timeout=5000)
    feed_host(hosts, "", 8)
    box1 = feed_host(hosts, "box1", 4)
    page, bar = show_host_page(app, "box1")
    unreachable = hosts.get("gone1")
    assert unreachable is not None
    unreachable._on_connection_failed("The host name gone1 cannot be resolved.")
    bar._refresh()
    texts = [button.text() for button in bar.buttons.values()]
    assert texts[0].startswith("this machine · 8 GPUs · ") and texts[1].startswith("box1 · 4 GPUs · ")
    assert texts[2] == "gone1 · not responding"
    assert page.title == "Devices: box1" and page.breadcrumbs()[:2] == ["devices", "box1"]
    assert len(page.table.data.rows) == 4
    assert [host for host, button in bar.buttons.items() if button.isChecked()] == ["box1"]

    box1._last_line_s -= 75.0
    bar._refresh()
    assert bar.buttons["box1"].text().endswith("no response for 1:15")

    bar.buttons[""].click()
    other = app.window.editor.active_page()
    assert isinstance(other, DevicesPage) and other is not page and len(other.table.data.rows) == 8
    assert bar.buttons["box1"].isChecked(), "the tab that was left shows what it showed"


def test_a_host_is_sampled_while_its_tab_is_open(qtbot: QtBot, app: App) -> None:
    hosts = app.session.hosts
    show_host_page(app, "box7")
    assert hosts.get("box7") is not None and not app.session.device_choice.hosts
    app.window.editor.close_page()
    qtbot.waitUntil(lambda: hosts.get("box7") is None, timeout=5000)
