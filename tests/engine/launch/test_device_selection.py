"""Which devices a run gets. The driver is made up here; everything above it is real."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rankdeck.base.errors import DeviceError, MachineError
from rankdeck.base.files import lease_holder, lease_path
from rankdeck.events import ProcessUse
from rankdeck.launch.device_selection import ChosenDevices, choose_devices, choose_script_devices
from rankdeck.telemetry.gpu_status import GpuStatus
from tests.helpers.launching import small_config
from tests.helpers.scripts import script_config

GIB = 2**30


def make_gpu(index: int, *processes: ProcessUse) -> GpuStatus:
    uuid, total_bytes = f"GPU-0000000{index}", 80 * GIB
    return GpuStatus(
        index=index, uuid=uuid, name="H100", total_bytes=total_bytes, used_bytes=0, processes=processes
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[GpuStatus]:
    """The machine's GPUs; a test may change the list."""
    devices = [make_gpu(0), make_gpu(1), make_gpu(2)]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("rankdeck.launch.device_selection.list_gpus", lambda: devices)
    return devices


@contextmanager
def hold_lease(uuid: str, run: str) -> Iterator[None]:
    path = lease_path(uuid)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.write(handle, run.encode())
    try:
        yield
    finally:
        os.close(handle)


def chosen_uuids(tmp_path: Path, use: str, **tables: Any) -> list[str | None]:
    choice = choose_devices(small_config(tmp_path, {"devices": {"use": use}, **tables}))
    assert [info.index for info in choice.devices] == list(range(len(choice.devices)))
    assert [path.stem for path in choice.leases] == [info.uuid for info in choice.devices if info.uuid]
    return [info.uuid or info.name for info in choice.devices]


def test_virtual_devices_have_the_pretended_capacity_and_no_lease(tmp_path: Path) -> None:
    tables = {"devices": {"use": "cpu:2"}, "rehearsal": {"capacity": "24GiB"}}
    choice = choose_devices(small_config(tmp_path, tables))
    assert [(info.name, info.kind, info.uuid, info.total_bytes) for info in choice.devices] == [
        ("Virtual 0", "virtual", None, 24 * GIB),
        ("Virtual 1", "virtual", None, 24 * GIB),
    ]
    assert not choice.leases


def test_gpus_are_chosen_by_index_uuid_or_all(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    assert chosen_uuids(tmp_path, "gpu:2,0") == ["GPU-00000002", "GPU-00000000"]
    assert chosen_uuids(tmp_path, "gpu:GPU-00000001,0") == ["GPU-00000001", "GPU-00000000"]
    assert chosen_uuids(tmp_path, "gpu:all", train={"global_batch": 30}) == [gpu.uuid for gpu in gpus]


def test_an_unknown_gpu_is_refused_with_a_list_of_gpus(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    with pytest.raises(DeviceError) as caught:
        chosen_uuids(tmp_path, "gpu:0,7")
    assert "There is no GPU 7" in caught.value.message
    assert "2 (H100, GPU-00000002)" in (caught.value.advice or "")
    with pytest.raises(DeviceError, match="twice"):
        chosen_uuids(tmp_path, "gpu:0,GPU-00000000")


def test_a_leased_gpu_is_refused_and_left_out_by_auto(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    with hold_lease("GPU-00000001", "/runs/other-run"):
        assert lease_holder("GPU-00000001") == "/runs/other-run"
        with pytest.raises(DeviceError, match="used by the run other-run") as caught:
            chosen_uuids(tmp_path, "gpu:1")
        assert "rankdeck stop other-run" in (caught.value.advice or "")
        assert chosen_uuids(tmp_path, "auto") == ["GPU-00000000", "GPU-00000002"]
    assert lease_holder("GPU-00000001") is None


def test_a_gpu_with_a_foreign_process_warns_and_is_skipped_by_auto(
    tmp_path: Path, gpus: list[GpuStatus]
) -> None:
    gpus[0] = make_gpu(0, ProcessUse(4711, "python", 3 * GIB))
    gpus[2] = make_gpu(2, ProcessUse(4712, "Xorg", GIB, type="graphics"))
    choice = choose_devices(small_config(tmp_path, {"devices": {"use": "gpu:0,2"}}))
    (warning,) = choice.warnings
    assert warning.severity == "warning"
    assert "GPU 0" in warning.message and "python" in warning.message and "3.0 GiB" in warning.message
    assert chosen_uuids(tmp_path, "auto") == ["GPU-00000001", "GPU-00000002"]


def test_unaccounted_gpu_memory_warns_and_is_skipped_by_auto(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    gpus[0] = replace(make_gpu(0), used_bytes=6 * GIB)
    gpus[1] = replace(make_gpu(1, ProcessUse(1, "Xorg", 2 * GIB, type="graphics")), used_bytes=2 * GIB)
    (warning,) = choose_devices(small_config(tmp_path, {"devices": {"use": "gpu:0,1"}})).warnings
    assert "6.0 GiB of GPU 0" in warning.message and "container" in warning.message
    assert chosen_uuids(tmp_path, "auto") == ["GPU-00000001", "GPU-00000002"]


def test_auto_uses_two_virtual_devices_where_no_gpu_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver() -> list[GpuStatus]:
        raise MachineError("No NVIDIA driver found.")

    monkeypatch.setattr("rankdeck.launch.device_selection.list_gpus", no_driver)
    assert chosen_uuids(tmp_path, "auto") == ["Virtual 0", "Virtual 1"]


def test_single_uses_the_first_device_and_warns(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    tables = {"devices": {"use": "gpu:all"}, "strategy": {"use": "single"}}
    choice = choose_devices(small_config(tmp_path, tables))
    assert [info.uuid for info in choice.devices] == ["GPU-00000000"] and len(choice.leases) == 1
    assert "the other 2 devices stay unused" in choice.warnings[0].message
    tables["devices"] = {"use": "auto"}
    assert choose_devices(small_config(tmp_path, tables)).warnings == [], "none of them was asked for"


def test_a_mig_instance_is_chosen_by_uuid_and_its_gpu_is_refused(
    tmp_path: Path, gpus: list[GpuStatus]
) -> None:
    gpus[0] = replace(make_gpu(0), mig=True)
    gpus.insert(1, replace(make_gpu(0), uuid="MIG-0000000a", parent="GPU-00000000"))
    gpus.insert(2, replace(make_gpu(0), uuid="MIG-0000000b", parent="GPU-00000000"))
    assert chosen_uuids(tmp_path, "gpu:MIG-0000000a", strategy={"use": "single"}) == ["MIG-0000000a"]
    with pytest.raises(DeviceError, match="split into MIG instances") as caught:
        chosen_uuids(tmp_path, "gpu:0")
    assert "MIG-0000000a or MIG-0000000b" in (caught.value.advice or "")
    with pytest.raises(DeviceError, match="only one MIG instance"):
        chosen_uuids(tmp_path, "gpu:MIG-0000000a,MIG-0000000b")
    for use in ("auto", "gpu:all"):
        assert chosen_uuids(tmp_path, use) == ["GPU-00000001", "GPU-00000002"]


def test_a_lost_gpu_is_refused_and_skipped_by_auto(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    gpus[1] = replace(make_gpu(1), lost_at=1.0, used_bytes=None)
    with pytest.raises(DeviceError, match="is lost: the driver"):
        chosen_uuids(tmp_path, "gpu:0,1")
    assert chosen_uuids(tmp_path, "gpu:all") == ["GPU-00000000", "GPU-00000002"]


def test_a_script_runs_on_a_gpu_with_a_duplicate_uuid(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    gpus[1] = replace(make_gpu(1), uuid=f"{gpus[0].uuid}#1")
    choice = choose_script_devices(script_config(tmp_path, "", ranks=1))
    assert [info.uuid for info in choice.devices] == [gpu.uuid for gpu in gpus]


def test_simulated_gpus_are_refused_and_auto_uses_virtual_devices(
    tmp_path: Path, gpus: list[GpuStatus]
) -> None:
    gpus[:] = [replace(gpu, simulated=True) for gpu in gpus]
    for use in ("gpu:0", "gpu:all"):
        with pytest.raises(DeviceError, match="simulated"):
            chosen_uuids(tmp_path, use)
    assert chosen_uuids(tmp_path, "auto") == ["Virtual 0", "Virtual 1"]


@pytest.mark.parametrize("value", ["2,0", "GPU-00000002,GPU-00000000", "2,0,9,1"])
def test_auto_and_all_respect_cuda_visible_devices(
    tmp_path: Path, gpus: list[GpuStatus], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    for use in ("auto", "gpu:all"):
        assert chosen_uuids(tmp_path, use) == ["GPU-00000002", "GPU-00000000"]
    assert chosen_uuids(tmp_path, "gpu:1") == ["GPU-00000001"]


def test_empty_cuda_visible_devices_fails_for_all_only(
    tmp_path: Path, gpus: list[GpuStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert chosen_uuids(tmp_path, "auto") == ["Virtual 0", "Virtual 1"]
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES= hides all 3 GPUs"):
        chosen_uuids(tmp_path, "gpu:all")


def test_visible_indices_in_an_unknown_device_order_are_refused(
    tmp_path: Path, gpus: list[GpuStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus[0] = replace(make_gpu(0), name="RTX 4090")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(DeviceError, match="CUDA's own order"):
        chosen_uuids(tmp_path, "gpu:all")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert chosen_uuids(tmp_path, "gpu:all") == ["GPU-00000001"]


def choose_for_script(tmp_path: Path, devices: str | None, **table: Any) -> ChosenDevices:
    return choose_script_devices(script_config(tmp_path, "", devices=devices, **table))


def test_gpus_named_for_a_script_are_leased(tmp_path: Path, gpus: list[GpuStatus]) -> None:
    choice = choose_for_script(tmp_path, "gpu:0,2")
    assert [info.uuid for info in choice.devices] == [gpus[0].uuid, gpus[2].uuid]
    assert [path.stem for path in choice.leases] == [gpus[0].uuid, gpus[2].uuid]
    with hold_lease(gpus[2].uuid, "/runs/other"), pytest.raises(DeviceError, match="other"):
        choose_for_script(tmp_path, "gpu:0,2")


def test_a_script_without_named_gpus_watches_the_visible_ones(
    tmp_path: Path, gpus: list[GpuStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is leased and nothing refused; whoever holds a GPU is told of."""
    assert len(choose_for_script(tmp_path, None).devices) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    with hold_lease(gpus[0].uuid, "/runs/other"):
        choice = choose_for_script(tmp_path, None)
    assert [info.uuid for info in choice.devices] == [gpus[2].uuid, gpus[0].uuid]
    assert not choice.leases
    (warning,) = choice.warnings
    assert warning.severity == "warning" and "other" in warning.message
    selection = choose_for_script(tmp_path, None, environment={"CUDA_VISIBLE_DEVICES": "1"})
    assert [info.uuid for info in selection.devices] == [gpus[1].uuid]


def test_a_script_is_not_refused_for_an_unknown_device_order(
    tmp_path: Path, gpus: list[GpuStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus[1] = replace(gpus[1], name="A100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    choice = choose_for_script(tmp_path, None, ranks=2)
    assert [info.name for info in choice.devices] == ["CPU 0", "CPU 1"]
    assert [warning.code for warning in choice.warnings] == ["visible-devices"]


def test_a_script_without_gpus_has_a_device_for_each_rank(
    tmp_path: Path, gpus: list[GpuStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [info.kind for info in choose_for_script(tmp_path, "cpu:2", ranks=2).devices] == [
        "virtual",
        "virtual",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    choice = choose_for_script(tmp_path, None, ranks=3)
    assert [info.name for info in choice.devices] == ["CPU 0", "CPU 1", "CPU 2"]
    assert not choice.leases and not choice.warnings
