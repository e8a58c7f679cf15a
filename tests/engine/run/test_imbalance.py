"""The lead device is compared with the median of the others."""

from __future__ import annotations

import pytest

from rankdeck.cli.formatting import imbalance_text
from rankdeck.run.imbalance import Imbalance, find_imbalance, lead_device
from rankdeck.run.summary import ImbalanceSummary


def test_imbalance_compares_the_lead_with_the_median_of_the_others() -> None:
    imbalance = find_imbalance({0: 400, 1: 100, 2: 100, 3: 340})
    assert imbalance == Imbalance(device=0, median_bytes=100.0, excess_bytes=300.0, ratio=4.0, num_others=3)
    assert lead_device(imbalance) == 0


def test_of_two_devices_the_other_one_is_the_median() -> None:
    assert find_imbalance({0: 105, 1: 100, 2: None}) == Imbalance(0, 100.0, 5.0, 1.05)
    assert lead_device(find_imbalance({0: 105, 1: 100})) is None


def test_one_known_device_has_no_imbalance() -> None:
    assert find_imbalance({0: 400, 1: None}) is None


@pytest.mark.parametrize(
    ("excess_bytes", "ratio", "text"),
    [
        (3 << 30, 4.0, "device 0 is 3.0 GiB above the median of the others (4.0×)"),
        (3 << 30, None, "device 0 is 3.0 GiB above the median of the others"),
        (0, 1.0, "balanced"),
        (4 << 20, 1.04, "balanced"),
        (0, None, "balanced"),
    ],
)
def test_equal_devices_are_balanced(excess_bytes: int, ratio: float | None, text: str) -> None:
    assert imbalance_text(ImbalanceSummary(0, excess_bytes, ratio)) == text
