"""What a run keeps of its devices' readings, and a sampler that has to begin again."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from rankdeck import events
from rankdeck.rundir import EventReader, RunDir, create
from rankdeck.telemetry import sampler_process
from rankdeck.telemetry.readings import Device, DevicesLine
from rankdeck.telemetry.run_sink import RunSink
from rankdeck.telemetry.sampler_process import SamplerProcess
from tests.helpers.launching import small_config
from tests.helpers.nvmlsim import DRIVER_NOT_LOADED, SimulatedGpus
from tests.helpers.waiting import wait_until

GPUS = [events.DeviceInfo(index, "H100", "gpu", f"GPU-{index}", 1) for index in range(2)]


def test_a_gpu_of_the_run_that_is_not_there_any_more_is_lost(tmp_path: Path) -> None:
    run = create(tmp_path, small_config(tmp_path), {"devices": msgspec.to_builtins(GPUS)})
    sink = RunSink(run.path, 0, [])
    there = [Device(uuid=f"GPU-{index}", index=index, name="H100", total_bytes=1) for index in (0, 5)]
    sink(DevicesLine(devices=there))
    told = [event for _, event in EventReader(RunDir(run.path)).read()]
    notices = [event for event in told if isinstance(event, events.DeviceNotice)]
    assert [(one.code, one.device) for one in notices] == [("lost", 1)]


def test_a_sampler_that_starts_while_its_run_is_moved_waits_for_it(
    tmp_path: Path,
) -> None:
    run = create(tmp_path, small_config(tmp_path), {"devices": msgspec.to_builtins(GPUS)})
    moved = run.path.rename(tmp_path / "moved")
    leading = threading.Timer(0.1, run.path.symlink_to, [moved])
    leading.start()
    assert RunSink(run.path, 0, []).uuids == ["GPU-0", "GPU-1"]
    leading.join()


def test_only_a_sampler_that_ends_soon_is_waited_for_longer_each_time() -> None:
    sampler = SamplerProcess(["--no-such-option"], piped=False, first_pause_s=0.01)
    pauses_s = []
    for lived_s in (0.0, 0.0, 2 * sampler_process.WELL_AFTER_S):
        # A poll of one that lives might already hear of its end.
        wait_until(lambda: sampler.pid or sampler.poll() or sampler.pid, what="a sampler")
        sampler._began_s -= lived_s
        wait_until(sampler.poll, what="word of its end")
        pauses_s.append(sampler._pause_s)
    sampler.stop()
    assert pauses_s == [0.02, 0.04, 0.02]


def test_a_sampler_that_was_suspended_with_its_watcher_is_not_taken_for_one_that_hangs() -> None:
    sampler = SamplerProcess(piped=True)
    try:
        begun = sampler.pid
        # As after a frozen cgroup: both have stood still, and the clock has not.
        sampler._began_s -= 2 * sampler_process.HANGS_AFTER_S
        sampler._looked_s -= 2 * sampler_process.HANGS_AFTER_S
        assert not sampler.poll() and sampler.pid == begun
        sampler._woke_s -= 2 * sampler_process.HANGS_AFTER_S
        (told,) = sampler.poll()
        assert "has not answered" in told.message
    finally:
        sampler.stop()


def test_a_runs_driver_that_is_away_is_told_once_and_waited_for(
    gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gpus.as_installed.items():
        monkeypatch.setenv(name, value)
    gpus.state.init_error = DRIVER_NOT_LOADED
    sampler, told = SamplerProcess(["--once"], piped=False, first_pause_s=0.01), []

    def has_tried_thrice() -> bool:
        told.extend(sampler.poll())
        return sampler._pause_s >= 0.08

    wait_until(has_tried_thrice, deadline_s=20, what="three samplers")
    assert [notice.code for notice in told] == ["restarted"]
    gpus.state.init_error = 0
    wait_until(lambda: sampler.poll() or sampler.exit_code == 0, deadline_s=20, what="a sampler that reads")
    sampler.stop()
