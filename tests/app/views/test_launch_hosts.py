"""DEVICES over several hosts: a group for each, which writes what is its own and says how it answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject, Qt
from pytestqt.qtbot import QtBot

from rankdeck.base.errors import Problem
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.devices_section import DevicesSection
from tests.helpers.device_lines import feed_machine
from tests.helpers.fake_ssh_hosts import FakeSshHosts
from tests.helpers.own_scripts import launch_view

TEXT = """\
[devices]
use = "cpu:2"

[train]
global_batch = 60

[strategy]
use = "ddp"

[hosts]
use = ["localhost", "box1.lan"]
"""


@pytest.fixture
def draft(qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Draft]:
    FakeSshHosts(tmp_path / "hosts", monkeypatch)
    draft = Draft(tmp_path / "draft.json", tmp_path)
    draft.replace(TEXT, folder=tmp_path, stem="over")
    yield draft
    draft.close()


@pytest.fixture
def devices(qtbot: QtBot, tmp_path: Path, draft: Draft) -> Iterator[DevicesSection]:
    parent = QObject()
    gpus = Gpus(Engine(tmp_path / "launch", parent), parent)
    view = launch_view(Theme(), draft, gpus, [], str)
    qtbot.addWidget(view)
    view.show()
    view.devices.hosts.start()
    yield view.devices
    view.devices.hosts.close()
    gpus.close()


def gpus_of_host(devices: DevicesSection, host: str) -> Gpus:
    gpus = devices.hosts.get(host)
    assert gpus is not None
    return gpus


def test_each_host_has_a_device_group(devices: DevicesSection, draft: Draft) -> None:
    assert list(devices.groups) == ["localhost", "box1.lan"]
    assert not devices.local_devices.isVisible() and devices.summary_label.text() == "2 hosts"
    assert [len(group.devices.grid.cards) for group in devices.groups.values()] == [2, 2]
    coordinator, other = devices.groups.values()
    assert (
        coordinator.state_label.text().startswith("coordinator")
        and "coordinator" not in other.state_label.text()
    )
    draft.set_value(("hosts", "use"), None)
    assert devices.local_devices.isVisible() and not devices.groups and not devices.summary_label.isVisible()


def test_each_host_has_its_own_selection(qtbot: QtBot, devices: DevicesSection, draft: Draft) -> None:
    stepper = devices.groups["box1.lan"].devices.stepper
    qtbot.mouseClick(stepper.increase_button, Qt.MouseButton.LeftButton)
    assert draft.value(("hosts", "devices", "box1.lan")) == "cpu:3"
    assert draft.value(("devices", "use")) == "cpu:2" and not draft.problems
    assert len(devices.groups["localhost"].devices.grid.cards) == 2
    qtbot.mouseClick(stepper.decrease_button, Qt.MouseButton.LeftButton)
    assert draft.value(("hosts", "devices", "box1.lan")) is None

    feed_machine(gpus_of_host(devices, "box1.lan"), 4)
    cards = devices.groups["box1.lan"].devices
    qtbot.mouseClick(cards.gpu_button, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(cards.grid.cards[1], Qt.MouseButton.LeftButton)
    assert draft.value(("hosts", "devices", "box1.lan")) == "gpu:0,2,3"
    (problem,) = draft.problems
    assert problem.path == "hosts.devices.box1.lan", "no run has GPUs and virtual devices"
    devices.show_problems(draft.problems)
    assert problem.message in cards.problem_label.text()
    assert not devices.groups["localhost"].devices.problem_label.isVisible()
    assert devices.find_widget(problem) is cards.first_button


def test_host_problems_lead_to_the_hosts_field(qtbot: QtBot, devices: DevicesSection, draft: Draft) -> None:
    editor = devices.form.fields["hosts", "use"].editor
    editor.setFocus()
    qtbot.keyClick(editor, Qt.Key.Key_End)
    qtbot.keyClicks(editor, ", localhost")
    assert draft.value(("hosts", "use")) == ["localhost", "box1.lan", "localhost"]
    qtbot.waitUntil(lambda: bool(draft.problems) and not draft.is_typing)
    (problem,) = draft.problems
    assert problem.path == "hosts.use" and devices.find_widget(problem) is editor
    assert list(devices.groups) == ["localhost", "box1.lan"], "each once"


def test_silent_and_unreachable_hosts_are_marked(devices: DevicesSection) -> None:
    box1, group = gpus_of_host(devices, "box1.lan"), devices.groups["box1.lan"]
    assert group.state_label.text() == "looking…"
    feed_machine(box1, 2)
    group.refresh()
    assert group.state_label.text() == ""
    box1._last_line_s -= 12.0
    group.refresh()
    assert group.state_label.text() == "no response for 12 s"
    box1.set_unavailable("No NVIDIA driver found.")
    box1._on_connection_failed("The connection to box1.lan was lost.")
    assert group.state_label.text() == "not responding"
    assert group.devices.reason_label.text() == "The connection to box1.lan was lost."


def test_device_cards_show_usage_of_their_host(devices: DevicesSection) -> None:
    devices.set_usages("virtual", {"box1.lan": {1: (3 << 20, 0.5, True)}})
    described = [card.accessibleDescription() for card in devices.groups["box1.lan"].devices.grid.cards]
    assert described == ["", "3.0 MiB in use"]
    assert not devices.groups["localhost"].devices.grid.cards[1].accessibleDescription()


@pytest.mark.parametrize("path", [None, "train.steps", "hosts.devices.box9", "hosts.min"])
def test_problems_of_other_fields_have_no_widget(devices: DevicesSection, path: str | None) -> None:
    assert devices.find_widget(Problem("x", "x", path=path)) is None
