"""Which host of a run is silent: by when it was heard here, whatever its clock says."""

from __future__ import annotations

from rankdeck.events import DeviceInfo
from rankdeck.run.devices import DeviceFigures
from rankdeck_app.state.heard import Heard


def device(index: int, host: str, read_s: float) -> DeviceFigures:
    info = DeviceInfo(index, f"Virtual {index}", "virtual", host=host)
    return DeviceFigures(index, info, {}, read_s=read_s)


def test_a_host_is_silent_from_three_seconds_after_the_last_reading_of_any_of_its_devices() -> None:
    now = 100.0
    heard = Heard(lambda: now)
    heard.take([device(0, "box1", 1.0), device(1, "box2", 1.0), device(2, "box2", 1.0)])
    now = 102.9
    assert heard.silent() == {}
    heard.take([device(0, "box1", 2.0), device(1, "box2", 1.0), device(2, "box2", 1.0)])
    now = 104.2
    assert heard.silent() == {"box2": 4}
    heard.take([device(2, "box2", 2.0)])
    assert heard.silent() == {}
    now = 200.0
    assert heard.silent() == {"box1": 97, "box2": 95}


def test_a_run_of_one_host_and_a_device_that_was_never_read_are_never_silent() -> None:
    now = 0.0
    heard = Heard(lambda: now)
    heard.take([device(0, "", 1.0)])
    now = 60.0
    assert heard.silent() == {}
