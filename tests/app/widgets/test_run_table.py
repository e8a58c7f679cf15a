"""The table of runs without the app: what is found, in which order and groups, and what stays chosen."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QItemSelectionModel, QPoint, QRect, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPixmap, QStandardItemModel
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QLineEdit, QListView
from pytestqt.qtbot import QtBot

from rankdeck.run.imbalance import Imbalance
from rankdeck.run.row import RaceFacts, RunInfo, RunMetrics
from rankdeck.run.run_intervals import RunInterval
from rankdeck.run_dir import Labels
from rankdeck_app.state.runs import RunsModel
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.painting import chart_font
from rankdeck_app.widgets.run_columns import COLUMN_INDICES, COLUMNS, COLUMNS_BY_KEY, NAME_COLUMN
from rankdeck_app.widgets.run_list import (
    ROW_HEIGHT,
    RunDelegate,
    outcome_style,
    state_and_age_text,
    strategy_text,
)
from rankdeck_app.widgets.run_names import NameShortener
from rankdeck_app.widgets.run_table import RunTable
from rankdeck_app.widgets.run_table_model import RunArrangement, RunGroup, RunTableModel

NOW = time.time()
OLD = NOW - 800 * 86_400


def make_run(name: str, strategy: str = "ddp", outcome: str = "completed", **facts: object) -> RunInfo:
    facts = {"num_devices": 4, "device_kind": "virtual", "step": 10, "steps": 10, **facts}
    return RunInfo(Path(f"/runs/{name}"), name, outcome, strategy, **facts)  # type: ignore[arg-type]


def make_figures(loss: float, ratio: float | None = None) -> RunMetrics:
    lead = None if ratio is None else Imbalance(0, 2**20, (ratio - 1) * 2**20, ratio)
    return RunMetrics(loss, loss + 0.1, 300 * 2**20, lead, 1234.5, 0.25)


RUNS = (
    make_run("delta", "dp", "failed", started=NOW - 60, step=3, steps=150, reason="rank 1: out of memory"),
    make_run(
        "alpha",
        metrics=make_figures(2.0, 3.2),
        started=NOW - 90_000,
        intervals=(RunInterval(NOW - 90_000, NOW - 89_500), RunInterval(NOW - 3_600, NOW - 3_100)),
    ),
    make_run("beta", metrics=make_figures(1.5, 1.0), started=OLD, labels=Labels(tags=("paper",))),
    make_run("gamma", "pipeline", "lost", num_devices=None, device_kind="", steps=None, step=0),
    make_run("omega", labels=Labels(is_archived=True), started=NOW - 50.0),
)


def test_a_run_is_listed_in_the_group_of_each_tag(qtbot: QtBot) -> None:
    both = make_run("both", labels=Labels(tags=("paper", "Slow")))
    model = make_model(
        [both, make_run("one", labels=Labels(tags=("paper",))), make_run("none")], group="tags"
    )
    assert row_texts(model) == ["[paper 2]", "both", "one", "[Slow 1]", "both", "[no tags 1]", "none"]
    table = RunTable(Theme(), model)
    qtbot.addWidget(table)
    table.selectAll()
    assert [info.title for info in table.selected_runs()] == ["both", "one", "none"]
    renamed = replace(both, title="renamed")
    model.set_infos([renamed, *model._infos[1:]])
    assert row_texts(model).count("renamed") == 2 and "both" not in row_texts(model)


def make_race(**facts: object) -> RunInfo:
    path = Path("/runs/race")
    entries = tuple(
        replace(make_run(name, name, metrics=make_figures(2.0)), path=path / "entries" / name, entry_of=path)
        for name in ("single", "ddp")
    )
    fields = {
        "entries": entries,
        "num_entries": 2,
        "num_done": 2,
        "fastest": "ddp",
        "losses": "agrees",
        **facts,
    }
    return RunInfo(
        path, "Race", "completed", num_devices=2, device_kind="gpu", started=NOW, metrics=RunMetrics(),
        race=RaceFacts(**fields),  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_run_with_lost_events_is_marked() -> None:
    lossy = make_run("lossy", outcome="completed", reason="No space left on device: 78 lines of events")
    state = next(at for at, column in enumerate(COLUMNS) if column.key == "state")
    model = make_model([lossy])
    assert model.text_at(0, state) == "events lost", "as much as the column has room for"
    text_width = QFontMetricsF(chart_font(11)).horizontalAdvance("events lost")
    assert COLUMNS[state].width >= text_width + 36, "with its symbol"
    tip = model.data(model.index(0, state), Qt.ItemDataRole.ToolTipRole)
    assert tip == f"completed, events lost\n{lossy.reason}"
    assert "events lost" in state_and_age_text(lossy) and outcome_style(lossy.state)[0] == "warning"


def test_a_race_row_expands_into_its_entries(qtbot: QtBot) -> None:
    model = make_model([make_race(), *RUNS])
    QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    assert row_texts(model)[:2] == ["Race", "delta"] and model.num_found == 5
    texts = {column.key: model.text_at(0, at) for at, column in enumerate(COLUMNS)}
    assert (texts["strategy"], texts["step"], texts["loss"]) == ("DDP fastest", "2 raced", "agree")
    table = RunTable(Theme(), model)
    qtbot.addWidget(table)
    table.resize(500, 300)
    table.show()
    table.select_run(Path("/runs/race"))
    qtbot.keyClick(table, Qt.Key.Key_Right)
    assert row_texts(model)[:4] == ["Race", "single", "ddp", "delta"]
    assert [model.text_at(at, 0) for at in (1, 2)] == ["Single", "DDP"]
    table.setCurrentIndex(model.index(2, 0))
    table.rename()
    assert not table.findChildren(QLineEdit), "an entry is its race's"
    qtbot.keyClick(table, Qt.Key.Key_Left)
    assert table.current_run() == model.rows[0]
    goes_on = make_race(num_done=1, fastest=None, losses=None)
    model.set_infos([goes_on, *RUNS])
    assert model.text_at(0, [column.key for column in COLUMNS].index("step")) == "1 of 2"
    assert row_texts(model)[:3] == ["Race", "single", "ddp"]
    qtbot.mouseClick(table.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(12, 10))
    assert row_texts(model)[:2] == ["Race", "delta"]


@pytest.mark.parametrize(
    ("num_done", "outcome", "expected"),
    [
        (1, "running", ""),  # nothing to be faster than
        (2, "running", "DDP so far"),
        (2, "stopped", "DDP fastest"),
        (3, "completed", "DDP fastest"),
    ],
)
def test_a_running_race_has_no_fastest_strategy_yet(num_done: int, outcome: str, expected: str) -> None:
    assert strategy_text(replace(make_race(num_entries=3, num_done=num_done), outcome=outcome)) == expected


def test_a_selected_row_still_shows_its_progress(qtbot: QtBot) -> None:
    """As rows are painted that are chosen, or that cannot be."""
    theme, model, view = Theme(), QStandardItemModel(1, 1), QListView()
    qtbot.addWidget(view)
    index, row = model.index(0, 0), QPixmap(200, ROW_HEIGHT)
    model.setData(index, make_run("alive", outcome="running", step=30, steps=40), RunsModel.InfoRole)
    row.fill(theme.color("sideBar.background"))
    painter, ink = QPainter(row), theme.color("disabledForeground")
    RunDelegate(theme, view, ()).paint_row(painter, row.rect(), index, lambda _key: ink)
    painter.end()
    done, left = (row.toImage().pixelColor(x, ROW_HEIGHT - 2) for x in (140, 160))
    assert done == ink != left


def test_the_name_column_stays_while_scrolling_sideways(qtbot: QtBot) -> None:
    table = RunTable(Theme(), make_model())
    qtbot.addWidget(table)
    table.resize(500, 300)
    table.show()
    at_rest = table.viewport().grab(QRect(0, 0, 100, 100)).toImage()
    assert table.header.frozen_width == 0
    table.horizontalScrollBar().setValue(300)
    width = table.header.sectionSize(0)
    assert table.header.frozen_width == width
    assert table.viewport().grab(QRect(0, 0, 100, 100)).toImage() == at_rest
    sort_keys: list[str] = []
    table.header.sort_requested.connect(sort_keys.append)
    qtbot.mouseClick(table.header.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(30, 10))
    qtbot.mouseClick(table.header.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(width + 60, 10))
    assert sort_keys[0] == "name" and sort_keys[1] != "name"
    table.header.moveSection(0, 2)
    assert table.header.frozen_width == 0, "another column stands in front of them"


def make_model(runs: Sequence[RunInfo] = RUNS, **arranged: object) -> RunTableModel:
    model = RunTableModel()
    model.set_infos(runs)
    model.arrange(replace(RunArrangement(), **arranged))  # type: ignore[arg-type]
    return model


def row_texts(model: RunTableModel) -> list[str]:
    """Names of runs; heads of groups as '[label count]'."""
    return [f"[{row.label} {row.count}]" if isinstance(row, RunGroup) else row.title for row in model.rows]


@pytest.mark.parametrize(
    ("sort", "is_descending", "expected"),
    [
        ("name", False, "alpha beta delta gamma"),
        ("name", True, "gamma delta beta alpha"),
        ("loss", False, "beta alpha delta gamma"),
        ("loss", True, "alpha beta delta gamma"),
        ("imbalance", True, "alpha beta delta gamma"),
        ("began", True, "delta alpha beta gamma"),
        ("began", False, "beta alpha delta gamma"),
        ("step", True, "alpha beta delta gamma"),
        ("lasted", False, "alpha delta beta gamma"),
        ("tags", False, "beta delta alpha gamma"),
        ("nonsense", False, "alpha beta delta gamma"),
    ],
)
def test_rows_are_sorted_with_unknown_values_last(sort: str, is_descending: bool, expected: str) -> None:
    assert row_texts(make_model(sort=sort, is_descending=is_descending)) == expected.split()


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("strategy", ["[DDP 2]", "alpha", "beta", "[DP 1]", "delta", "[Pipeline 1]", "gamma"]),
        ("state", ["[completed 2]", "alpha", "beta", "[failed 1]", "delta", "[lost 1]", "gamma"]),
        ("imbalance", ["[balanced 1]", "beta", "[2× – 4× 1]", "alpha", "[unknown 2]", "delta", "gamma"]),
        ("step", ["[0 – 25 % 1]", "delta", "[all steps done 2]", "alpha", "beta", "[unknown 1]", "gamma"]),
        ("lasted", ["[10 – 60 minutes 1]", "alpha", "[unknown 3]", "delta", "beta", "gamma"]),
        ("tags", ["[paper 1]", "beta", "[no tags 3]", "delta", "alpha", "gamma"]),
        ("loss", ["[1.0000 – 10.0000 2]", "alpha", "beta", "[unknown 2]", "delta", "gamma"]),
        ("peak", ["[256 MiB – 512 MiB 2]", "alpha", "beta", "[unknown 2]", "delta", "gamma"]),
        ("bubble", ["[25 – 50 % 2]", "alpha", "beta", "[unknown 2]", "delta", "gamma"]),
    ],
)
def test_runs_are_in_groups_by_any_column(group: str, expected: list[str]) -> None:
    assert row_texts(make_model(group=group)) == expected


def test_groups_by_start_time_are_newest_first() -> None:
    heads = [
        row.label for row in make_model(group="began", is_descending=False).rows if isinstance(row, RunGroup)
    ]
    month = time.strftime("%B %Y", time.localtime(OLD))
    assert heads[0] in ("Today", "Yesterday") and heads[-2:] == [month, "unknown"]


@pytest.mark.parametrize("key", [column.key for column in COLUMNS])
def test_every_column_handles_unknown_values(key: str) -> None:
    column = COLUMNS_BY_KEY[key]
    odd = make_run("odd", "", "unheard", metrics=make_figures(float("nan"), None), started=0.0, num_devices=0)
    none = replace(odd, metrics=RunMetrics(loss=float("inf"), samples_per_s=0.0), started=None, step=0)
    for info in (*RUNS, odd, none):
        assert isinstance(column.text(info), str)
        assert column.get_group(info) is None or column.get_group(info)[1]  # type: ignore[index]
    for is_descending in (True, False):
        model = make_model((*RUNS, odd, none), sort=key, group=key, is_descending=is_descending)
        assert sum(isinstance(row, RunInfo) for row in model.rows) == 6


def test_collapsed_groups_and_archived_runs_are_hidden() -> None:
    model = make_model(group="strategy", collapsed=frozenset({"DDP"}))
    assert row_texts(model) == ["[DDP 2]", "[DP 1]", "delta", "[Pipeline 1]", "gamma"]
    assert (model.num_found, model.num_archived) == (4, 1)
    model.arrange(RunArrangement(shows_archived=True))
    assert "omega" in row_texts(model)
    model.arrange(RunArrangement())
    model.set_search("is:archived")
    assert row_texts(model) == ["omega"]


def test_cell_texts() -> None:
    model = make_model(sort="name", is_descending=False)
    texts = {column.key: [model.text_at(row, at) for row in range(4)] for at, column in enumerate(COLUMNS)}
    assert texts["step"] == ["10 / 10", "10 / 10", "3 / 150", ""]
    assert texts["imbalance"] == ["3.2×", "balanced", "", ""]
    assert (texts["peak"][0], texts["samples_per_s"][0], texts["bubble"][0]) == (
        "300.0 MiB",
        "1\u2009234",
        "25 %",
    )
    assert texts["devices"] == ["4 virtual", "4 virtual", "4 virtual", ""]
    assert texts["lasted"] == ["16:40", "", "", ""], "not the day in which it lay stopped"
    state = next(at for at, column in enumerate(COLUMNS) if column.key == "state")
    assert model.data(model.index(2, state), Qt.ItemDataRole.ToolTipRole) == "rank 1: out of memory"


def test_the_model_is_consistent_through_random_changes(qtbot: QtBot) -> None:
    rng, model = random.Random(5), RunTableModel()
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Warning)
    pool = [replace(rng.choice(RUNS), path=Path(f"/r/{n}"), title=f"run {n}") for n in range(30)]
    for _ in range(60):
        model.set_infos(
            [replace(info, step=rng.randrange(9)) for info in rng.sample(pool, rng.randrange(30))]
        )
        keys = [rng.choice([*COLUMNS_BY_KEY, ""]) for _ in range(2)]
        closed = frozenset(rng.sample(["DDP", "unknown", "completed"], 2))
        model.arrange(RunArrangement(keys[0], rng.random() < 0.5, keys[1], closed, rng.random() < 0.5))
        model.set_search(rng.choice(["", "state:lost", "-run 1"]))
    del tester


def test_a_live_run_updates_only_its_own_row(qtbot: QtBot) -> None:
    alive = make_run("delta", "dp", "running", started=NOW - 60, step=3, steps=150)
    model = make_model((alive, *RUNS[1:]), group="strategy")
    resets: list[int] = []
    model.modelReset.connect(lambda: resets.append(1))
    at = model.find_row(alive.path)
    assert at is not None
    with qtbot.waitSignal(model.dataChanged) as changed:
        model.set_infos([replace(alive, step=4), *RUNS[1:]])
    assert changed.args[0].row() == at and "4 / 150" in [model.text_at(at, c) for c in range(len(COLUMNS))]
    assert not resets
    for other in (
        replace(alive, step=5, strategy="ddp"),
        replace(alive, labels=Labels(is_archived=True)),
        replace(alive, started=NOW - 10**6),
    ):
        resets.clear()
        model.set_infos([other, *RUNS[1:]])
        assert resets and row_texts(model) == row_texts(make_model((other, *RUNS[1:]), group="strategy"))


def test_ages_are_updated_in_every_row(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = make_run("alive", outcome="running", started=NOW, intervals=(RunInterval(NOW),))
    model = make_model([make_run("ended", started=NOW), alive, make_run("unknown")])

    def column_texts(key: str) -> list[str]:
        return [model.text_at(row, COLUMN_INDICES[key]) for row in range(3)]

    monkeypatch.setattr(time, "time", lambda: NOW + 1)
    assert (column_texts("began"), column_texts("lasted")) == (["now", "now", ""], ["", "1.0 s", ""])
    changed: list[tuple[int, int, int, int]] = []
    model.dataChanged.connect(
        lambda first, last: changed.append((first.row(), last.row(), first.column(), last.column()))
    )
    monkeypatch.setattr(time, "time", lambda: NOW + 125)
    model.update_ages()
    assert changed == [(0, 2, COLUMN_INDICES[key], COLUMN_INDICES[key]) for key in ("began", "lasted")]
    assert (column_texts("began"), column_texts("lasted")) == (
        ["2 min ago", "2 min ago", ""],
        ["", "2:05", ""],
    )
    make_model([]).update_ages()


# The widget


@pytest.fixture
def table(qtbot: QtBot, theme: Theme) -> RunTable:
    table = RunTable(theme, make_model(sort="name", is_descending=False))
    qtbot.addWidget(table)
    table.resize(1100, 500)
    with qtbot.waitExposed(table):
        table.show()
    table.setFocus()
    return table


@pytest.fixture
def theme(qapp: object) -> Theme:
    return Theme()


def row_center(table: RunTable, name: str) -> QPoint:
    row = row_texts(table.runs).index(name)
    return table.visualRect(table.runs.index(row, 0)).center()


def selected_titles(table: RunTable) -> list[str]:
    return [info.title for info in table.selected_runs()]


def test_clicks_select_preview_and_open(qtbot: QtBot, table: RunTable) -> None:
    looked: list[str] = []
    opened: list[str] = []
    table.preview_requested.connect(lambda info: looked.append(info.title))
    table.opened.connect(lambda info: opened.append(info.title))
    left, viewport = Qt.MouseButton.LeftButton, table.viewport()
    qtbot.mouseClick(viewport, left, pos=row_center(table, "beta"))
    assert (selected_titles(table), looked, opened) == (["beta"], ["beta"], [])
    control, shift = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
    qtbot.mouseClick(viewport, left, control, row_center(table, "gamma"))
    assert (selected_titles(table), looked) == (["beta", "gamma"], ["beta"]), (
        "who chooses several looks at none"
    )
    qtbot.mouseClick(viewport, left, pos=row_center(table, "alpha"))
    qtbot.mouseClick(viewport, left, shift, row_center(table, "delta"))
    assert selected_titles(table) == ["alpha", "beta", "delta"] and looked == ["beta", "alpha"]
    qtbot.mouseDClick(viewport, left, pos=row_center(table, "delta"))
    assert opened == ["delta"]
    qtbot.keyClick(table, Qt.Key.Key_Home)
    qtbot.keyClick(table, Qt.Key.Key_Down)
    qtbot.keyClick(table, Qt.Key.Key_Return)
    qtbot.keyClick(table, Qt.Key.Key_Space)
    assert (opened, looked[-1], selected_titles(table)) == (["delta", "beta"], "beta", ["beta"])


def test_the_selection_follows_the_runs(table: RunTable) -> None:
    select = QItemSelectionModel.SelectionFlag.Select | QItemSelectionModel.SelectionFlag.Rows
    for name in ("alpha", "delta"):
        table.selectionModel().select(table.runs.index(row_texts(table.runs).index(name), 0), select)
    table.sort_by("loss")
    assert set(selected_titles(table)) == {"alpha", "delta"}
    table.group_by("strategy")
    table.runs.set_infos([make_run("new", started=NOW), *RUNS])
    assert set(selected_titles(table)) == {"alpha", "delta"}
    table.set_group_open("DP", False)
    assert selected_titles(table) == ["alpha"]


def test_keys_and_clicks_collapse_groups(qtbot: QtBot, table: RunTable) -> None:
    table.group_by("strategy")
    table.setCurrentIndex(table.runs.index(0, 0))
    for key, num_rows in (
        (Qt.Key.Key_Left, 5), (Qt.Key.Key_Left, 5), (Qt.Key.Key_Right, 7), (Qt.Key.Key_Return, 5),
    ):  # fmt: skip
        qtbot.keyClick(table, key)
        assert table.runs.rowCount() == num_rows and table.currentIndex().row() == 0, key
    qtbot.mouseClick(
        table.viewport(), Qt.MouseButton.LeftButton, pos=table.visualRect(table.runs.index(0, 0)).center()
    )
    assert table.runs.rowCount() == 7 and table.current_run() is None


def test_a_run_is_renamed_inline(qtbot: QtBot, table: RunTable) -> None:
    table.select_run(Path("/runs/beta"))
    table.rename()
    editor = table.viewport().findChild(QLineEdit)
    assert editor is not None and (editor.text(), editor.selectedText()) == ("beta", "beta")
    with qtbot.waitSignal(table.runs.rename_requested) as renamed:
        qtbot.keyClicks(editor, "better")
        qtbot.keyClick(editor, Qt.Key.Key_Return)
    assert renamed.args == [Path("/runs/beta"), "better"]


def test_columns_are_restored(qtbot: QtBot, table: RunTable, theme: Theme) -> None:
    header = table.header
    header.moveSection(header.visualIndex(5), 0)
    header.resizeSection(0, 321)
    header.show_column(2, False)
    state = json.loads(json.dumps(header.columns_state()))
    other = RunTable(theme, make_model())
    qtbot.addWidget(other)
    other.header.restore(state)
    assert other.header.columns_state() == state and other.isColumnHidden(2)
    other.header.show_column(2, True)
    assert other.columnWidth(2) == header._widths[2]
    for odd in (None, {}, [3, {"key": "no"}, {"key": "loss", "width": -4, "shown": 0}], [{"width": 3}]):
        other.header.restore(odd)
        assert len(other.header.columns_state()) == len(COLUMNS) and not other.isColumnHidden(0)


def test_the_name_column_takes_the_remaining_width_until_resized(
    qtbot: QtBot, table: RunTable, theme: Theme
) -> None:
    header = table.header
    table.resize(1900, 300)
    assert header.length() == header.viewport().width() and header.columns_state()[0]["width"] is None
    table.resize(600, 300)
    assert header.sectionSize(NAME_COLUMN) == COLUMNS[NAME_COLUMN].width < header.length()
    header.resizeSection(1, 300)
    table.resize(1900, 300)
    assert header.length() == header.viewport().width(), "another column was stretched"
    again = RunTable(theme, make_model())
    qtbot.addWidget(again)
    again.resize(1900, 300)
    again.show()
    again.header.restore(json.loads(json.dumps(header.columns_state())))
    assert again.columnWidth(1) == 300 and again.header.length() == again.header.viewport().width()
    header.resizeSection(NAME_COLUMN, 120)
    table.resize(1800, 300)
    assert header.sectionSize(NAME_COLUMN) == 120 == header.columns_state()[0]["width"]
    header.reset_columns()
    assert header.length() == header.viewport().width()


def test_columns_fit_their_contents_and_tags_appear_when_used(qtbot: QtBot, theme: Theme) -> None:
    model = make_model([replace(info, labels=Labels()) for info in RUNS])
    table = RunTable(theme, model)
    qtbot.addWidget(table)
    table.resize(980, 300)
    table.show()
    assert table.isColumnHidden(COLUMN_INDICES["tags"]) and not table.horizontalScrollBar().isVisible()
    assert table.columnWidth(COLUMN_INDICES["strategy"]) < COLUMNS[COLUMN_INDICES["strategy"]].width
    model.set_infos([RUNS[2], *model._infos[:2]])
    assert not table.isColumnHidden(COLUMN_INDICES["tags"])
    for key in ("state", "peak", "began"):
        needed = table.header.fontMetrics().horizontalAdvance(model.text_at(0, COLUMN_INDICES[key])) + 16
        assert table.columnWidth(COLUMN_INDICES[key]) >= needed
    table.header.show_column(COLUMN_INDICES["tags"], False)
    model.set_infos(RUNS)
    assert table.isColumnHidden(COLUMN_INDICES["tags"]), "as a person asked"


def test_the_header_sorts_groups_and_hides(qtbot: QtBot, table: RunTable) -> None:
    table.header.sort_requested.emit("loss")
    assert (table.runs.arrangement.sort, table.runs.arrangement.is_descending) == ("loss", True)
    table.header.sort_requested.emit("loss")
    assert not table.runs.arrangement.is_descending
    menu = table.header.build_menu(2)
    actions = {action.text(): action for action in menu.actions()}
    actions["Group by Strategy"].trigger()
    assert table.runs.arrangement.group == "strategy"
    actions["Hide Strategy"].trigger()
    assert table.isColumnHidden(2)
    actions["Note"].trigger()
    assert not table.isColumnHidden([column.key for column in COLUMNS].index("note"))
    actions["Reset Columns"].trigger()
    assert not table.isColumnHidden(2)


LONG = [f"MLP · Single · seed {seed} · lr {rate}" for seed in (1, 2) for rate in (0.3, 0.003)]


def test_empty_columns_shrink_before_names(qtbot: QtBot, theme: Theme) -> None:
    table = RunTable(theme, make_model([make_run(name, "single") for name in LONG]))
    qtbot.addWidget(table)
    table.show()
    header, needed = table.header, QFontMetricsF(chart_font(12)).horizontalAdvance(LONG[-1]) + 16
    for width in (1900, 1033, 600, 1900):
        table.resize(width, 300)
        assert header.sectionSize(NAME_COLUMN) >= needed, width
    table.resize(600, 300)
    title_width = header.fontMetrics().horizontalAdvance("Imbalance")
    assert header.sectionSize(COLUMN_INDICES["imbalance"]) == 40 < title_width
    table.resize(1900, 300)
    assert header.sectionSize(COLUMN_INDICES["imbalance"]) > title_width


def test_a_shortened_name_keeps_its_distinguishing_part(qapp: object) -> None:
    metrics, names = QFontMetricsF(chart_font(12)), NameShortener([*LONG, "GPT · DP · 4"])
    width = metrics.horizontalAdvance(LONG[0])
    assert names.shorten(LONG[0], metrics, width) == LONG[0]
    assert names.shorten(LONG[0], metrics, width - 1) == "… Single · seed 1 · lr 0.3"
    cut = {names.shorten(name, metrics, metrics.horizontalAdvance("… seed 1 · lr 0.003")) for name in LONG}
    assert len(cut) == 4 and all(name.startswith("… seed") for name in cut)
    assert names.shorten("GPT · DP · 4", metrics, metrics.horizontalAdvance("GPT · DP")).startswith("GPT")
