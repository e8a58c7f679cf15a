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
from rankdeck.compare.naming import MOST_RUNS, RunAt
from rankdeck.compare.table import letter_of
from rankdeck_app.composition import App
from rankdeck_app.shell.floating_list import MAX_ROWS
from rankdeck_app.views.compare import compare_figures
from rankdeck_app.views.compare.page import ComparePage
from rankdeck_app.views.compare.side_bar import CompareView
from rankdeck_app.widgets.painting import read_along
from rankdeck_app.widgets.side_by_side import SideFigure
from tests.helpers.app_window import open_run, settle, wait_for
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos

MakeApp = Callable[[], App]


def written(
    name: str, step_s: float = 0.5, *, over: bool = True, peaks: tuple[int, ...] = (90, 90)
) -> WrittenRun:
    run = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), name)
    run.begin(1, device_infos(len(peaks)), steps=8)
    run.steps(0, 1, [4.0, 3.0, 2.0, 1.0], step_s=step_s)
    run.memory(0, 1, {place: {"parameters": peak * MIB} for place, peak in enumerate(peaks)})
    if over:
        run.end()
    return run


def opened(app: App, *runs: Path | RunAt) -> ComparePage:
    page = app.comparisons.open_compare(runs)
    assert page is not None
    known(page, len(runs))
    return page


def known(page: ComparePage, number: int) -> None:
    def is_known() -> bool:
        comparison = page.comparing.comparison
        return (
            comparison is not None
            and len(comparison.runs) == number
            and all(run.value("step") is not None for run in comparison.runs)
        )

    wait_for(is_known, 10, f"{number} runs side by side")


def cell(figure: SideFigure, label: str, place: int) -> str:
    (line,) = [line for line in figure.lines if line.label == label and line.cells]
    return line.cells[place].text


def test_figures_losses_memory_and_keys_of_the_runs_stand_there(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    slow, fast = written("slow", peaks=(300, 100)), written("fast", 0.25)
    page = opened(app, slow.path, fast.path)
    assert page.title == "Compare: slow / fast" and page.page_id == "compare:1"
    figure = page.table.figure
    assert [cell(figure, "Step time", place) for place in (0, 1)] == ["500 ms", "250 ms"]
    assert "B 250 ms (best)" in page.table.describe() and "A 500 ms" in page.table.describe()
    assert [group.label for group in page.memory.figure.groups] == ["Virtual 0", "Virtual 1"]
    assert page.memory.figure.groups[0].bars[0].is_lead and not page.memory.figure.groups[0].bars[1].is_lead
    assert "A 300.0 MiB, B 90.0 MiB" in page.memory.describe()
    assert page.keys.figure.lines[0].label.startswith("Nothing differs")
    assert app.comparisons.open_compare([slow.path, fast.path]) is page
    assert app.comparisons.open_compare([fast.path, slow.path]) is not page
    app.window.editor.close_tabs("all")
    again = opened(app, slow.path, fast.path)  # at once: the closed page is still there for a moment
    assert again is not page and len(again.chips.chips) == 2


def test_who_made_a_groups_figures_stands_in_its_heading(make_app: MakeApp, tmp_path: Path) -> None:
    page = opened(make_app(), written("slow").path, written("fast", 0.25).path)
    sources = {line.label: line.source for line in page.table.figure.lines if line.is_group}
    assert sources["Training"] == "measured" and sources["Speed"] == "measured in rehearsal"
    assert "Speed: measured in rehearsal" in page.table.describe()
    assert page.cards["loss"].source == sources["Training"]
    labels = [line.label for line in page.table.figure.lines]
    assert not [label for label in labels if label.lower().startswith("measured")]


def test_a_run_that_goes_on_is_followed_to_its_end(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    done, live = written("done"), written("live", over=False)
    page = opened(app, done.path, live.path)
    assert page.chips.chips[1].accessibleName() == "B: live, running, DP · 2 virtual · 4 / 8 steps"
    live.steps(0, 5, [0.9, 0.8])
    wait_for(lambda: cell(page.table.figure, "Steps done", 1) == "6", 10, "two more steps")
    live.end("stopped")
    wait_for(lambda: "stopped" in page.chips.chips[1].accessibleName(), 10, "the end on its chip")


def test_losses_lie_over_what_was_chosen_with_a_letter_at_the_end(make_app: MakeApp, qtbot: QtBot) -> None:
    page = opened(make_app(), written("slow").path, written("fast", 0.25).path)
    for by in ("time", "samples", "step"):
        check_losses(page, by, qtbot)


def check_losses(page: ComparePage, by: str, qtbot: QtBot) -> None:
    qtbot.mouseClick(page.switch[by], Qt.MouseButton.LeftButton)
    wait_for(lambda: page.loss.by == by and page.loss.drawn_at > 0 and page.loss._lines, 10, "a drawing")
    assert [button.isChecked() for button in page.switch.values()] == [name == by for name in page.switch]
    ends = [float(line.average_x[-1]) for line in page.loss._lines]
    assert ends == pytest.approx({"step": [4, 4], "time": [2.0, 1.0], "samples": [64, 64]}[by])
    letters = [item.letter for item in page.loss._items if item.letter.isVisible()]
    assert [letter.toPlainText() for letter in letters] == ["A", "B"]
    (x0, x1), (y0, y1) = page.loss.getViewBox().viewRange()
    assert all(x0 < letter.pos().x() < x1 and y0 <= letter.pos().y() <= y1 for letter in letters)
    assert "A " in page.loss.readout(ends[0] * 0.9)
    rows = page.loss.csv_rows()
    assert rows[0][1] == by and len([row for row in rows if row[0] == "B"]) == 4


def test_a_chip_makes_the_baseline_and_takes_a_run_out(
    make_app: MakeApp, tmp_path: Path, qtbot: QtBot
) -> None:
    app = make_app()
    runs = [written(name, step_s).path for name, step_s in (("a", 0.5), ("b", 0.25), ("c", 0.1))]
    page = opened(app, *runs)
    (line,) = [line for line in page.table.figure.lines if line.label == "Step time"]
    assert [one.below for one in line.cells] == ["", "-50 %", "-80 %"]
    chip = page.chips.chips[1]
    chip.setFocus()
    qtbot.keyClick(chip, Qt.Key.Key_Space)
    (line,) = [line for line in page.table.figure.lines if line.label == "Step time"]
    assert [one.below for one in line.cells] == ["2×", "", "-60 %"]
    assert "the baseline" in page.chips.chips[1].accessibleName()
    qtbot.mouseClick(page.chips.chips[0].remove_button, Qt.MouseButton.LeftButton)
    assert [chip.figure.name for chip in page.chips.chips] == ["b", "c"]
    assert page.comparing.baseline == 0 and page.title == "Compare: b / c"
    for _ in range(2):
        qtbot.keyClick(page.chips.chips[0], Qt.Key.Key_Delete)
    assert page.chips.chips == [] and page.message.text() == "Add two or more runs to see them side by side."
    assert not page._body.isVisible()


def test_the_ninth_run_is_refused_in_words(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    runs = [written(f"run {number}").path for number in range(MOST_RUNS + 1)]
    page = opened(app, *runs[:MOST_RUNS])
    assert not page.chips.add_tile.isVisible()
    page.add([RunAt(runs[-1])])
    assert page.comparing.ats == [RunAt(run) for run in runs[:MOST_RUNS]]
    assert "At most 8 runs can be compared" in _toasts(app)


def _toasts(app: App) -> str:
    return "\n".join(notice.text for notice in app.window.toasts.history)


def test_a_comparison_comes_back_after_a_restart(make_app: MakeApp, tmp_path: Path) -> None:
    run = written("resumed")
    run.begin(1, device_infos(2), steps=8, attempt=1)
    run.writer("rank-0", 1).write(events.Restored(rank=0, step=4))
    run.steps(0, 5, [0.5, 0.4], attempt=1)
    run.end()
    other = written("other")
    app = make_app()
    page = opened(app, RunAt(run.path, 0), RunAt(run.path, 1), other.path)
    page.comparing.set_baseline(RunAt(run.path, 1))
    page.set_by("time")
    app.window.close()
    again = make_app()
    wait_for(lambda: isinstance(again.window.editor.active_page(), ComparePage), 10, "its tab")
    back = again.window.editor.active_page()
    assert isinstance(back, ComparePage)
    known(back, 3)
    assert [chip.figure.name for chip in back.chips.chips] == ["resumed @0", "resumed @1", "other"]
    assert (back.comparing.baseline, back.loss.by) == (1, "time")
    assert cell(back.table.figure, "Steps done", 1) == "6"
    assert len(again.comparisons.recent.all) == 1 and again.comparisons.recent.all[0][0] == RunAt(run.path, 1)


def test_runs_are_chosen_one_after_another_in_the_palette(
    make_app: MakeApp, tmp_path: Path, qtbot: QtBot
) -> None:
    app = make_app()
    for name in ("one", "two", "three"):
        written(name)
    wait_for(lambda: len(app.session.runs.infos) == 3, 10, "three runs in the list")
    box = app.window.palette_box
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
    known(page, 2)
    assert page.title == "Compare: one / two"
    app.window.commands.run("compare.add")
    assert rows() == [("Add: choose at least one run", "git-compare"), ("three", "circle")]
    choose("three")
    assert rows()[0] == ("Add 1 run", "git-compare")
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    known(page, 3)


def test_no_row_of_the_list_moves_while_runs_are_chosen_with_the_mouse(
    make_app: MakeApp, tmp_path: Path, qtbot: QtBot
) -> None:
    app = make_app()
    for number in range(MAX_ROWS + 4):
        written(f"run {number}")
    wait_for(lambda: len(app.session.runs.infos) == MAX_ROWS + 4, 10, "more runs than there is room for")
    box = app.window.palette_box
    app.window.commands.run("compare.runs")
    bar = box.list.verticalScrollBar()

    def click(row: int) -> None:
        place = box.list.visualRect(box.model.index(row)).center()
        qtbot.mouseClick(box.list.viewport(), Qt.MouseButton.LeftButton, pos=place)

    bar.setValue(bar.maximum())
    labels, at = [row.item.label for row in box.model.rows], bar.value()
    for row in (len(labels) - 1, len(labels) - 2):
        click(row)
        assert box.model.rows[row].item.icon == "check" and bar.value() == at > 0
        assert [one.item.label for one in box.model.rows][1:] == labels[1:]
    assert box.list.currentIndex().row() == 0 and box.model.rows[0].item.label == "Compare 2 runs"
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert isinstance(app.window.editor.active_page(), ComparePage)


def test_a_run_that_is_over_offers_to_compare_it(make_app: MakeApp, tmp_path: Path, qtbot: QtBot) -> None:
    app = make_app()
    over, other = written("over", over=False), written("other")
    over.end("stopped")
    wait_for(lambda: len(app.session.runs.infos) == 2, 10, "two runs in the list")
    open_run(app, over.path)
    tab = app.window.editor.active_page()
    assert tab is not None

    def button() -> QAbstractButton | None:
        return next(
            (one for one in tab.findChildren(QAbstractButton) if one.text() == "Compare" and one.isVisible()),
            None,
        )

    wait_for(lambda: button() is not None, 10, "the button in the banner")
    found = button()
    assert found is not None
    qtbot.mouseClick(found, Qt.MouseButton.LeftButton)
    qtbot.keyClicks(app.window.palette_box.input, "other")
    for _ in range(2):
        qtbot.keyClick(app.window.palette_box.input, Qt.Key.Key_Return)
    page = app.window.editor.active_page()
    assert isinstance(page, ComparePage)
    assert page.comparing.ats == [RunAt(over.path), RunAt(other.path)]


def test_the_side_bar_adds_removes_and_opens_recent_ones(
    make_app: MakeApp, tmp_path: Path, qtbot: QtBot
) -> None:
    app = make_app()
    for name in ("one", "two"):
        written(name)
    wait_for(lambda: len(app.session.runs.infos) == 2, 10, "two runs in the list")
    app.window.show_activity("compare")
    view = app.window.side_bar.view("compare")
    assert isinstance(view, CompareView) and view.empty.isVisible()
    for row in range(2):
        index = view.proxy.index(row, 0)
        qtbot.mouseClick(
            view.found.viewport(), Qt.MouseButton.LeftButton, pos=view.found.visualRect(index).center()
        )
    page = app.window.editor.active_page()
    assert isinstance(page, ComparePage)
    known(page, 2)
    wait_for(lambda: view.chosen.count() == 2, 10, "two rows")
    assert view.recents.count() == 1
    assert " vs " in view.recents.item(0).data(Qt.ItemDataRole.AccessibleTextRole)
    again = view.found.visualRect(view.proxy.index(0, 0)).center()
    qtbot.mouseClick(view.found.viewport(), Qt.MouseButton.LeftButton, pos=again)
    assert not view.proxy.flags(view.proxy.index(0, 0)) and len(page.comparing.runs) == 2
    view.chosen.setCurrentRow(1)
    qtbot.keyClick(view.chosen, Qt.Key.Key_Return)
    assert page.comparing.baseline == 1
    qtbot.keyClick(view.chosen, Qt.Key.Key_Delete)
    assert len(page.comparing.runs) == 1 and view.chosen.count() == 1
    app.window.editor.close_page()
    settle()
    wait_for(lambda: view.chosen.count() == 0 and view.empty.isVisible(), 10, "an empty list")
    view.recents.setCurrentRow(0)
    qtbot.keyClick(view.recents, Qt.Key.Key_Return)
    assert isinstance(app.window.editor.active_page(), ComparePage)


def test_an_attempt_is_added_from_the_menu_of_a_chip(make_app: MakeApp, tmp_path: Path) -> None:
    run = written("resumed")
    run.begin(1, device_infos(2), steps=8, attempt=1)
    run.steps(0, 5, [0.5], attempt=1)
    run.end()
    app = make_app()
    page = opened(app, run.path)
    wait_for(lambda: page.chips.chips[0].figure.attempts == (0, 1), 10, "its attempts")
    menu = page.chips.chips[0].build_menu()
    words = [action.text() for action in menu.actions() if action.text()]
    assert words[2:4] == ["Add Attempt 0 Alone (before it was resumed)", "Add Attempt 1 Alone"]
    next(action for action in menu.actions() if "Attempt 0" in action.text()).trigger()
    menu.deleteLater()
    known(page, 2)
    assert page.comparing.ats == [RunAt(run.path), RunAt(run.path, 0)]


def test_the_engine_writes_the_page(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    page = opened(app, written("one").path, written("two").path)
    page.comparing.set_baseline(page.comparing.ats[1])
    app.comparisons.save(page, tmp_path / "both.html")
    wait_for((tmp_path / "both.html").exists, 60, "the page")
    assert "Differences are from B." in (tmp_path / "both.html").read_text()
    wait_for(lambda: "holds the comparison of 2 runs" in _toasts(app), 10, "its notification")
    app.comparisons.save_report(page.comparing.ats[0].path, tmp_path / "one.html")
    wait_for(lambda: "holds the report of" in _toasts(app), 60, "the report")
    assert (tmp_path / "one.html").is_file()
    app.comparisons.save(page, tmp_path)
    wait_for(lambda: "is a folder" in _toasts(app), 60, "a refusal in words")


def test_tables_are_exported_as_numbers(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    page = opened(app, written("one").path, written("two", 0.25).path)
    for name, least in (("figures", 10), ("memory", 5), ("speed", 3), ("keys", 1), ("loss", 9)):
        file = tmp_path / f"{name}.csv"
        page.cards[name].exported("csv")(file)
        rows = list(csv.reader(io.StringIO(file.read_text())))
        assert len(rows) >= least and len({len(row) for row in rows}) == 1, name
    rows = list(csv.reader(io.StringIO((tmp_path / "figures.csv").read_text())))
    assert ["Speed", "Step time", "step time", "0.5", "0.25"] in [
        [*row[:3], *(one[:4] for one in row[3:])] for row in rows
    ]


@pytest.mark.parametrize(
    ("number", "sizes"), [(2, [(1440, 900)]), (5, [(1920, 1080)]), (8, [(1280, 720), (800, 500)])]
)
def test_nothing_is_cut_and_edges_align(
    make_app: MakeApp, tmp_path: Path, number: int, sizes: list[tuple[int, int]]
) -> None:
    app = make_app()
    runs = [written(f"run {n}", 0.1 + n / 10, peaks=(300, *[100] * n)).path for n in range(number)]
    page = opened(app, *runs)
    for theme, size in product(("Dark Modern", "Light Modern"), sizes):
        app.window.settings.set("theme.name", theme)
        app.window.resize(*size)
        wait_for(
            lambda: page.table.height() >= page.table.heightForWidth(page.table.width()),
            10,
            "a laid out table",
        )
        for chart in (page.table, page.keys, page.memory, page.speed):
            assert chart.height() >= chart.heightForWidth(chart.width())
            assert chart.width() >= chart.minimumSizeHint().width()
            assert not chart.grab().isNull()
        _is_aligned(page)
    for widget in page.findChildren(QWidget):
        if isinstance(widget, QAbstractButton) and widget.isVisible():
            assert widget.accessibleName() or widget.text(), widget
    names = [chip.accessibleName()[0] for chip in page.chips.chips]
    assert names == [letter_of(place) for place in range(number)]


def _is_aligned(page: ComparePage) -> None:
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


def test_words_of_a_row_stand_in_the_table_and_in_its_export(make_app: MakeApp) -> None:
    both = [written("one", over=False), written("two", over=False)]
    both[0].writer("rank-0").write(VERIFIED["equal"])
    for run in both:
        run.end()
    comparison = opened(make_app(), *(run.path for run in both)).comparing.comparison
    assert comparison is not None
    (line,) = [line for line in compare_figures.figures(comparison).lines if line.label == "One device"]
    known, unknown = line.cells
    assert (known.text, known.below) == ("equal", "largest difference 6e-16")
    assert unknown.text == "–" and unknown.is_dim
    rows = [row for row in compare_figures.figures_rows(comparison) if row[1] == "One device"]
    assert [list(row[3:]) for row in rows] == [["equal", ""]]


def test_chips_leave_out_what_names_have_in_common_and_keep_what_tells_them_apart(
    make_app: MakeApp, tmp_path: Path, qtbot: QtBot
) -> None:
    names = [f"MLP · Single · seed 2 · lr {rate}" for rate in (0.3, 0.1, 0.03, 0.01, 0.003)]
    page = opened(make_app(), *(written(name).path for name in names))
    known(page, 5)
    page.chips.resize(1000, 200)
    said: list[str] = []
    with read_along(said.append):
        for chip in page.chips.chips:
            chip.grab()
    shown = [text for text in said if text.startswith("…")]
    assert len(set(shown)) == 5 and all(
        name.endswith(text[2:]) for name, text in zip(names, shown, strict=True)
    )
