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
from rankdeck_app.state.gpus import NUM_AUTO_VIRTUAL_DEVICES, Gpus
from rankdeck_app.state.host_gpus import HostGpus
from rankdeck_app.state.script_draft import ScriptDraft
from tests.helpers.device_lines import feed_machine
from tests.helpers.fake_ssh_hosts import FakeSshHosts

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
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSshHosts:
    return FakeSshHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture
def hosts(near: FakeSshHosts, choice: DeviceChoice, draft: Draft, tmp_path: Path) -> Iterator[HostGpus]:
    engine = Engine(tmp_path / "launch", draft)
    here = Gpus(engine, draft)
    hosts = HostGpus(engine, here, choice, draft)
    yield hosts
    hosts.close()
    here.close()
    engine.close()


def name_hosts(draft: Draft, *names: str) -> None:
    draft.set_value(("hosts", "use"), list(names) or None)


def visible_hosts(hosts: HostGpus) -> list[str]:
    return [gpus.host for gpus in hosts.all_gpus]


def test_a_host_inherits_or_overrides_the_devices(choice: DeviceChoice, draft: Draft) -> None:
    draft.set_value(("devices", "use"), "cpu:2")
    name_hosts(draft, "box1", "10.0.0.2", "box1")
    assert choice.hosts == ["box1", "10.0.0.2"]
    of_one = choice.for_host("10.0.0.2", draft)
    assert of_one.use == "cpu:2"
    of_one.set_use("cpu:3")
    assert (of_one.use, choice.get_use("box1")) == ("cpu:3", "cpu:2")
    of_one.set_use("cpu:2")
    assert draft.value(("hosts", "devices", "10.0.0.2")) is None, "what all have is said once"


@pytest.mark.parametrize("use", ["box1", 3, {"a": 1}, [], [1, ""]], ids=repr)
def test_an_invalid_host_list_names_no_hosts(choice: DeviceChoice, draft: Draft, use: object) -> None:
    draft.set_value(("hosts", "use"), use)
    assert choice.hosts == (["1"] if use == [1, ""] else [])


def test_hosts_are_queried_only_while_named(qtbot: QtBot, hosts: HostGpus, draft: Draft) -> None:
    assert visible_hosts(hosts) == [""]
    for typed in ("b", "bo", "box1"):
        name_hosts(draft, typed, "localhost")
    assert visible_hosts(hosts) == [""], "half a name is none"
    qtbot.waitUntil(lambda: visible_hosts(hosts) == ["", "box1"], timeout=5000)
    assert hosts.get("localhost") is hosts.local and hosts.get("bo") is None
    box1 = hosts.get("box1")
    assert box1 is not None
    qtbot.waitUntil(lambda: box1.is_known, timeout=ANSWER_MS)
    assert box1.reason == "No NVIDIA driver found" and not box1.refusal
    name_hosts(draft)
    qtbot.waitUntil(lambda: visible_hosts(hosts) == [""], timeout=5000)


def test_an_unknown_host_is_reported_and_an_acquired_one_stays(
    qtbot: QtBot, hosts: HostGpus, draft: Draft
) -> None:
    unknown_host = hosts.acquire("gone1")
    qtbot.waitUntil(lambda: bool(unknown_host.refusal), timeout=ANSWER_MS)
    assert unknown_host.is_known and unknown_host.refusal.startswith(
        "The host name gone1 cannot be resolved."
    )
    name_hosts(draft, "box1")
    qtbot.waitUntil(lambda: visible_hosts(hosts) == ["", "box1", "gone1"], timeout=5000)
    hosts.release("gone1")
    qtbot.waitUntil(lambda: visible_hosts(hosts) == ["", "box1"], timeout=5000)
    assert hosts.acquire("") is hosts.local
    hosts.release("")


def make_config(devices: str, **of_hosts: str) -> RunConfig:
    named = {"use": ["localhost", "box1"], "devices": of_hosts}
    tables: dict[str, Any] = {"hosts": named, "devices": {"use": devices}}
    tables |= {"strategy": {"use": "ddp"}, "train": {"global_batch": 60}}
    return from_dict(tables, folder=Path())


def test_devices_of_all_hosts_are_counted_once_known(qtbot: QtBot, hosts: HostGpus) -> None:
    many = hosts.count_devices
    assert many(make_config("cpu:2", box1="cpu:3")) == 5
    feed_machine(hosts.local, 4)
    assert many(make_config("gpu:all")) is None, "nobody has looked at box1"
    box1 = hosts.acquire("box1")
    qtbot.waitUntil(lambda: box1.is_known, timeout=ANSWER_MS)
    feed_machine(box1, 2)
    assert many(make_config("gpu:all")) == 6
    box1.set_unavailable()
    hosts.local.set_unavailable()
    assert many(make_config("auto")) == 2 * NUM_AUTO_VIRTUAL_DEVICES
