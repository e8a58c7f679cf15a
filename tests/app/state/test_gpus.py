"""What the sampler's lines come to: who is on a GPU, what is old, and when views are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck.config.devices import parse_devices
from rankdeck_app.state.device_choice import default_devices
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import AUTO_VIRTUAL, Gpus, busy_words
from rankdeck_app.state.script_draft import NONE_CHOSEN
from tests.helpers import device_lines
from tests.helpers.device_lines import GIB, ProcessUse, Reading, feed_machine


@pytest.fixture
def gpus(qtbot: QtBot, tmp_path: Path) -> Iterator[Gpus]:
    parent = QObject()
    gpus = Gpus(Engine(tmp_path / "launch", parent), parent)
    yield gpus
    gpus.close()


def test_nothing_is_known_before_the_first_answer(gpus: Gpus) -> None:
    assert not gpus.known and gpus.devices == [] and gpus.reason is None
    gpus.give_up("No NVIDIA driver found.")
    assert gpus.known and gpus.reason == "No NVIDIA driver found"


def test_figures_are_those_of_the_driver_and_unknown_is_none(gpus: Gpus) -> None:
    feed_machine(gpus, 2)
    first = gpus.devices[0]
    assert (first.label, first.used_bytes, first.utilisation, first.power_w) == ("GPU 0", 17 * GIB, 0.91, 512)
    gpus.take(device_lines.sample("GPU-0000", {"power_w": "unsupported", "utilisation": "error"}))
    gpus.look()
    assert gpus.devices[0].power_w is None and gpus.devices[0].utilisation is None
    assert gpus.reading("GPU-0000", "fan").state == "unsupported"


def test_views_are_told_of_figures_by_read_and_of_devices_by_changed(qtbot: QtBot, gpus: Gpus) -> None:
    feed_machine(gpus, 2)
    told: list[str] = []
    gpus.changed.connect(lambda: told.append("changed"))
    gpus.read.connect(lambda: told.append("read"))
    gpus.look()
    assert told == []
    gpus.take(device_lines.sample("GPU-0001", used_bytes=17.5 * GIB))
    gpus.look()
    assert told == ["read"]
    gpus.take(device_lines.processes({"GPU-0001": [ProcessUse(7, "python", GIB)]}))
    gpus.look()
    assert told == ["read", "changed", "read"]
    gpus.take(device_lines.notice("lost", "GPU-0001"))
    assert told[3:] == ["changed", "read"] and gpus.devices[1].lost_at is not None


def test_who_uses_a_gpu_is_said_in_words(gpus: Gpus) -> None:
    feed_machine(gpus, 3)
    users = [
        ProcessUse(7, "python", 2 * GIB),
        ProcessUse(8, "python", GIB),
        ProcessUse(9, None, None, foreign=True),
        ProcessUse(10, "Xorg", GIB, "graphics"),
    ]
    gpus.take(device_lines.processes({"GPU-0000": users}))
    gpus.take(device_lines.processes({"GPU-0001": users}, run="/runs/20260101-000000-mine-00aa"))
    gpus.take(device_lines.processes({"GPU-0002": [ProcessUse(10, "Xorg", 19 * GIB, "graphics")]}))
    gpus.look()
    other, mine, desktop = gpus.devices
    assert busy_words(other) == "python 3 GiB, outside this namespace" and not other.is_free
    assert busy_words(mine) == "" and mine.run_name == "20260101-000000-mine-00aa" and not mine.is_free
    assert desktop.is_free, "a desktop is in nobody's way"
    gpus.take(device_lines.processes({"GPU-0002": []}))
    gpus.look()
    hidden = gpus.devices[2]
    assert busy_words(hidden) == "unnamed 19 GiB" and not hidden.is_free, "nobody is named, somebody is there"


def test_what_is_old_is_called_old_by_its_age_alone(gpus: Gpus) -> None:
    feed_machine(gpus, 1)
    assert not gpus.devices[0].is_stale
    rows = [device_lines.DeviceReadings("GPU-0000", {"used_bytes": Reading(GIB, age_s=9.0)})]
    gpus.take(device_lines.SampleLine(t=0.0, devices=rows))
    gpus.look()
    assert gpus.devices[0].is_stale and gpus.devices[0].last_used_bytes == GIB
    assert gpus.devices[0].utilisation == 0.91, "the other readings are new"


def test_auto_takes_no_simulated_busy_split_or_lost_gpu(gpus: Gpus) -> None:
    """Where there are GPUs a configuration is for GPUs all the same, or for none before one is chosen."""
    assert default_devices("ddp", gpus.devices) == "cpu:4"
    feed_machine(gpus, 2, simulated=True)
    assert gpus.is_simulated and default_devices("ddp", gpus.devices) == "gpu:0,1"
    feed_machine(gpus, 2, busy=(0, 1))
    assert default_devices("ddp", gpus.devices) == NONE_CHOSEN
    feed_machine(gpus, 2, busy=(0,))
    assert default_devices("ddp", gpus.devices) == "auto"
    gpus.take(device_lines.notice("lost", "GPU-0001"))
    assert default_devices("ddp", gpus.devices) == NONE_CHOSEN


def test_auto_and_all_are_as_many_devices_as_a_run_would_take(gpus: Gpus) -> None:
    def count(use: str) -> int | None:
        return gpus.num_chosen(parse_devices(use))

    assert (count("auto"), count("gpu:all"), count("cpu:3"), count("gpu:0,2")) == (None, None, 3, 2)
    feed_machine(gpus, 3, busy=(0,))
    assert (count("auto"), count("gpu:all")) == (2, 3)
    gpus.give_up()
    assert (count("auto"), count("gpu:all")) == (AUTO_VIRTUAL, None)


def test_parts_of_a_split_gpu_have_names_of_their_own(gpus: Gpus) -> None:
    split = device_lines.gpu(1, mig=True)
    parts = [device_lines.instance(1, place, split) for place in range(2)]
    gpus.take(device_lines.devices(device_lines.gpu(0), split, *parts))
    gpus.look()
    assert [gpu.label for gpu in gpus.devices] == ["GPU 0", "GPU 1", "GPU 1.0", "GPU 1.1"]
    assert [gpu.label for gpu in gpus.whole] == ["GPU 0", "GPU 1"] and not gpus.devices[1].is_usable
