"""The bars say which device leads and by how much, on one scale, at any number of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtGui import QColor, QImage
from pytestqt.qtbot import QtBot

from rankdeck.run.imbalance import find_imbalance
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import text_color_on
from rankdeck_app.widgets.painting import record_painted_text
from rankdeck_app.widgets.vram_bars import LEGEND_HEIGHT, DeviceBar, VramBars, VramBarsData

MIB = 2**20
LEAD = {"parameters": 21 * MIB, "optimizer": 42 * MIB, "activations": 60 * MIB, "gathered": 162 * MIB}
OTHER = {"parameters": 21 * MIB, "activations": 57 * MIB}


def make_data(
    num_devices: int, capacity_bytes: int | None = None, lead: dict[str, int] | None = None
) -> VramBarsData:
    kinds = [LEAD if lead is None else lead] + [OTHER] * (num_devices - 1)
    bars = [DeviceBar(f"Virtual {index}", sum(k.values()), k) for index, k in enumerate(kinds)]
    return VramBarsData(
        tuple(bars), find_imbalance(dict(enumerate(bar.total_bytes for bar in bars))), capacity_bytes
    )


@pytest.fixture
def widget(qtbot: QtBot) -> VramBars:
    bars = VramBars(Theme())
    qtbot.addWidget(bars)
    bars.resize(505, 210)
    bars.show()
    return bars


def pixels(bars: VramBars, color: QColor) -> list[tuple[int, int]]:
    image = bars.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    rgb = color.rgb()
    return [(x, y) for y in range(image.height()) for x in range(image.width()) if image.pixel(x, y) == rgb]


@pytest.mark.parametrize("num_devices", [1, 4, 16])
@pytest.mark.parametrize("name", ["Dark High Contrast", "Light High Contrast", "Dark Modern"])
def test_tracks_are_outlined_in_high_contrast(widget: VramBars, name: str, num_devices: int) -> None:
    widget._theme.load(name)
    widget.set_data(make_data(num_devices, 2**30))
    columns, image = widget._make_layout(), widget.grab().toImage()
    middle, end = int(columns.bar_left + columns.bar_width - 20), round(columns.bar_left + columns.bar_width)
    line, track = (widget._theme.color(key).name() for key in ("contrastBorder", "rankdeck.track"))
    for index in range(num_devices):
        top = columns.top + index * columns.row_height + (columns.row_height - columns.bar_height) / 2
        down = [image.pixelColor(middle, y).name() for y in range(round(top) - 2, round(top) + 3)]
        assert track in down and (line in down) == ("High Contrast" in name)
        across = [image.pixelColor(x, round(top) + 1).name() for x in range(end - 1, end + 2)]
        assert (line in across) == ("High Contrast" in name)


def test_amber_marks_the_lead_device_only(widget: VramBars) -> None:
    widget.set_data(make_data(4))
    hot = QColor(Theme().color("rankdeck.kind.gathered"))
    columns, legend = widget._make_layout(), widget.height() - 2 * LEGEND_HEIGHT
    rows = {columns.row_at(y) for _, y in pixels(widget, hot) if y < legend}
    assert rows == {0}


@pytest.mark.parametrize(("width", "height"), [(270, 190), (270, 92), (310, 180), (505, 210)])
def test_the_excess_is_written_after_or_inside_the_bar(widget: VramBars, width: int, height: int) -> None:
    widget.resize(width, height)
    widget.set_data(make_data(4))
    painted: list[str] = []
    with record_painted_text(painted.append):
        widget.grab()
    assert "+207.0 MiB" in painted


@pytest.mark.parametrize("name", ["Dark Modern", "Light Modern", "Dark High Contrast"])
def test_text_on_amber_is_dark(widget: VramBars, name: str) -> None:
    widget._theme.load(name)
    assert text_color_on(widget._theme.color("rankdeck.kind.gathered")).lightnessF() < 0.2


def test_nothing_is_amber_without_imbalance(widget: VramBars) -> None:
    widget.set_data(make_data(4, lead=OTHER))
    assert widget.data.notable_imbalance is None
    assert pixels(widget, QColor(Theme().color("rankdeck.lead"))) == []


def test_bars_share_one_scale(widget: VramBars) -> None:
    """A device with twice the bytes is drawn twice as wide."""
    bar = DeviceBar("GPU 0", 100 * MIB, {"parameters": 100 * MIB})
    two = DeviceBar("GPU 1", 200 * MIB, {"parameters": 200 * MIB})
    widget.set_data(VramBarsData((bar, two)))
    blue = pixels(widget, QColor(Theme().color("rankdeck.kind.parameters")))
    widths = {}
    for x, y in blue:
        widths.setdefault(y, []).append(x)
    longest = sorted({max(xs) - min(xs) + 1 for xs in widths.values() if len(xs) > 20})
    assert len(longest) == 2
    assert longest[1] == pytest.approx(2 * longest[0], rel=0.02)


def test_a_known_capacity_is_the_scale() -> None:
    assert make_data(4, 1024 * MIB).scale_bytes == 1024 * MIB
    assert make_data(4).scale_bytes == 285 * MIB
    assert make_data(4, 100 * MIB).scale_bytes == 285 * MIB, "a peak above the capacity is not cut off"
    assert make_data(4, 80 * 2**30).unit == (MIB, "MiB"), (
        "small tensors on a large device are not all 0.3 GiB"
    )


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("height", [90, 160, 260])
def test_rows_and_columns_stay_inside_and_apart(qtbot: QtBot, num_devices: int, height: int) -> None:
    bars = VramBars(Theme())
    qtbot.addWidget(bars)
    bars.set_data(make_data(num_devices))
    bars.resize(440, max(height, bars.minimumSizeHint().height()))
    columns = bars._make_layout()
    assert columns.row_height >= 5.5
    assert columns.bar_height < columns.row_height
    assert columns.top + columns.row_height * num_devices <= bars.height()
    assert columns.bar_left < columns.number_left < columns.unit_left
    end = columns.ratio_left if columns.has_ratio else columns.unit_left + columns.unit_width
    assert end <= bars.width() and columns.has_ratio == (num_devices > 1)
    lefts = [left for row in bars._legend_lines() for _, left in row]
    assert all(left < bars.width() for left in lefts)


def test_the_tooltip_has_bytes_by_kind(widget: VramBars) -> None:
    widget.set_data(make_data(2))
    text = widget.bar_tooltip(0)
    assert "285.0 MiB" in text and "gathered outputs" in text and "162.0 MiB" in text


def test_every_colour_is_in_the_legend_or_counted(widget: VramBars) -> None:
    widget.set_data(make_data(4))
    for width, height in ((505, 210), (270, 110), (270, 60)):
        widget.resize(width, height)
        names = [entry.text for line in widget._legend_lines() for entry, _ in line]
        left_out = len(widget._legend()) - len(names) + (height == 60)
        assert names[-1] == f"+{left_out}" if height == 60 else left_out == 0
    assert "parameters, " in widget.tooltip_at(20, widget.height() - 4)


def test_unknown_is_a_dash_and_not_a_zero(widget: VramBars) -> None:
    widget.set_data(VramBarsData((DeviceBar("GPU 0", None), DeviceBar("GPU 1", None))))
    assert "not known" in widget.bar_tooltip(0)
    assert "GPU 0: unknown" in widget.accessibleDescription()
    widget.grab()


def test_a_change_of_theme_repaints(widget: VramBars) -> None:
    theme = Theme()
    bars = VramBars(theme)
    bars.set_data(make_data(4))
    bars.resize(505, 210)
    before = bars.grab().toImage()
    theme.load("Light Modern")
    assert bars.grab().toImage() != before
    bars.deleteLater()


def test_ghost_bars_show_the_predicted_fix(widget: VramBars) -> None:
    plain = make_data(4)
    lead, *others = plain.bars
    bars = (replace(lead, ghost_bytes=150 * MIB), *(replace(bar, ghost_bytes=150 * MIB) for bar in others))
    widget.set_data(replace(plain, bars=bars, ghost="with DDP, predicted"))
    ink = Theme().color("foreground")
    columns = widget._make_layout()
    end = round(columns.bar_left + 150 * MIB * columns.bar_width / widget.data.scale_bytes)
    framed = {columns.row_at(y) for x, y in pixels(widget, ink) if abs(x - end) <= 2}
    assert framed >= {0, 1, 2, 3}
    assert "with DDP, predicted" in [entry.text for line in widget._legend_lines() for entry, _ in line]
    assert "with DDP, predicted: 150.0 MiB" in widget.bar_tooltip(1)
    # A ghost that needs more than anything now has room on the scale.
    assert replace(plain, bars=(replace(lead, ghost_bytes=900 * MIB),)).scale_bytes == 900 * MIB
    widget.set_data(plain)
    assert not [xy for xy in pixels(widget, ink) if abs(xy[0] - end) <= 1 and columns.row_at(xy[1]) == 1]
