"""XID errors are told at once, and a storm of them as a number."""

from __future__ import annotations

from rankdeck.telemetry.nvml_calls import NvmlGpu
from rankdeck.telemetry.nvml_events import MAX_KINDS, REPEAT_NOTICE_S, XidEvents
from rankdeck.telemetry.readings import Device, NoticeLine

GPUS = {
    f"GPU-{index}": NvmlGpu(Device(uuid=f"GPU-{index}", index=index, name="H100"), None) for index in (0, 1)
}


def notice_rows(notices: list[NoticeLine]) -> list[tuple[str | None, int | None, int]]:
    return [(notice.uuid, notice.xid, notice.count) for notice in notices]


def test_repeated_errors_are_reported_once_a_minute() -> None:
    xids = XidEvents(GPUS)
    xids.add("GPU-1", 31)
    assert notice_rows(xids.notices(1.0)) == [("GPU-1", 31, 1)]
    notices = []
    for millisecond in range(90_000):
        xids.add("GPU-1", 31)
        notices += xids.notices(1.0 + millisecond / 1000)
    assert notice_rows(notices) == [("GPU-1", 31, 60_001)]
    assert "occurrences in 60 s: 60001." in notices[0].message and "XID 31" in notices[0].message
    assert notice_rows(xids.notices(91.0, at_end=True)) == [("GPU-1", 31, 29_999)]
    assert not xids.notices(200.0, at_end=True)


def test_each_number_and_gpu_is_reported_at_once() -> None:
    xids = XidEvents(GPUS)
    for uuid, number in (("GPU-0", 31), ("GPU-0", 48), ("GPU-1", 31), (None, 31)):
        xids.add(uuid, number)
        assert notice_rows(xids.notices(1.0)) == [(uuid, number, 1)]


def test_a_later_error_is_reported_like_the_first() -> None:
    xids = XidEvents(GPUS)
    xids.add("GPU-0", 31)
    (first,) = xids.notices(1.0)
    assert not xids.notices(1.0 + REPEAT_NOTICE_S)
    xids.add("GPU-0", 31)
    (again,) = xids.notices(2.0 + 2 * REPEAT_NOTICE_S)
    assert again.message == first.message


def test_too_many_numbers_are_counted_together() -> None:
    xids = XidEvents(GPUS)
    notices = []
    for number in range(1, 2000):
        xids.add("GPU-0", number)
        notices += xids.notices(number / 1000)
    notices += xids.notices(3.0, at_end=True)
    assert len(notices) == MAX_KINDS + 2
    assert sum(notice.count for notice in notices) == 1999
    assert "XID errors with other numbers" in notices[-1].message
