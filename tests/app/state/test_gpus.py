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
from rankdeck_app.state.gpus import NUM_AUTO_VIRTUAL_DEVICES, Gpus, busy_text
from rankdeck_app.state.script_draft import NO_DEVICES_CHOSEN
from tests.helpers import device_lines
from tests.helpers.device_lines import GIB, ProcessUse, Reading, feed_machine


@pytest.fixture
def gpus(qtbot: QtBot, tmp_path: Path) -> Iterator[Gpus]:
    parent = QObject()
    gpus = Gpus(Engine(tmp_path / "launch", parent), parent)
    yield gpus
    gpus.close()


def test_nothing_is_known_before_the_first_answer(gpus: Gpus) -> None:
    assert not gpus.is_known and gpus.devices == [] and gpus.reason is None
    gpus.set_unavailable("No NVIDIA driver found.")
    assert gpus.is_known and gpus.reason == "No NVIDIA driver found"


def test_values_come_from_the_driver_and_unknown_is_none(gpus: Gpus) -> None:
    feed_machine(gpus, 2)
    first = gpus.devices[0]
    assert (first.label, first.used_bytes, first.utilisation, first.power_w) == ("GPU 0", 17 * GIB, 0.91, 512)
    gpus.add_line(device_lines.sample("GPU-0000", {"power_w": "unsupported", "utilisation": "error"}))
    gpus.update()
    assert gpus.devices[0].power_w is None and gpus.devices[0].utilisation is None
    assert gpus.reading("GPU-0000", "fan").state == "unsupported"


def test_readings_and_device_changes_have_separate_signals(qtbot: QtBot, gpus: Gpus) -> None:
    feed_machine(gpus, 2)
    signals: list[str] = []
    gpus.changed.connect(lambda: signals.append("changed"))
    gpus.readings_changed.connect(lambda: signals.append("read"))
    gpus.update()
    assert signals == []
    gpus.add_line(device_lines.sample("GPU-0001", used_bytes=17.5 * GIB))
    gpus.update()
    assert signals == ["read"]
    gpus.add_line(device_lines.processes({"GPU-0001": [ProcessUse(7, "python", GIB)]}))
    gpus.update()
    assert signals == ["read", "changed", "read"]
    gpus.add_line(device_lines.notice("lost", "GPU-0001"))
    assert signals[3:] == ["changed", "read"] and gpus.devices[1].lost_at is not None


def test_busy_text_names_the_processes(gpus: Gpus) -> None:
    feed_machine(gpus, 3)
    users = [
        ProcessUse(7, "python", 2 * GIB),
        ProcessUse(8, "python", GIB),
        ProcessUse(9, None, None, foreign=True),
        ProcessUse(10, "Xorg", GIB, "graphics"),
    ]
    gpus.add_line(device_lines.processes({"GPU-0000": users}))
    gpus.add_line(device_lines.processes({"GPU-0001": users}, run="/runs/20260101-000000-mine-00aa"))
    gpus.add_line(device_lines.processes({"GPU-0002": [ProcessUse(10, "Xorg", 19 * GIB, "graphics")]}))
    gpus.update()
    other, mine, desktop = gpus.devices
    assert busy_text(other) == "python 3 GiB, outside this namespace" and not other.is_free
    assert busy_text(mine) == "" and mine.run_name == "20260101-000000-mine-00aa" and not mine.is_free
    assert desktop.is_free, "a desktop is in nobody's way"
    gpus.add_line(device_lines.processes({"GPU-0002": []}))
    gpus.update()
    hidden = gpus.devices[2]
    assert busy_text(hidden) == "unattributed 19 GiB" and not hidden.is_free, (
        "nobody is named, somebody is there"
    )


def test_readings_are_stale_by_age(gpus: Gpus) -> None:
    feed_machine(gpus, 1)
    assert not gpus.devices[0].is_stale
    rows = [device_lines.DeviceReadings("GPU-0000", {"used_bytes": Reading(GIB, age_s=9.0)})]
    gpus.add_line(device_lines.SampleLine(t=0.0, devices=rows))
    gpus.update()
    assert gpus.devices[0].is_stale and gpus.devices[0].last_used_bytes == GIB
    assert gpus.devices[0].utilisation == 0.91, "the other readings are new"


def test_auto_excludes_simulated_busy_mig_and_lost_gpus(gpus: Gpus) -> None:
    """Where there are GPUs a configuration is for GPUs all the same, or for none before one is chosen."""
    assert default_devices("ddp", gpus.devices) == "cpu:4"
    feed_machine(gpus, 2, simulated=True)
    assert gpus.is_simulated and default_devices("ddp", gpus.devices) == "gpu:0,1"
    feed_machine(gpus, 2, busy=(0, 1))
    assert default_devices("ddp", gpus.devices) == NO_DEVICES_CHOSEN
    feed_machine(gpus, 2, busy=(0,))
    assert default_devices("ddp", gpus.devices) == "auto"
    gpus.add_line(device_lines.notice("lost", "GPU-0001"))
    assert default_devices("ddp", gpus.devices) == NO_DEVICES_CHOSEN


def test_auto_and_all_count_the_devices_of_a_run(gpus: Gpus) -> None:
    def count(use: str) -> int | None:
        return gpus.count_devices(parse_devices(use))

    assert (count("auto"), count("gpu:all"), count("cpu:3"), count("gpu:0,2")) == (None, None, 3, 2)
    feed_machine(gpus, 3, busy=(0,))
    assert (count("auto"), count("gpu:all")) == (2, 3)
    gpus.set_unavailable()
    assert (count("auto"), count("gpu:all")) == (NUM_AUTO_VIRTUAL_DEVICES, None)


def test_mig_instances_have_their_own_labels(gpus: Gpus) -> None:
    split = device_lines.gpu(1, mig=True)
    instances = [device_lines.mig_instance(1, index, split) for index in range(2)]
    gpus.add_line(device_lines.devices(device_lines.gpu(0), split, *instances))
    gpus.update()
    assert [gpu.label for gpu in gpus.devices] == ["GPU 0", "GPU 1", "GPU 1.0", "GPU 1.1"]
    assert [gpu.label for gpu in gpus.physical_gpus] == ["GPU 0", "GPU 1"] and not gpus.devices[1].is_usable
