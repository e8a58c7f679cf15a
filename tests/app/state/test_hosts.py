"""Hosts that the configuration names are looked at, each for as long as somebody wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.config import RunConfig, from_dict
from rankdeck_app.state.device_choice import DeviceChoice
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import AUTO_VIRTUAL, Gpus
from rankdeck_app.state.hosts import GpusOfHosts
from rankdeck_app.state.script_draft import ScriptDraft
from tests.helpers.device_lines import feed_machine
from tests.helpers.near_hosts import NearHosts

ANSWER_MS = 30_000


@pytest.fixture
def draft(qtbot: QtBot, tmp_path: Path) -> Iterator[Draft]:
    draft = Draft(tmp_path / "draft.json", tmp_path)
    draft.replace('strategy.use = "ddp"\n', folder=tmp_path, stem="")
    yield draft
    draft.close()


@pytest.fixture
def choice(draft: Draft, tmp_path: Path) -> DeviceChoice:
    return DeviceChoice(draft, ScriptDraft(tmp_path / "script.json", tmp_path, draft), draft)


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NearHosts:
    return NearHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture
def hosts(near: NearHosts, choice: DeviceChoice, draft: Draft, tmp_path: Path) -> Iterator[GpusOfHosts]:
    engine = Engine(tmp_path / "launch", draft)
    here = Gpus(engine, draft)
    hosts = GpusOfHosts(engine, here, choice, draft)
    yield hosts
    hosts.close()
    here.close()
    engine.close()


def name(draft: Draft, *names: str) -> None:
    draft.set_value(("hosts", "use"), list(names) or None)


def seen(hosts: GpusOfHosts) -> list[str]:
    return [gpus.host for gpus in hosts.seen]


def test_a_host_has_what_all_have_or_its_own(choice: DeviceChoice, draft: Draft) -> None:
    draft.set_value(("devices", "use"), "cpu:2")
    name(draft, "box1", "10.0.0.2", "box1")
    assert choice.hosts == ["box1", "10.0.0.2"]
    of_one = choice.of_host("10.0.0.2", draft)
    assert of_one.use == "cpu:2"
    of_one.write("cpu:3")
    assert (of_one.use, choice.use_of("box1")) == ("cpu:3", "cpu:2")
    of_one.write("cpu:2")
    assert draft.value(("hosts", "devices", "10.0.0.2")) is None, "what all have is said once"


@pytest.mark.parametrize("use", ["box1", 3, {"a": 1}, [], [1, ""]], ids=repr)
def test_what_is_no_list_of_names_names_none(choice: DeviceChoice, draft: Draft, use: object) -> None:
    draft.set_value(("hosts", "use"), use)
    assert choice.hosts == (["1"] if use == [1, ""] else [])


def test_hosts_are_asked_once_they_are_named_and_left_once_they_are_not(
    qtbot: QtBot, hosts: GpusOfHosts, draft: Draft
) -> None:
    assert seen(hosts) == [""]
    for typed in ("b", "bo", "box1"):
        name(draft, typed, "localhost")
    assert seen(hosts) == [""], "half a name is none"
    qtbot.waitUntil(lambda: seen(hosts) == ["", "box1"], timeout=5000)
    assert hosts.of("localhost") is hosts.here and hosts.of("bo") is None
    box1 = hosts.of("box1")
    assert box1 is not None
    qtbot.waitUntil(lambda: box1.known, timeout=ANSWER_MS)
    assert box1.reason == "No NVIDIA driver found" and not box1.refusal
    name(draft)
    qtbot.waitUntil(lambda: seen(hosts) == [""], timeout=5000)


def test_one_that_is_not_there_says_so_and_one_that_is_held_stays(
    qtbot: QtBot, hosts: GpusOfHosts, draft: Draft
) -> None:
    gone = hosts.hold("gone1")
    qtbot.waitUntil(lambda: bool(gone.refusal), timeout=ANSWER_MS)
    assert gone.known and gone.refusal.startswith("There is no host called gone1.")
    name(draft, "box1")
    qtbot.waitUntil(lambda: seen(hosts) == ["", "box1", "gone1"], timeout=5000)
    hosts.release("gone1")
    qtbot.waitUntil(lambda: seen(hosts) == ["", "box1"], timeout=5000)
    assert hosts.hold("") is hosts.here
    hosts.release("")


def over(devices: str, **of_hosts: str) -> RunConfig:
    named = {"use": ["localhost", "box1"], "devices": of_hosts}
    tables: dict[str, Any] = {"hosts": named, "devices": {"use": devices}}
    tables |= {"strategy": {"use": "ddp"}, "train": {"global_batch": 60}}
    return from_dict(tables, folder=Path())


def test_devices_of_all_hosts_are_counted_as_far_as_they_are_known(qtbot: QtBot, hosts: GpusOfHosts) -> None:
    many = hosts.num_chosen
    assert many(over("cpu:2", box1="cpu:3")) == 5
    feed_machine(hosts.here, 4)
    assert many(over("gpu:all")) is None, "nobody has looked at box1"
    box1 = hosts.hold("box1")
    qtbot.waitUntil(lambda: box1.known, timeout=ANSWER_MS)
    feed_machine(box1, 2)
    assert many(over("gpu:all")) == 6
    box1.give_up()
    hosts.here.give_up()
    assert many(over("auto")) == 2 * AUTO_VIRTUAL
