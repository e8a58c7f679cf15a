"""Which host of a run is silent: by when it was heard here, whatever its clock says."""

from __future__ import annotations

from rankdeck.events import DeviceInfo
from rankdeck.run.devices import DeviceState
from rankdeck_app.state.host_liveness import HostLiveness


def make_device(index: int, host: str, read_s: float) -> DeviceState:
    info = DeviceInfo(index, f"Virtual {index}", "virtual", host=host)
    return DeviceState(index, info, {}, observed_s=read_s)


def test_a_host_is_silent_three_seconds_after_its_last_reading() -> None:
    now = 100.0
    liveness = HostLiveness(lambda: now)
    liveness.update([make_device(0, "box1", 1.0), make_device(1, "box2", 1.0), make_device(2, "box2", 1.0)])
    now = 102.9
    assert liveness.silent_hosts() == {}
    liveness.update([make_device(0, "box1", 2.0), make_device(1, "box2", 1.0), make_device(2, "box2", 1.0)])
    now = 104.2
    assert liveness.silent_hosts() == {"box2": 4}
    liveness.update([make_device(2, "box2", 2.0)])
    assert liveness.silent_hosts() == {}
    now = 200.0
    assert liveness.silent_hosts() == {"box1": 97, "box2": 95}


def test_local_and_unread_devices_are_never_silent() -> None:
    now = 0.0
    liveness = HostLiveness(lambda: now)
    liveness.update([make_device(0, "", 1.0)])
    now = 60.0
    assert liveness.silent_hosts() == {}
