"""What a run keeps of its devices' readings, and a sampler that has to begin again."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from rankdeck import events
from rankdeck.run_dir import EventReader, RunDir, create_run_dir
from rankdeck.telemetry import sampler_process
from rankdeck.telemetry.readings import Device, DevicesLine
from rankdeck.telemetry.run_sink import RunSink
from rankdeck.telemetry.sampler_process import SamplerProcess
from tests.helpers.launching import small_config
from tests.helpers.nvmlsim import DRIVER_NOT_LOADED, SimulatedGpus
from tests.helpers.waiting import wait_until

GPUS = [events.DeviceInfo(index, "H100", "gpu", f"GPU-{index}", 1) for index in range(2)]


def test_a_missing_gpu_of_the_run_is_lost(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path, small_config(tmp_path), {"devices": msgspec.to_builtins(GPUS)})
    sink = RunSink(run.path, 0, [])
    there = [Device(uuid=f"GPU-{index}", index=index, name="H100", total_bytes=1) for index in (0, 5)]
    sink(DevicesLine(devices=there))
    run_events = [event for _, event in EventReader(RunDir(run.path)).read()]
    notices = [event for event in run_events if isinstance(event, events.DeviceNotice)]
    assert [(notice.code, notice.device) for notice in notices] == [("lost", 1)]


def test_a_sampler_waits_for_a_run_that_is_being_moved(
    tmp_path: Path,
) -> None:
    run = create_run_dir(tmp_path, small_config(tmp_path), {"devices": msgspec.to_builtins(GPUS)})
    moved = run.path.rename(tmp_path / "moved")
    leading = threading.Timer(0.1, run.path.symlink_to, [moved])
    leading.start()
    assert RunSink(run.path, 0, []).uuids == ["GPU-0", "GPU-1"]
    leading.join()


def test_the_restart_pause_doubles_for_short_lived_samplers() -> None:
    sampler = SamplerProcess(["--no-such-option"], piped=False, first_pause_s=0.01)
    pauses_s = []
    for lived_s in (0.0, 0.0, 2 * sampler_process.HEALTHY_AFTER_S):
        # A poll of one that lives might already hear of its end.
        wait_until(lambda: sampler.pid or sampler.poll() or sampler.pid, what="a sampler")
        sampler._started_s -= lived_s
        wait_until(sampler.poll, what="word of its end")
        pauses_s.append(sampler._pause_s)
    sampler.stop()
    assert pauses_s == [0.02, 0.04, 0.02]


def test_a_sampler_suspended_with_its_watcher_is_not_hanging() -> None:
    sampler = SamplerProcess(piped=True)
    try:
        pid = sampler.pid
        # As after a frozen cgroup: both have stood still, and the clock has not.
        sampler._started_s -= 2 * sampler_process.HANG_TIMEOUT_S
        sampler._polled_s -= 2 * sampler_process.HANG_TIMEOUT_S
        assert not sampler.poll() and sampler.pid == pid
        sampler._resumed_s -= 2 * sampler_process.HANG_TIMEOUT_S
        (notice,) = sampler.poll()
        assert "has not answered" in notice.message
    finally:
        sampler.stop()


def test_a_missing_driver_is_reported_once_and_retried(
    gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gpus.driver_environment.items():
        monkeypatch.setenv(name, value)
    gpus.state.init_error = DRIVER_NOT_LOADED
    sampler, notices = SamplerProcess(["--once"], piped=False, first_pause_s=0.01), []

    def has_tried_thrice() -> bool:
        notices.extend(sampler.poll())
        return sampler._pause_s >= 0.08

    wait_until(has_tried_thrice, deadline_s=20, what="three samplers")
    assert [notice.code for notice in notices] == ["restarted"]
    gpus.state.init_error = 0
    wait_until(lambda: sampler.poll() or sampler.exit_code == 0, deadline_s=20, what="a sampler that reads")
    sampler.stop()
