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
from rankdeck_app.views.launch.all_devices import AllDevices
from tests.helpers.device_lines import feed_machine
from tests.helpers.near_hosts import NearHosts
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
    NearHosts(tmp_path / "hosts", monkeypatch)
    draft = Draft(tmp_path / "draft.json", tmp_path)
    draft.replace(TEXT, folder=tmp_path, stem="over")
    yield draft
    draft.close()


@pytest.fixture
def devices(qtbot: QtBot, tmp_path: Path, draft: Draft) -> Iterator[AllDevices]:
    parent = QObject()
    gpus = Gpus(Engine(tmp_path / "launch", parent), parent)
    view = launch_view(Theme(), draft, gpus, [], str)
    qtbot.addWidget(view)
    view.show()
    view.devices.hosts.start()
    yield view.devices
    view.devices.hosts.close()
    gpus.close()


def of_host(devices: AllDevices, host: str) -> Gpus:
    gpus = devices.hosts.of(host)
    assert gpus is not None
    return gpus


def test_each_host_has_a_group_and_none_is_this_machine_alone(devices: AllDevices, draft: Draft) -> None:
    assert list(devices.groups) == ["localhost", "box1.lan"]
    assert not devices.here.isVisible() and devices.summary.text() == "2 hosts"
    assert [len(group.devices.grid.cards) for group in devices.groups.values()] == [2, 2]
    head, other = devices.groups.values()
    assert head.state.text().startswith("has the run") and "has the run" not in other.state.text()
    draft.set_value(("hosts", "use"), None)
    assert devices.here.isVisible() and not devices.groups and not devices.summary.isVisible()


def test_what_is_chosen_for_one_host_is_its_own(qtbot: QtBot, devices: AllDevices, draft: Draft) -> None:
    stepper = devices.groups["box1.lan"].devices.stepper
    qtbot.mouseClick(stepper.more, Qt.MouseButton.LeftButton)
    assert draft.value(("hosts", "devices", "box1.lan")) == "cpu:3"
    assert draft.value(("devices", "use")) == "cpu:2" and not draft.problems
    assert len(devices.groups["localhost"].devices.grid.cards) == 2
    qtbot.mouseClick(stepper.fewer, Qt.MouseButton.LeftButton)
    assert draft.value(("hosts", "devices", "box1.lan")) is None

    feed_machine(of_host(devices, "box1.lan"), 4)
    cards = devices.groups["box1.lan"].devices
    qtbot.mouseClick(cards.gpu_button, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(cards.grid.cards[1], Qt.MouseButton.LeftButton)
    assert draft.value(("hosts", "devices", "box1.lan")) == "gpu:0,2,3"
    (problem,) = draft.problems
    assert problem.path == "hosts.devices.box1.lan", "no run has GPUs and virtual devices"
    devices.show_problems(draft.problems)
    assert problem.message in cards.problem.text()
    assert not devices.groups["localhost"].devices.problem.isVisible()
    assert devices.place_of(problem) is cards.first_button


def test_hosts_are_typed_into_a_field_that_their_problems_lead_to(
    qtbot: QtBot, devices: AllDevices, draft: Draft
) -> None:
    editor = devices.form.fields["hosts", "use"].editor
    editor.setFocus()
    qtbot.keyClick(editor, Qt.Key.Key_End)
    qtbot.keyClicks(editor, ", localhost")
    assert draft.value(("hosts", "use")) == ["localhost", "box1.lan", "localhost"]
    qtbot.waitUntil(lambda: bool(draft.problems) and not draft.is_settling)
    (problem,) = draft.problems
    assert problem.path == "hosts.use" and devices.place_of(problem) is editor
    assert list(devices.groups) == ["localhost", "box1.lan"], "each once"


def test_a_host_says_that_it_is_silent_or_does_not_answer(devices: AllDevices) -> None:
    box1, group = of_host(devices, "box1.lan"), devices.groups["box1.lan"]
    assert group.state.text() == "looking…"
    feed_machine(box1, 2)
    group.refresh()
    assert group.state.text() == ""
    box1._heard_s -= 12.0
    group.refresh()
    assert group.state.text() == "silent for 12 s"
    box1.give_up("No NVIDIA driver found.")
    box1._refused("The connection to box1.lan broke.")
    assert group.state.text() == "does not answer"
    assert group.devices.reason.text() == "The connection to box1.lan broke."


def test_what_a_run_uses_stands_on_the_cards_of_its_host(devices: AllDevices) -> None:
    devices.set_usages("virtual", {"box1.lan": {1: (3 << 20, 0.5, True)}})
    described = [card.accessibleDescription() for card in devices.groups["box1.lan"].devices.grid.cards]
    assert described == ["", "3.0 MiB in use"]
    assert not devices.groups["localhost"].devices.grid.cards[1].accessibleDescription()


@pytest.mark.parametrize("path", [None, "train.steps", "hosts.devices.box9", "hosts.min"])
def test_a_problem_of_something_else_has_no_place_here(devices: AllDevices, path: str | None) -> None:
    assert devices.place_of(Problem("x", "x", path=path)) is None
