"""Every way to write devices, and what is said of every other."""

from __future__ import annotations

import pytest

from rankdeck.base.errors import DeviceError
from rankdeck.config.devices import DeviceSelection, parse_devices


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("auto", DeviceSelection("auto")),
        ("cpu", DeviceSelection("cpu", 1)),
        ("cpu:4", DeviceSelection("cpu", 4)),
        ("gpu:all", DeviceSelection("gpu")),
        ("gpu:0, 2", DeviceSelection("gpu", gpus=("0", "2"))),
        ("cuda:1", DeviceSelection("gpu", gpus=("1",))),
        ("gpu:GPU-12ab-34", DeviceSelection("gpu", gpus=("GPU-12ab-34",))),
    ],
)
def test_devices_are_parsed(text: str, selection: DeviceSelection) -> None:
    assert parse_devices(text) == selection


def test_the_device_count_is_known_only_if_it_is_written() -> None:
    counts = [parse_devices(text).known_count for text in ("cpu:4", "gpu:0,2", "gpu:all", "auto")]
    assert counts == [4, 2, None, None]


@pytest.mark.parametrize(
    "text", ["", "tpu:0", "cpu:0", "cpu:65", "cpu:two", "gpu", "gpu:", "gpu:0,x", "gpu:0,0", "auto:2"]
)
def test_invalid_devices_are_refused_with_advice(text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        parse_devices(text)
    assert caught.value.advice
