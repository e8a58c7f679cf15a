"""The Devices tab says the truth of every GPU: load, trouble, parts, holders; and what it does not know."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from rankdeck.config.devices import parse_devices
from rankdeck.events import DeviceInfo
from rankdeck.telemetry.readings import indexed_uuid
from rankdeck_app.composition import App
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.views.devices import gpu_chart_data
from rankdeck_app.views.devices.page import DevicesPage
from rankdeck_app.views.launch.host_devices import gpu_tooltip_lines
from rankdeck_app.views.problems import ProblemsView
from tests.app.conftest import process_events
from tests.helpers import device_lines
from tests.helpers.app_window import open_run
from tests.helpers.card_grids import check_grid
from tests.helpers.device_lines import GIB, ProcessUse, feed_machine
from tests.helpers.written_run import MIB, WrittenRun, device_infos


@pytest.fixture
def app(make_app: Callable[[], App], monkeypatch: pytest.MonkeyPatch) -> App:
    """An app whose own sampler is left out: lines are fed by the test."""
    monkeypatch.setattr(Gpus, "start", lambda _gpus: None)
    return make_app()


def open_devices_page(app: App) -> DevicesPage:
    """The tab; no fixture, for a fixture would keep it alive."""
    feed_machine(app.session.gpus, 8)
    app.window.resize(1440, 900)
    app.window.commands.run("devices.show")
    page = app.window.editor.active_page()
    assert isinstance(page, DevicesPage)
    return page


def row_texts(page: DevicesPage, label: str) -> dict[str, str]:
    """Cells of a row by the title of their column."""
    redraw(page)
    row = next(row for row in page.table.data.rows if row.label == label)
    return {column.title: cell.text for column, cell in zip(page.table._columns, row.cells, strict=True)}


def redraw(page: DevicesPage) -> None:
    page._gpus.update()
    page._redraw()


def test_every_metric_of_every_device_is_in_the_table(app: App) -> None:
    page = open_devices_page(app)
    assert len(page.table.data.rows) == 8
    texts = row_texts(page, "GPU 3")
    assert texts == {
        "VRAM": "20.0 GiB",
        "Busy": "91%",
        "Power": "512 W",
        "Temp": "64°C",
        "SM clock": "1980",
        "Mem clock": "2619",
        "Fan": "n/a",
        "Throttled by": "none",
        "Errors": "none",
        "Held by": "no process",
    }
    assert page.breadcrumbs() == ["devices", "8 × NVIDIA H100 80GB HBM3", "driver 580.00.00"]


def test_troubles_are_named_and_highlighted(app: App) -> None:
    page = open_devices_page(app)
    gpus = app.session.gpus
    gpus.add_line(device_lines.sample("GPU-0001", throttle=0x24, ecc_errors=2, temperature_c=95))
    gpus.add_line(device_lines.notice("xid", "GPU-0001", "GPU 1: XID 63, a row was replaced.", xid=63))
    texts = row_texts(page, "GPU 1")
    assert texts["Throttled by"] == "power limit, thermal limit" and texts["Errors"] == "XID 63, 2 ECC"
    row = page.table.data.rows[1]
    hot = {c.title for c, cell in zip(page.table._columns, row.cells, strict=True) if cell.tone == "hot"}
    assert hot == {"Temp", "SM clock", "Throttled by", "Errors"}


def test_a_lost_gpu_is_a_problem_until_it_returns(qtbot: QtBot, app: App) -> None:
    page = open_devices_page(app)
    app.session.gpus.add_line(device_lines.notice("lost", "GPU-0005", "GPU 5 is lost."))
    redraw(page)
    row = page.table.data.rows[5]
    assert row.is_lost and row.note.startswith("lost at ")
    bar = page._bars.data.bars[5]
    assert bar.total_bytes is None and bar.missing_text == "lost"
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    assert [row.entry.problem.message for row in view.rows] == ["GPU 5 is lost."]
    assert app.window.status_bar.item("gpus").text() == "8 GPUs, 1 lost · 142.0 of 560 GiB"
    app.session.gpus.add_line(device_lines.notice("back", "GPU-0005"))
    assert not view.rows
    assert app.window.status_bar.item("gpus").text() == "8 GPUs · 164.0 of 640 GiB"


def test_two_failed_gpus_share_one_toast(qtbot: QtBot, app: App) -> None:
    gpus = app.session.gpus
    page = open_devices_page(app)
    app.window.editor.open("welcome:")
    gpus.add_line(device_lines.notice("lost", "GPU-0003", "GPU 3 is lost."))
    gpus.add_line(device_lines.notice("xid", "GPU-0003", "GPU 3: XID 79.", severity="error", xid=79))
    gpus.add_line(device_lines.notice("xid", "GPU-0005", "GPU 5: XID 48.", severity="error", xid=48))
    texts = [toast.notification.text for toast in app.window.toasts._toasts]
    assert texts == ["2 GPUs have failed: GPU 3, GPU 5."]
    app.device_monitor.show()
    assert not app.window.toasts._toasts, "the page says it all"
    redraw(page)
    health = gpu_chart_data.stats(gpus)[4]
    assert (health.label, health.value) == ("Lost, With errors", "GPU 3, GPU 5")


def test_a_gpu_lost_before_the_start_is_a_problem(app: App) -> None:
    page = open_devices_page(app)
    lost = device_lines.Device(uuid="lost:5", index=5, name="GPU 5", lost_at=1_700_000_000.0)
    app.session.gpus.set_unavailable()
    app.session.gpus.add_line(device_lines.devices(*(device_lines.gpu(index) for index in range(5)), lost))
    redraw(page)
    messages = [entry.problem.message for entry in app.session.problems.entries]
    assert "GPU 5 is lost: it no longer responds." in messages
    assert page.breadcrumbs()[1] == "6 × NVIDIA H100 80GB HBM3"
    app.device_monitor.dismiss()
    redraw(page)
    assert not app.session.problems.entries, "what was dismissed does not come again"


def test_stale_readings_are_grey_and_not_compared(app: App) -> None:
    page = open_devices_page(app)
    old = {uuid: device_lines.Reading(17 * GIB, "stale", age_s=9.0) for uuid in ("GPU-0000", "GPU-0001")}
    rows = [device_lines.DeviceReadings(uuid, {"used_bytes": reading}) for uuid, reading in old.items()]
    app.session.gpus.add_line(device_lines.SampleLine(t=0.0, devices=rows))
    redraw(page)
    first, second = page.table.data.rows[0], page.table.data.rows[2]
    assert (first.cells[0].tone, first.cells[1].tone, second.cells[0].tone) == ("muted", "", "")
    assert page._bars.data.bars[0].is_stale and not page._bars.data.bars[2].is_stale
    assert "on 6 of them" in app.window.status_bar.item("gpus").text()


def test_imbalance_compares_only_devices_of_one_run(app: App) -> None:
    page = open_devices_page(app)
    assert page._bars.data.imbalance is None
    together = {f"GPU-{index:04x}": [ProcessUse(7, "python", 16 * GIB)] for index in range(2, 6)}
    app.session.gpus.add_line(device_lines.processes(together))
    redraw(page)
    imbalance = page._bars.data.imbalance
    assert imbalance is not None and (imbalance.device, imbalance.excess_bytes) == (5, 2 * GIB)


def test_memory_holders_add_up_to_the_capacity(app: App) -> None:
    page = open_devices_page(app)
    users = [
        ProcessUse(7, "python", 4 * GIB, user="anna", command="python train.py <b>", host_bytes=3 * GIB),
        ProcessUse(8, None, 2 * GIB, foreign=True),
        ProcessUse(9, None, GIB, foreign=True),
    ]
    app.session.gpus.add_line(device_lines.processes({"GPU-0000": users}))
    app.session.gpus.update()
    page.table.select("GPU-0000")
    data = page._holders.data
    sizes = {holder.name: holder.num_bytes for holder in data.holders}
    assert sizes["python"] == 4 * GIB and sizes["processes outside this PID namespace"] == 3 * GIB
    assert sizes["in use, owner unknown"] == 10 * GIB
    (python,) = (holder for holder in data.holders if holder.name == "python")
    assert python.note == "pid 7, anna, train.py <b>, 3.0 GiB on the host"
    lines = [page._holders.tooltip_at(5, y) for y in range(0, 200, 6)]
    assert f"python  {html.escape(python.note)}" in lines
    assert sum(size for size in sizes.values() if size is not None) == data.total_bytes == 80 * GIB
    assert page.cards["tracks"].title == "GPU 0"


def test_an_open_run_shows_its_memory_by_kind(qtbot: QtBot, app: App) -> None:
    page = open_devices_page(app)
    written = WrittenRun(app.session.workspace.runs_folder, config={"strategy": {"use": "ddp"}})
    uuid = app.session.gpus.devices[0].uuid
    info = DeviceInfo(0, "NVIDIA H100 80GB HBM3", "gpu", uuid, 80 * GIB)
    written.start(devices=[info], strategy="ddp")
    written.write_memory(0, 5, {0: {"parameters": 3 * GIB, "activations": 5 * GIB}})
    open_run(app, written.path)
    rank = ProcessUse(7, "python", 10 * GIB)
    app.session.gpus.add_line(device_lines.processes({uuid: [rank]}, run=str(written.path)))
    redraw(page)
    run = app.tabs.open_runs.list_runs()[0]
    qtbot.waitUntil(
        lambda: bool(run.devices) and run.device_memory(run.devices[0]) is not None, timeout=10_000
    )
    page.table.select(uuid)
    redraw(page)
    app.device_monitor.show()
    redraw(page)
    sizes = {holder.name: holder.num_bytes for holder in page._holders.data.holders}
    assert sizes["parameters"] == 3 * GIB and sizes["activations"] == 5 * GIB
    assert sizes["context and libraries"] == 2 * GIB and sizes["other processes"] == 7 * GIB
    assert sum(size for size in sizes.values() if size is not None) == 80 * GIB
    written.lose()
    app.window.editor.close_page(f"run:{written.path}")


def test_mig_instances_are_listed_below_their_gpu(app: App) -> None:
    page = open_devices_page(app)
    split = device_lines.gpu(1, mig=True)
    instances = [device_lines.mig_instance(1, index, split) for index in range(2)]
    app.session.gpus.add_line(device_lines.devices(device_lines.gpu(0), split, *instances))
    app.session.gpus.add_line(
        device_lines.sample(instances[0].uuid, {"utilisation": "unsupported"}, used_bytes=GIB)
    )
    assert row_texts(page, "GPU 1.0")["VRAM"] == "1.0 GiB" and row_texts(page, "GPU 1.0")["Busy"] == "n/a"
    rows = page.table.data.rows[:4]
    assert [row.is_mig_instance for row in rows] == [False, False, True, True]
    assert row_texts(page, "GPU 1.1")["VRAM"] == "–", "what was never read is not 0"


def test_keys_select_a_device_and_escape_shows_all(qtbot: QtBot, app: App) -> None:
    page = open_devices_page(app)
    page.table.setFocus()
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    assert (
        page.selected_gpu is not None and page.selected_gpu.label == "GPU 1" and page.all_button.isVisible()
    )
    assert [track.title for track in page._tracks.data.tracks][:2] == ["VRAM", "Busy, memory busy"]
    qtbot.keyClick(page.table, Qt.Key.Key_Escape)
    assert page.selected_gpu is None and not page.all_button.isVisible()


def test_time_spans_change_all_curves_and_are_restored(app: App) -> None:
    page = open_devices_page(app)
    page.set_span(600.0)
    x0, x1 = page.table.data.x_range
    assert x1 - x0 == pytest.approx(600.0) and page._heat.data.span_s == 600.0
    page.grid.hide_card("heat")
    state = page.save_state()
    page.set_span(60.0)
    page.grid.reset()
    page.restore_state(state)
    assert page.grid.visible_names == ["bars", "band", "table"]
    page.grid.reset()
    redraw(page)
    assert page._heat.data.span_s == 600.0


def test_without_gpus_the_page_gives_the_reason_and_advice(app: App) -> None:
    page = open_devices_page(app)
    app.session.gpus.set_unavailable("No NVIDIA driver found.")
    assert page._empty_label.isVisible()
    why, what_next = page._empty_label.text().split("\n")
    assert why == "No NVIDIA driver found." and what_next.startswith("Rehearse on virtual devices")
    assert app.window.status_bar.item("gpus").text() == ""


def test_the_page_is_drawn_in_both_themes_and_sizes(app: App) -> None:
    page = open_devices_page(app)
    for theme in ("Dark Modern", "Light Modern"):
        app.window.settings.set("theme.name", theme)
        for size, count in (((1440, 900), 16), ((1280, 720), 8)):
            app.window.resize(*size)
            check_drawing(app, page, count)


def check_drawing(app: App, page: DevicesPage, count: int) -> None:
    feed_machine(app.session.gpus, count, busy=(1,), simulated=True)
    process_events()
    redraw(page)
    for uuid in ("", "GPU-0001"):
        page.table.select(uuid)
        process_events()
        assert not app.window.grab().isNull()
    columns = page.table.layout_columns()
    assert {page.table._columns[index].title for index, *_ in columns} >= {"VRAM", "Busy", "Held by"}
    assert columns[-1][2].right() <= page.table.width() + 1
    assert page.table.row_height * count + 18 <= page.table.height() + 1, "no row is cut off"
    sources = {page.cards[name].source for name in ("bars", "band", "heat", "table")}
    assert sources == {"simulated devices"}


DEVICE_COUNTS, WIDTHS = (1, 2, 8, 16), range(800, 2561, 220)


def test_cards_stay_on_the_grid_at_every_width(app: App) -> None:
    """Every width, shared out among the numbers of devices."""
    page = open_devices_page(app)
    for index, count in enumerate(DEVICE_COUNTS):
        check_widths(app, page, count, WIDTHS[index :: len(DEVICE_COUNTS)])


@pytest.mark.slow
def test_cards_of_any_device_count_stay_on_the_grid(app: App) -> None:
    page = open_devices_page(app)
    for count in DEVICE_COUNTS:
        check_widths(app, page, count, WIDTHS)


def check_widths(app: App, page: DevicesPage, count: int, widths: Sequence[int]) -> None:
    feed_machine(app.session.gpus, count)
    for width in widths:
        app.window.resize(width, 800)
        for uuid in ("", "GPU-0000"):
            page.table.select(uuid)
            process_events()
            redraw(page)
            check_grid(page.grid)
        app.window.grab()


def test_zooming_memory_also_sets_the_range_of_utilisation(app: App) -> None:
    page = open_devices_page(app)
    redraw(page)
    page._band.zoom_by(0.5)
    redraw(page)
    assert page.cards["band"].subtitle.startswith("zoomed")
    x0, x1 = page._band.visible_x()
    assert (page._heat.data.start_s, page._heat.data.span_s) == pytest.approx((x0, x1 - x0))
    page._band.reset_zoom()
    redraw(page)
    assert page.cards["band"].subtitle == "last 60 s" and page._heat.data.start_s is None


def test_an_imbalance_problem_offers_another_strategy(qtbot: QtBot, app: App) -> None:
    written = WrittenRun(app.session.workspace.runs_folder, config={"strategy": {"use": "dp"}})
    written.start(devices=device_infos(3))
    kinds = {"parameters": 10 * MIB}
    written.write_memory(0, 5, {0: kinds | {"gathered": 70 * MIB, "optimizer": 20 * MIB}, 1: kinds, 2: kinds})
    open_run(app, written.path)
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    qtbot.waitUntil(lambda: bool(view.rows), timeout=10_000)
    (row,) = view.rows
    assert "gathered outputs +70.0 MiB, optimizer +20.0 MiB" in row.entry.problem.message
    (button,) = [button for button in row.buttons if button.text() == "Use DDP"]
    assert isinstance(button, QPushButton)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    app.session.io_thread.wait_for_done()
    assert app.session.draft.value(("strategy", "use")) == "ddp" and app.session.draft.config is not None
    written.lose()
    app.window.editor.close_page(f"run:{written.path}")
    process_events()
    assert not view.rows


def test_a_lost_gpu_is_not_in_all_and_blocks_when_named(app: App) -> None:
    gpus = app.session.gpus
    feed_machine(gpus, 2)
    gpus.add_line(device_lines.notice("lost", "GPU-0001", "GPU 1 is lost."))
    app.session.draft.set_value(("devices", "use"), "gpu:all")
    assert app.launcher.blocker() is None
    app.session.draft.set_value(("devices", "use"), "gpu:1")
    blocker = app.launcher.blocker()
    assert blocker is not None and blocker.message == "GPU 1 is lost: it no longer responds."


def test_a_gpu_without_a_unique_uuid_is_not_in_all_and_blocks_when_named(app: App) -> None:
    gpus = app.session.gpus
    unique, *twins = map(device_lines.gpu, range(3))
    for twin in twins:
        twin.uuid = indexed_uuid("GPU-2", twin.index)
    gpus.add_line(device_lines.devices(unique, *twins))
    gpus.update()
    app.session.draft.set_value(("devices", "use"), "gpu:all")
    assert app.launcher.blocker() is None and gpus.count_devices(parse_devices("gpu:all")) == 1
    app.session.draft.set_value(("devices", "use"), "gpu:2")
    blocker = app.launcher.blocker()
    assert blocker is not None and blocker.message == "GPU 2 has no unique UUID, so no run can use it."
    assert "no unique UUID for this GPU" in gpu_tooltip_lines(gpus.devices[2])[-1]
