"""Axes have ticks enough to tell their scale, and moments read well."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.widgets.plot_axes import CountAxis, TimeAxis, ValueAxis, count_ticks, log_ticks
from rankdeck_app.widgets.time_text import age_text, ago_label, elapsed_label, time_label


@pytest.mark.parametrize("size", [110, 160, 240, 480, 1200])
@pytest.mark.parametrize("span", [2.5, 7, 17, 43, 99, 150, 1015, 12_345, 1e6])
@pytest.mark.parametrize("start", [0.0, 13.7])
def test_every_axis_has_three_visible_ticks(qtbot: QtBot, size: float, span: float, start: float) -> None:
    for axis in (CountAxis(), TimeAxis()):
        [(spacing, _)] = axis.tickSpacing(start, start + span, size)
        if spacing > 1 or type(axis) is TimeAxis:
            assert count_ticks(spacing, start, start + span, size) >= 3
        assert type(axis) is TimeAxis or spacing == int(spacing)


@pytest.mark.parametrize("size", [48, 65, 110, 240, 600])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1650.0), (0.9, 4.3), (0.0, 350.0), (0.0, 1.0), (1.98, 2.01)])
def test_value_axes_have_two_to_eight_separate_labels(
    qtbot: QtBot, size: float, low: float, high: float
) -> None:
    axis = ValueAxis("left")
    [(spacing, values)] = axis.tickValues(low, high, size)
    pixels = [size * (value - low) / (high - low) for value in values]
    written = [at for at in pixels if at <= size - 7]
    assert 2 <= len(written) <= 10
    assert size * spacing / (high - low) >= 13


def test_live_ticks_count_back_from_now(qtbot: QtBot) -> None:
    axis = TimeAxis()
    axis.now_s = 143.0
    [(spacing, values)] = axis.tickValues(83.0, 143.0, 240)
    assert axis.tickStrings(values, 1.0, spacing) == ["-60 s", "-45 s", "-30 s", "-15 s", "now"]
    axis.now_s = None
    [(spacing, values)] = axis.tickValues(83.0, 143.0, 240)
    assert axis.tickStrings(values, 1.0, spacing)[0] == "1:30"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.28, 0.9), (0.86, 0.88), (-6, 2), (-0.1, 0.1)])
def test_a_logarithmic_axis_has_ticks_at_round_values(low: float, high: float) -> None:
    ticks = log_ticks(low, high, 160)
    assert 3 <= len(ticks) <= 16 and all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    assert all(len(f"{10**tick:.3g}") <= 6 for tick in ticks)


def test_times_are_formatted() -> None:
    assert [ago_label(s) for s in (0, -40, -600, -7200)] == ["now", "-40 s", "-10 min", "-2 h"]
    assert [age_text(s) for s in (0.4, 2.9, 61, 7300)] == [
        "just now", "2 s ago", "1 min ago", "2 h ago",
    ]  # fmt: skip
    assert elapsed_label(0.25, 0.05) == "0.25 s"
    assert [time_label(s) for s in (0.31, 42, -0.01, -200)] == ["0.3 s", "0:42", "0.0 s", "-3:20"]
