"""Rows of devices of several hosts: the host's name stands along its rows, or in every row's own name."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.widgets.device_rows import DeviceRows, HostLabels

LABELS = ["box1 GPU 0", "box1 GPU 1", "box2 GPU 2", "box2 GPU 3"]
HOSTS = ["box1", "box1", "box2", "box2"]


def test_the_host_name_is_not_repeated_in_each_row(qtbot: QtBot) -> None:
    marks = HostLabels(LABELS, HOSTS, 30.0)
    assert marks.names == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"] and marks.width > 0


@pytest.mark.parametrize(
    ("labels", "hosts", "row_height"),
    [
        (LABELS, HOSTS, 8.0),
        (["a-very-long-one GPU 0", "b GPU 1"], ["a-very-long-one", "b"], 30.0),
        (["GPU 0", "GPU 1"], ["", ""], 30.0),
        (["GPU 0", "GPU 1"], [], 30.0),
        ([], [], 30.0),
    ],
    ids=["thin", "long", "one host", "not told", "nothing"],
)
def test_rows_keep_their_names_without_room_or_host(
    qtbot: QtBot, labels: list[str], hosts: list[str], row_height: float
) -> None:
    marks = HostLabels(labels, hosts, row_height)
    assert marks.names == labels and marks.width == 0


def test_plots_start_right_of_the_host_labels(qtbot: QtBot) -> None:
    plain = DeviceRows(
        [name.split(" ", 1)[1] for name in LABELS], 400, 160, max_row_height=64, number_width=40
    )
    marked = DeviceRows(LABELS, 400, 160, max_row_height=64, number_width=40, hosts=HOSTS)
    assert marked.plot.left() == plain.plot.left() + HostLabels(LABELS, HOSTS, 40.0).width
    assert marked.row(2).top() == plain.row(2).top()
