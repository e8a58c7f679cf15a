"""A comparison in the app: opened from anywhere, followed while runs go on, changed by hand, and kept."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QAbstractButton, QWidget
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.compare.run_ref import MAX_RUNS, RunRef
from rankdeck.compare.table import run_letter
from rankdeck_app.composition import App
from rankdeck_app.shell.floating_list import MAX_ROWS
from rankdeck_app.views.compare import compare_chart_data
from rankdeck_app.views.compare.page import ComparePage
from rankdeck_app.views.compare.side_bar import CompareView
from rankdeck_app.widgets.comparison_table import ComparisonTableData
from rankdeck_app.widgets.painting import record_painted_text
from tests.helpers.app_window import open_run, process_events, wait_for
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos

MakeApp = Callable[[], App]


def write_run(
    name: str, step_s: float = 0.5, *, over: bool = True, peaks: tuple[int, ...] = (90, 90)
) -> WrittenRun:
    run = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), name)
    run.start(1, device_infos(len(peaks)), steps=8)
    run.write_steps(0, 1, [4.0, 3.0, 2.0, 1.0], step_s=step_s)
    run.write_memory(0, 1, {device: {"parameters": peak * MIB} for device, peak in enumerate(peaks)})
    if over:
        run.end()
    return run


def open_comparison(app: App, *runs: Path | RunRef) -> ComparePage:
    page = app.comparisons.open_comparison(runs)
    assert page is not None
    wait_for_runs(page, len(runs))
    return page


def wait_for_runs(page: ComparePage, number: int) -> None:
    def is_known() -> bool:
        comparison = page.comparing.comparison
        return (
            comparison is not None
            and len(comparison.runs) == number
            and all(run.value("step") is not None for run in comparison.runs)
        )

    wait_for(is_known, 10, f"{number} runs side by side")


def cell_text(table: ComparisonTableData, label: str, column: int) -> str:
    (line,) = [line for line in table.lines if line.label == label and line.cells]
    return line.cells[column].text


def test_the_page_compares_metrics_losses_memory_and_keys(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    slow, fast = write_run("slow", peaks=(300, 100)), write_run("fast", 0.25)
    page = open_comparison(app, slow.path, fast.path)
    assert page.title == "Compare: slow / fast" and page.page_id == "compare:1"
    data = page.metric_table.data
    assert [cell_text(data, "Step time", column) for column in (0, 1)] == ["500 ms", "250 ms"]
    assert "B 250 ms (best)" in page.metric_table.describe() and "A 500 ms" in page.metric_table.describe()
    assert [group.label for group in page.memory_bars.data.groups] == ["Virtual 0", "Virtual 1"]
    assert (
        page.memory_bars.data.groups[0].bars[0].is_lead
        and not page.memory_bars.data.groups[0].bars[1].is_lead
    )
    assert "A 300.0 MiB, B 90.0 MiB" in page.memory_bars.describe()
    assert page.difference_table.data.lines[0].label.startswith("No differences")
    assert app.comparisons.open_comparison([slow.path, fast.path]) is page
    assert app.comparisons.open_comparison([fast.path, slow.path]) is not page
    app.window.editor.close_tabs("all")
    again = open_comparison(app, slow.path, fast.path)  # at once: the closed page is still there for a moment
    assert again is not page and len(again.chips.chips) == 2


def test_group_headings_name_the_source_of_their_metrics(make_app: MakeApp, tmp_path: Path) -> None:
    page = open_comparison(make_app(), write_run("slow").path, write_run("fast", 0.25).path)
    sources = {line.label: line.source for line in page.metric_table.data.lines if line.is_group}
    assert sources["Training"] == "measured" and sources["Speed"] == "measured in rehearsal"
    assert "Speed: measured in rehearsal" in page.metric_table.describe()
    assert page.cards["loss"].source == sources["Training"]
    labels = [line.label for line in page.metric_table.data.lines]
    assert not [label for label in labels if label.lower().startswith("measured")]


def test_a_live_run_is_followed_until_it_ends(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    done, live = write_run("done"), write_run("live", over=False)
    page = open_comparison(app, done.path, live.path)
    assert page.chips.chips[1].accessibleName() == "B: live, running, DP · 2 virtual · 4 / 8 steps"
    live.write_steps(0, 5, [0.9, 0.8])
    wait_for(lambda: cell_text(page.metric_table.data, "Steps done", 1) == "6", 10, "two more steps")
    live.end("stopped")
    wait_for(lambda: "stopped" in page.chips.chips[1].accessibleName(), 10, "the end on its chip")


def test_losses_are_drawn_over_the_chosen_axis_with_letters(make_app: MakeApp, qtbot: QtBot) -> None:
    page = open_comparison(make_app(), write_run("slow").path, write_run("fast", 0.25).path)
    for by in ("time", "samples", "step"):
        check_losses(page, by, qtbot)


def check_losses(page: ComparePage, by: str, qtbot: QtBot) -> None:
    qtbot.mouseClick(page.axis_buttons[by], Qt.MouseButton.LeftButton)
    wait_for(
        lambda: page.loss_plot.axis == by and page.loss_plot.last_drawn_s > 0 and page.loss_plot._lines,
        10,
        "a drawing",
    )
    assert [button.isChecked() for button in page.axis_buttons.values()] == [
        name == by for name in page.axis_buttons
    ]
    ends = [float(line.average_x[-1]) for line in page.loss_plot._lines]
    assert ends == pytest.approx({"step": [4, 4], "time": [2.0, 1.0], "samples": [64, 64]}[by])
    letters = [item.letter for item in page.loss_plot._items if item.letter.isVisible()]
    assert [letter.toPlainText() for letter in letters] == ["A", "B"]
    (x0, x1), (y0, y1) = page.loss_plot.getViewBox().viewRange()
    assert all(x0 < letter.pos().x() < x1 and y0 <= letter.pos().y() <= y1 for letter in letters)
    assert "A " in page.loss_plot.readout_text(ends[0] * 0.9)
    rows = page.loss_plot.csv_rows()
    assert rows[0][1] == by and len([row for row in rows if row[0] == "B"]) == 4


def test_a_chip_sets_the_baseline_and_removes_a_run(make_app: MakeApp, tmp_path: Path, qtbot: QtBot) -> None:
    app = make_app()
    runs = [write_run(name, step_s).path for name, step_s in (("a", 0.5), ("b", 0.25), ("c", 0.1))]
    page = open_comparison(app, *runs)
    (line,) = [line for line in page.metric_table.data.lines if line.label == "Step time"]
    assert [cell.detail for cell in line.cells] == ["", "-50 %", "-80 %"]
    chip = page.chips.chips[1]
    chip.setFocus()
    qtbot.keyClick(chip, Qt.Key.Key_Space)
    (line,) = [line for line in page.metric_table.data.lines if line.label == "Step time"]
    assert [cell.detail for cell in line.cells] == ["2×", "", "-60 %"]
    assert page.chips.chips[1].accessibleName().endswith(", baseline")
    qtbot.mouseClick(page.chips.chips[0].remove_button, Qt.MouseButton.LeftButton)
    assert [chip.data.name for chip in page.chips.chips] == ["b", "c"]
    assert page.comparing.baseline == 0 and page.title == "Compare: b / c"
    for _ in range(2):
        qtbot.keyClick(page.chips.chips[0], Qt.Key.Key_Delete)
    assert page.chips.chips == [] and page.message.text() == "Add two or more runs to see them side by side."
    assert not page._body.isVisible()


def test_a_ninth_run_is_refused_with_a_message(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    runs = [write_run(f"run {number}").path for number in range(MAX_RUNS + 1)]
    page = open_comparison(app, *runs[:MAX_RUNS])
    assert not page.chips.add_tile.isVisible()
    page.add([RunRef(runs[-1])])
    assert page.comparing.refs == [RunRef(run) for run in runs[:MAX_RUNS]]
    assert "You can compare at most 8 runs." in _toast_texts(app)


def _toast_texts(app: App) -> str:
    return "\n".join(notice.text for notice in app.window.toasts.history)


def test_a_comparison_is_restored_after_a_restart(make_app: MakeApp, tmp_path: Path) -> None:
    run = write_run("resumed")
    run.start(1, device_infos(2), steps=8, attempt=1)
    run.writer("rank-0", 1).write(events.Restored(rank=0, step=4))
    run.write_steps(0, 5, [0.5, 0.4], attempt=1)
    run.end()
    other = write_run("other")
    app = make_app()
    page = open_comparison(app, RunRef(run.path, 0), RunRef(run.path, 1), other.path)
    page.comparing.set_baseline(RunRef(run.path, 1))
    page.set_axis("time")
    app.window.close()
    again = make_app()
    wait_for(lambda: isinstance(again.window.editor.active_page(), ComparePage), 10, "its tab")
    back = again.window.editor.active_page()
    assert isinstance(back, ComparePage)
    wait_for_runs(back, 3)
    assert [chip.data.name for chip in back.chips.chips] == ["resumed @0", "resumed @1", "other"]
    assert (back.comparing.baseline, back.loss_plot.axis) == (1, "time")
    assert cell_text(back.metric_table.data, "Steps done", 1) == "6"
    assert len(again.comparisons.recent.comparisons) == 1 and again.comparisons.recent.comparisons[0][
        0
    ] == RunRef(run.path, 1)


def test_runs_are_selected_one_by_one_in_the_palette(make_app: MakeApp, tmp_path: Path, qtbot: QtBot) -> None:
    app = make_app()
    for name in ("one", "two", "three"):
        write_run(name)
    wait_for(lambda: len(app.session.runs.infos) == 3, 10, "three runs in the list")
    box = app.window.command_palette
    app.window.commands.run("compare.runs")

    def choose(text: str) -> None:
        qtbot.keyClicks(box.input, text)
        qtbot.keyClick(box.input, Qt.Key.Key_Return)

    def rows() -> list[tuple[str, str]]:
        return [(row.item.label, row.item.icon) for row in box.model.rows]

    missing = ("Compare: choose at least two runs", "git-compare")
    assert rows()[0] == missing and all(icon == "circle" for _, icon in rows()[1:])
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert box.isVisible() and rows()[0] == missing
    choose("one")
    assert rows() == [missing, ("one", "check")]
    choose("three")
    assert rows() == [("Compare 2 runs", "git-compare"), ("three", "check")]
    choose("three")
    assert rows() == [missing, ("three", "circle")]
    choose("two")
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    page = app.window.editor.active_page()
    assert isinstance(page, ComparePage) and not box.isVisible()
    wait_for_runs(page, 2)
    assert page.title == "Compare: one / two"
    app.window.commands.run("compare.add")
    assert rows() == [("Add: choose at least one run", "git-compare"), ("three", "circle")]
    choose("three")
    assert rows()[0] == ("Add 1 run", "git-compare")
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    wait_for_runs(page, 3)


def test_rows_do_not_move_while_runs_are_selected_with_the_mouse(
    make_app: MakeApp, tmp_path: Path, qtbot: QtBot
) -> None:
    app = make_app()
    for number in range(MAX_ROWS + 4):
        write_run(f"run {number}")
    wait_for(lambda: len(app.session.runs.infos) == MAX_ROWS + 4, 10, "more runs than there is room for")
    box = app.window.command_palette
    app.window.commands.run("compare.runs")
    bar = box.list.verticalScrollBar()

    def click(row: int) -> None:
        position = box.list.visualRect(box.model.index(row)).center()
        qtbot.mouseClick(box.list.viewport(), Qt.MouseButton.LeftButton, pos=position)

    bar.setValue(bar.maximum())
    labels, at = [row.item.label for row in box.model.rows], bar.value()
    for row in (len(labels) - 1, len(labels) - 2):
        click(row)
        assert box.model.rows[row].item.icon == "check" and bar.value() == at > 0
        assert [result_row.item.label for result_row in box.model.rows][1:] == labels[1:]
    assert box.list.currentIndex().row() == 0 and box.model.rows[0].item.label == "Compare 2 runs"
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert isinstance(app.window.editor.active_page(), ComparePage)


def test_an_ended_run_offers_a_comparison(make_app: MakeApp, tmp_path: Path, qtbot: QtBot) -> None:
    app = make_app()
    over, other = write_run("over", over=False), write_run("other")
    over.end("stopped")
    wait_for(lambda: len(app.session.runs.infos) == 2, 10, "two runs in the list")
    open_run(app, over.path)
    tab = app.window.editor.active_page()
    assert tab is not None

    def button() -> QAbstractButton | None:
        return next(
            (
                candidate
                for candidate in tab.findChildren(QAbstractButton)
                if candidate.text() == "Compare" and candidate.isVisible()
            ),
            None,
        )

    wait_for(lambda: button() is not None, 10, "the button in the banner")
    compare_button = button()
    assert compare_button is not None
    qtbot.mouseClick(compare_button, Qt.MouseButton.LeftButton)
    qtbot.keyClicks(app.window.command_palette.input, "other")
    for _ in range(2):
        qtbot.keyClick(app.window.command_palette.input, Qt.Key.Key_Return)
    page = app.window.editor.active_page()
    assert isinstance(page, ComparePage)
    assert page.comparing.refs == [RunRef(over.path), RunRef(other.path)]


def test_the_side_bar_adds_and_removes_runs_and_opens_recent_ones(
    make_app: MakeApp, tmp_path: Path, qtbot: QtBot
) -> None:
    app = make_app()
    for name in ("one", "two"):
        write_run(name)
    wait_for(lambda: len(app.session.runs.infos) == 2, 10, "two runs in the list")
    app.window.show_activity("compare")
    view = app.window.side_bar.get_view("compare")
    assert isinstance(view, CompareView) and view.empty_label.isVisible()
    for row in range(2):
        index = view.proxy.index(row, 0)
        qtbot.mouseClick(
            view.candidate_list.viewport(),
            Qt.MouseButton.LeftButton,
            pos=view.candidate_list.visualRect(index).center(),
        )
    page = app.window.editor.active_page()
    assert isinstance(page, ComparePage)
    wait_for_runs(page, 2)
    wait_for(lambda: view.compared_list.count() == 2, 10, "two rows")
    assert view.recent_list.count() == 1
    assert " vs " in view.recent_list.item(0).data(Qt.ItemDataRole.AccessibleTextRole)
    again = view.candidate_list.visualRect(view.proxy.index(0, 0)).center()
    qtbot.mouseClick(view.candidate_list.viewport(), Qt.MouseButton.LeftButton, pos=again)
    assert not view.proxy.flags(view.proxy.index(0, 0)) and len(page.comparing.runs) == 2
    view.compared_list.setCurrentRow(1)
    qtbot.keyClick(view.compared_list, Qt.Key.Key_Return)
    assert page.comparing.baseline == 1
    qtbot.keyClick(view.compared_list, Qt.Key.Key_Delete)
    assert len(page.comparing.runs) == 1 and view.compared_list.count() == 1
    app.window.editor.close_page()
    process_events()
    wait_for(lambda: view.compared_list.count() == 0 and view.empty_label.isVisible(), 10, "an empty list")
    view.recent_list.setCurrentRow(0)
    qtbot.keyClick(view.recent_list, Qt.Key.Key_Return)
    assert isinstance(app.window.editor.active_page(), ComparePage)


def test_an_attempt_is_added_from_the_menu_of_a_chip(make_app: MakeApp, tmp_path: Path) -> None:
    run = write_run("resumed")
    run.start(1, device_infos(2), steps=8, attempt=1)
    run.write_steps(0, 5, [0.5], attempt=1)
    run.end()
    app = make_app()
    page = open_comparison(app, run.path)
    wait_for(lambda: page.chips.chips[0].data.attempts == (0, 1), 10, "its attempts")
    menu = page.chips.chips[0].build_menu()
    texts = [action.text() for action in menu.actions() if action.text()]
    assert texts[2:4] == ["Add Only Attempt 0 (before the run was resumed)", "Add Only Attempt 1"]
    next(action for action in menu.actions() if "Attempt 0" in action.text()).trigger()
    menu.deleteLater()
    wait_for_runs(page, 2)
    assert page.comparing.refs == [RunRef(run.path), RunRef(run.path, 0)]


def test_the_engine_writes_the_html_page(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    page = open_comparison(app, write_run("one").path, write_run("two").path)
    page.comparing.set_baseline(page.comparing.refs[1])
    app.comparisons.save(page, tmp_path / "both.html")
    wait_for((tmp_path / "both.html").exists, 60, "the page")
    assert "Differences are from B." in (tmp_path / "both.html").read_text()
    wait_for(lambda: "Saved the comparison of 2 runs" in _toast_texts(app), 10, "its notification")
    app.comparisons.save_report(page.comparing.refs[0].path, tmp_path / "one.html")
    wait_for(lambda: "Saved the report of" in _toast_texts(app), 60, "the report")
    assert (tmp_path / "one.html").is_file()
    app.comparisons.save(page, tmp_path)
    wait_for(lambda: "is a folder" in _toast_texts(app), 60, "a refusal in words")


def test_tables_are_exported_as_numbers(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    page = open_comparison(app, write_run("one").path, write_run("two", 0.25).path)
    for name, min_rows in (("figures", 10), ("memory", 5), ("speed", 3), ("keys", 1), ("loss", 9)):
        file = tmp_path / f"{name}.csv"
        page.cards[name].make_export("csv")(file)
        rows = list(csv.reader(io.StringIO(file.read_text())))
        assert len(rows) >= min_rows and len({len(row) for row in rows}) == 1, name
    rows = list(csv.reader(io.StringIO((tmp_path / "figures.csv").read_text())))
    assert ["Speed", "Step time", "step time", "0.5", "0.25"] in [
        [*row[:3], *(field[:4] for field in row[3:])] for row in rows
    ]


@pytest.mark.parametrize(
    ("number", "sizes"), [(2, [(1440, 900)]), (5, [(1920, 1080)]), (8, [(1280, 720), (800, 500)])]
)
def test_nothing_is_cut_and_edges_align(
    make_app: MakeApp, tmp_path: Path, number: int, sizes: list[tuple[int, int]]
) -> None:
    app = make_app()
    runs = [write_run(f"run {n}", 0.1 + n / 10, peaks=(300, *[100] * n)).path for n in range(number)]
    page = open_comparison(app, *runs)
    for theme, size in product(("Dark Modern", "Light Modern"), sizes):
        app.window.settings.set("theme.name", theme)
        app.window.resize(*size)
        wait_for(
            lambda: page.metric_table.height() >= page.metric_table.heightForWidth(page.metric_table.width()),
            10,
            "a laid out table",
        )
        for chart in (page.metric_table, page.difference_table, page.memory_bars, page.speed_bars):
            assert chart.height() >= chart.heightForWidth(chart.width())
            assert chart.width() >= chart.minimumSizeHint().width()
            assert not chart.grab().isNull()
        _check_alignment(page)
    for widget in page.findChildren(QWidget):
        if isinstance(widget, QAbstractButton) and widget.isVisible():
            assert widget.accessibleName() or widget.text(), widget
    names = [chip.accessibleName()[0] for chip in page.chips.chips]
    assert names == [run_letter(index) for index in range(number)]


def _check_alignment(page: ComparePage) -> None:
    """Chips and cards begin at one line and end at one, and no card lies over another."""

    def left(widget: QWidget) -> int:
        return widget.mapTo(page, QPoint(0, 0)).x()

    cards = [card for card in page.cards.values() if card.isVisible()]
    assert left(page.chips) == left(page.cards["figures"]) == left(page.cards["keys"]) == 16
    right = left(page.cards["keys"]) + page.cards["keys"].width()
    assert right == left(page.cards["memory"]) + page.cards["memory"].width()
    if page.width() > 700:
        assert right == left(page.chips) + page.chips.width()
    boxes = [card.geometry() for card in cards]
    assert not [1 for at, box in enumerate(boxes) for other in boxes[:at] if box.intersects(other)]


def test_text_rows_are_in_the_table_and_its_export(make_app: MakeApp) -> None:
    both = [write_run("one", over=False), write_run("two", over=False)]
    both[0].writer("rank-0").write(VERIFIED["equal"])
    for run in both:
        run.end()
    comparison = open_comparison(make_app(), *(run.path for run in both)).comparing.comparison
    assert comparison is not None
    (line,) = [
        line for line in compare_chart_data.metric_table(comparison).lines if line.label == "One device"
    ]
    equal, unknown = line.cells
    assert (equal.text, equal.detail) == ("equal", "largest difference 6e-16")
    assert unknown.text == "–" and unknown.is_dim
    rows = [row for row in compare_chart_data.metric_rows(comparison) if row[1] == "One device"]
    assert [list(row[3:]) for row in rows] == [["equal", ""]]


def test_chips_shorten_names_to_what_differs(make_app: MakeApp, tmp_path: Path, qtbot: QtBot) -> None:
    names = [f"MLP · Single · seed 2 · lr {rate}" for rate in (0.3, 0.1, 0.03, 0.01, 0.003)]
    page = open_comparison(make_app(), *(write_run(name).path for name in names))
    wait_for_runs(page, 5)
    page.chips.resize(1000, 200)
    painted: list[str] = []
    with record_painted_text(painted.append):
        for chip in page.chips.chips:
            chip.grab()
    shortened = [text for text in painted if text.startswith("…")]
    assert len(set(shortened)) == 5 and all(
        name.endswith(text[2:]) for name, text in zip(names, shortened, strict=True)
    )
