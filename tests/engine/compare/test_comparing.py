"""Figures side by side: which is the best, by how much, and why none is where runs are not comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankdeck import events
from rankdeck.compare.bars import DASHES, LABEL_HEIGHT, label_heights, parted, ticks
from rankdeck.compare.curves import BY, loss_line, step_axis
from rankdeck.compare.differences import of_configurations
from rankdeck.compare.figures import Figure, ReadRun, read
from rankdeck.compare.naming import MOST_RUNS, RunAt
from rankdeck.compare.table import Comparison, FigureRow, compare
from rankdeck.compare.words import difference_in_words, shortened, step_time
from rankdeck.run.summarising import summarise
from tests.helpers.cli import rankdeck_here
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript


def written(
    runs: Path,
    name: str,
    losses: Sequence[float | None] = (4.0, 3.0, 2.0, 1.0),
    *,
    step_s: float = 0.5,
    peaks: Sequence[int] = (300, 100, 100, 100),
    config: Mapping[str, Any] | None = None,
    strategy: str = "dp",
    verified: str = "",
    **begun: Any,
) -> WrittenRun:
    run = WrittenRun(
        runs, name, {"strategy": {"use": strategy}, "devices": {"use": f"cpu:{len(peaks)}"}, **(config or {})}
    )
    kind = begun.pop("kind", "virtual")
    run.begin(1, device_infos(len(peaks), kind), steps=len(losses), strategy=strategy, **begun)
    if verified:
        run.writer("rank-0").write(VERIFIED[verified])
    run.steps(0, 1, losses, count=32.0, step_s=step_s)
    run.memory(0, 1, {place: {"parameters": peak * MIB} for place, peak in enumerate(peaks)})
    run.end()
    return run


def side_by_side(*runs: WrittenRun, baseline: int = 0) -> Comparison:
    return compare([read(RunAt(run.path)).figures for run in runs], baseline)


def row_of(comparison: Comparison, key: str) -> FigureRow:
    (row,) = [row for row in comparison.rows if row.key == key]
    return row


def test_the_figures_are_those_that_show_tells(tmp_path: Path) -> None:
    run = written(tmp_path / "runs", "a")
    figures, facts = read(RunAt(run.path)).figures, summarise(run.dir).facts()
    assert figures.value("step") == facts["steps"] == 4
    assert figures.value("loss") == facts["loss"]["last"] == 1.0
    assert figures.value("samples_per_s") == facts["samples_per_s"]
    assert figures.value("step_s") == facts["step_s"]["median"]
    assert figures.value("peak") == max(device["peak_bytes"] for device in facts["devices"])
    assert figures.value("imbalance") == facts["imbalance"]["ratio"]
    assert (figures.outcome, figures.strategy) == (facts["outcome"], "dp")


@pytest.mark.parametrize(
    ("key", "best", "difference"),
    [
        ("loss", (1,), "-50 %"),
        ("lowest_loss", (1,), "-50 %"),
        ("samples_per_s", (1,), "2×"),
        ("step_s", (1,), "-50 %"),
        ("trained_s", (1,), "-50 %"),
        ("peak", (1,), "-67 %"),
        ("peak_others", (), "same"),
        ("imbalance", (1,), "-67 %"),
        ("step", (), ""),
    ],
)
def test_the_best_of_a_row_is_marked_with_its_difference(
    tmp_path: Path, key: str, best: tuple[int, ...], difference: str
) -> None:
    runs = tmp_path / "runs"
    slow = written(runs, "a")
    fast = written(runs, "b", (4.0, 2.0, 1.0, 0.5), step_s=0.25, peaks=(100, 100, 100, 100), strategy="ddp")
    row = row_of(side_by_side(slow, fast), key)
    assert (row.best, row.differences, row.unranked) == (best, ("", difference), "")
    turned = row_of(side_by_side(slow, fast, baseline=1), key)
    assert turned.best == best and turned.differences[1] == ""


@pytest.mark.parametrize(
    ("other", "key", "reason"),
    [
        (
            {"config": {"model": {"use": "mlp", "args": {"hidden": [8]}}}},
            "samples_per_s",
            "the models differ, so times cannot",
        ),
        (
            {"config": {"model": {"use": "mlp", "args": {"hidden": [8]}}}},
            "peak",
            "the models differ, so memory cannot",
        ),
        ({"config": {"model": {"use": "resnet", "args": {}}}}, "loss", "the models differ, so losses cannot"),
        ({"config": {"data": {"use": "digits", "order": "given"}}}, "loss", "the data differ"),
        ({"kind": "gpu"}, "samples_per_s", "some of a rehearsal"),
        ({"pace": "simulated"}, "step_s", "simulated times"),
        ({"losses": (4.0, 3.0, 2.0)}, "loss", "different numbers of steps"),
        ({"losses": (4.0, 3.0, 2.0)}, "trained_s", "different numbers of steps"),
    ],
)
def test_nothing_is_the_best_of_what_is_not_comparable(
    tmp_path: Path, other: Mapping[str, Any], key: str, reason: str
) -> None:
    runs = tmp_path / "runs"
    row = row_of(
        side_by_side(written(runs, "a"), written(runs, "b", step_s=0.1, peaks=(9, 9, 9, 9), **other)), key
    )
    assert reason in row.unranked and row.best == () and row.differences == ("", "")
    alike = row_of(
        side_by_side(written(runs, "c"), written(runs, "d", (4, 3, 2, 0.5), step_s=0.1, peaks=(9, 9, 9, 9))),
        key,
    )
    assert not alike.unranked and alike.best == (1,)


def test_losses_of_other_sizes_of_a_model_are_ranked(tmp_path: Path) -> None:
    small = {"model": {"use": "mlp", "args": {"hidden": [8]}}}
    row = row_of(
        side_by_side(
            written(tmp_path / "runs", "a"), written(tmp_path / "runs", "b", (4, 3, 2, 1.5), config=small)
        ),
        "loss",
    )
    assert (row.best, row.unranked) == ((0,), "")


def test_runs_of_different_length_meet_at_the_last_step_of_both(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    row = row_of(
        side_by_side(written(runs, "a", [2.0] * 6), written(runs, "b", [3.0] * 3)), "loss_at_common_step"
    )
    assert row.label == "Loss at step 3"
    assert [figure.value if figure else None for figure in row.figures] == [2.0, 3.0] and row.best == (0,)


def test_the_same_losses_are_the_same_however_long_a_run_is(tmp_path: Path) -> None:
    """An average that is smoothed by a share of the run's length would say otherwise."""
    losses = [9.0 - 0.1 * step for step in range(60)]
    long = written(tmp_path / "runs", "long", losses)
    row = row_of(side_by_side(long, written(tmp_path / "runs", "short", losses[:20])), "loss_at_common_step")
    assert row.label == "Mean loss, steps 17 to 20"
    assert [round(figure.value, 6) if figure else None for figure in row.figures] == [7.25, 7.25]
    assert row.best == () and row.differences == ("", "same")


def test_what_cannot_be_told_apart_is_not_told_apart(tmp_path: Path) -> None:
    runs = [read(RunAt(written(tmp_path / "runs", name).path)).figures for name in "abc"]

    def with_step(run: Any, figure: Figure) -> Any:
        return replace(run, figures={"step_s": figure})

    figures = (
        Figure(0.10, low=0.08, high=0.12),
        Figure(0.11, low=0.10, high=0.13),
        Figure(0.30, low=0.29, high=0.31),
    )
    three = [with_step(run, figure) for run, figure in zip(runs, figures, strict=True)]
    assert row_of(compare(three), "step_s").best == (0, 1)
    assert row_of(compare(three[:2]), "step_s").best == ()
    assert row_of(compare([three[0], three[2]]), "step_s").best == (0,)
    losses = [
        replace(run, figures={"held_out": Figure(at)})
        for run, at in zip(runs, (6.60566, 6.60561, 6.7), strict=True)
    ]
    assert row_of(compare(losses), "held_out").best == (0, 1)


def test_what_a_run_did_not_tell_is_unknown(tmp_path: Path) -> None:
    empty = WrittenRun(tmp_path / "runs", "empty")
    empty.begin()
    empty.end("failed")
    comparison = side_by_side(written(tmp_path / "runs", "a"), empty)
    for row in comparison.rows:
        assert row.figures[1] is None and row.cell(1) == "–" and row.best == () and row.differences[1] == ""
    both = side_by_side(empty, empty)
    assert both.rows == () and compare(both.runs).configuration == ()


def test_only_what_differs_is_told_of_configurations(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = written(runs, "a", config={"train": {"seed": 1, "optimizer": {"use": "sgd", "lr": 0.1}}})
    second = written(
        runs,
        "b",
        config={"train": {"seed": 2, "optimizer": {"use": "adamw", "lr": 0.1, "eps": 1e-6}}},
        strategy="ddp",
    )
    told = {row.key: row.values for row in side_by_side(first, second).configuration}
    assert told == {
        "train.seed": ("1", "2"),
        "train.optimizer.use": ("sgd", "adamw"),
        "train.optimizer.weight_decay": ("0.0", "0.01"),
        "train.optimizer.eps": (None, "1e-06"),
        "strategy.use": ("dp", "ddp"),
    }


def test_an_attempt_alone_has_its_own_figures(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", "a", {"strategy": {"use": "dp"}})
    run.begin(1, device_infos(2), steps=8, strategy="dp")
    run.steps(0, 1, [8.0, 7.0, 6.0, 5.0, 9.0], step_s=0.5)
    run.memory(0, 2, {0: {"gathered": 9 * MIB}, 1: {"gathered": MIB}})
    run.writer("supervisor").write(events.RunEnded(outcome="stopped", exit_code=0, attempt=0))
    run.begin(1, device_infos(2), steps=8, strategy="ddp", attempt=1)
    run.writer("rank-0", 1).write(events.Restored(rank=0, step=4))
    run.steps(0, 5, [4.0, 3.0, 2.0, 1.0], step_s=0.25, attempt=1)
    run.memory(0, 5, {0: {"parameters": 2 * MIB}, 1: {"parameters": 2 * MIB}}, attempt=1)
    run.end()
    before, after, whole = (read(RunAt(run.path, attempt)) for attempt in (0, 1, None))
    assert [one.figures.outcome for one in (before, after, whole)] == ["stopped", "completed", "completed"]
    assert [one.figures.strategy for one in (before, after, whole)] == ["dp", "ddp", "ddp"]
    assert [one.figures.value("step") for one in (before, after, whole)] == [5, 8, 8]
    assert [one.figures.value("loss") for one in (before, after, whole)] == [9.0, 1.0, 1.0]
    assert [one.figures.value("peak") for one in (before, after)] == [9 * MIB, 2 * MIB]
    assert [one.figures.value("step_s") for one in (before, after)] == [0.5, 0.25]
    assert [one.figures.name for one in (before, whole)] == ["a @0", "a"]
    steps = _drawn(after, "step")
    assert steps.tolist() == [5, 6, 7, 8]
    assert _drawn(after, "time").tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert _drawn(after, "samples").tolist() == [80, 96, 112, 128]  # 16 a step, those before it counted


def _drawn(run: ReadRun, by: str) -> Any:
    return loss_line(run.fold, step_axis(run.fold, by)).average_x


def test_pauses_between_attempts_are_no_time_of_training(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", "a")
    run.begin(1, steps=4)
    run.steps(0, 1, [4.0, 3.0], step_s=1.0)
    run.begin(1, steps=4, attempt=1)
    run.writer("rank-0", 1).write(events.Restored(rank=0, step=2))
    run.started += 86_400
    run.steps(0, 3, [2.0, 1.0], step_s=1.0, attempt=1)
    run.end()
    whole = read(RunAt(run.path))
    assert _drawn(whole, "time").tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert whole.figures.value("trained_s") == pytest.approx(4.0)
    assert _drawn(whole, "samples").tolist() == [16, 32, 48, 64]


def test_an_axis_is_read_both_ways(tmp_path: Path) -> None:
    run = read(RunAt(written(tmp_path / "runs", "a", [1.0] * 40).path))
    for by, places in (("step", [1, 40]), ("time", [0.5, 20.0]), ("samples", [16, 640])):
        axis = step_axis(run.fold, by)
        assert axis.places_of(np.array([1.0, 40.0])).tolist() == pytest.approx(places)
        assert [axis.step_at(place) for place in places] == pytest.approx([1, 40])
    within = loss_line(run.fold, step_axis(run.fold, "time"), within=(5.0, 6.0))
    assert within.average_x.min() <= 5.0 and within.average_x.max() >= 6.0 and len(within.average_x) < 8


@pytest.mark.parametrize("by", BY)
def test_an_axis_of_many_steps_has_few_knots_and_their_places(tmp_path: Path, by: str) -> None:
    run = read(RunAt(written(tmp_path / "runs", "a", [1.0] * 3).path))
    num_steps, random = 50_000, np.random.default_rng(0)
    steps, losses = np.arange(4.0, 4 + num_steps), np.ones((2, num_steps))
    samples, step_s = random.integers(1, 64, num_steps), random.uniform(0.5, 1.5, num_steps)
    table = run.fold.attempts[0].table
    ended = float(table.column("ended")[-1]) + np.cumsum(step_s)
    table.append(np.stack([steps, *losses, samples, step_s, ended]))
    axis = step_axis(run.fold, by)
    assert len(axis._steps) <= 2 * 4096
    before = {"step": 1.0, "time": 0.5, "samples": 16.0}[by] * np.arange(1, 4)
    then = {"step": np.ones(num_steps), "time": step_s, "samples": samples}[by]
    exact = np.concatenate([before, before[-1] + np.cumsum(then)])
    off = np.abs(axis.places_of(np.arange(1.0, 4 + num_steps)) - exact)
    assert off.max() < 5e-4 * exact[-1], "steps between two knots lie on a line"
    assert off[[0, -1]] == pytest.approx(0, abs=1e-6) and axis.end == pytest.approx(exact[-1])


def test_scripts_take_part_with_what_they_have(tmp_path: Path) -> None:
    def script(lr: str, last: float) -> WrittenScript:
        run = WrittenScript(tmp_path / "runs", f"train {lr}", {"args": ["--lr", lr]})
        run.launch(1)
        run.see(
            model="net:Net", num_parameters=10, dataset="data:Set", num_samples=64, wrapper="DataParallel"
        )
        run.step(0, 1, [3.0, None, None, last], step_s=0.5)
        run.finish()
        return run

    first, second = script("0.1", 2.0), script("0.2", 1.0)
    comparison = side_by_side(first, second)
    assert row_of(comparison, "loss").best == (1,)
    assert {row.key for row in comparison.configuration} == {"script.args"}
    assert not [row for row in comparison.rows if row.key in ("samples_per_s", "peak", "sent")]
    assert step_axis(read(RunAt(first.path)).fold, "samples").end is None
    mixed = side_by_side(first, second, written(tmp_path / "runs", "configured"))
    assert "scripts" in row_of(mixed, "loss").unranked and {row.key for row in mixed.configuration} == {
        "script.args"
    }


@pytest.mark.parametrize(
    ("unit", "value", "base", "words"),
    [
        ("bytes", 100 * MIB, 100 * MIB + 1, "same"),
        ("bytes", 300 * MIB, 100 * MIB, "3×"),
        ("bytes", 90 * MIB, 100 * MIB, "-10 %"),
        ("loss", 1.003, 1.0, "+0.3 %"),
        ("loss", 1.0006, 1.0, "+0.06 %"),
        ("loss", 6.60561, 6.60566, "same"),
        ("loss", -1.0, 1.0, ""),
        ("loss", 1.0, 0.0, ""),
        ("share", 0.30, 0.25, "+5.0 points"),
        ("rate", 500_000.0, 100.0, "5\u2009000×"),
    ],
)
def test_a_difference_in_words(unit: str, value: float, base: float, words: str) -> None:
    assert difference_in_words(unit, Figure(value), Figure(base)) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.2345, "1.23 s"), (0.9999, "1.00 s"), (0.0125, "12.5 ms"), (8.4e-4, "840 µs"), (2e-7, "0.20 µs")],
)
def test_a_step_time_has_three_figures(seconds: float, words: str) -> None:
    assert step_time(seconds) == words


def test_the_home_folder_is_shortened_wherever_it_is_named() -> None:
    home = Path("/home/me")
    assert shortened("/home/me/runs/a", home) == "~/runs/a"
    assert (
        shortened("rankdeck --runs '/home/me' --set x=/home/me/b /home/me", home)
        == "rankdeck --runs '~' --set x=~/b ~"
    )
    assert shortened("/home/mel/runs", home) == "/home/mel/runs"
    assert shortened("/root", Path("/")) == "/root"


def test_labels_are_parted_and_stay_inside() -> None:
    found = parted([10, 11, 12, 95, 99], 12, 0, 100)
    assert found == sorted(found) and all(b - a >= 12 - 1e-9 for a, b in pairwise(found))
    assert found[0] >= 0 and found[-1] <= 100
    assert label_heights([(10, 50), (500, 51), (12, 50)], 0, 100) == [50, 51, 63]
    heights = label_heights([(0, 50), (15, 50), (17, 50)], 0, 100)
    assert all(b - a >= LABEL_HEIGHT for a, b in pairwise(sorted(heights))), "of the last two as well"
    assert ticks(0, 60, 6) == [0, 10, 20, 30, 40, 50, 60] and ticks(1.0, 1.0, 5) == [1.0]
    assert len(set(DASHES)) == len(DASHES) == MOST_RUNS and set(BY) == {"step", "time", "samples"}


@pytest.mark.filterwarnings("ignore:overflow")
def test_times_beyond_all_numbers_have_no_axis(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.begin(1)
    for step, ended in ((1, -1.7e308), (2, 1.7e308)):
        run.writer("rank-0").write(
            events.Steps(rank=0, first=step, loss_sum=[1.0], count=[1.0], ended=[ended], step_s=[0.1])
        )
    run.lose()
    fold = read(RunAt(run.path)).fold
    assert step_axis(fold, "time").end is None and step_axis(fold, "step").end is not None
    rankdeck_here("report", run.path, "--html", tmp_path / "page.html", "--by", "time", code=0)


def test_what_is_beyond_all_numbers_times_as_much_is_not_told() -> None:
    tiny, huge = Figure(5e-324), Figure(1e308)
    assert difference_in_words("bytes", huge, tiny) == ""


def test_a_configuration_that_somebody_has_broken_is_compared_as_it_stands() -> None:
    odd: list[Any] = [{"model": {"use": {}}}, {"model": {"use": [1]}}, {"model": {"use": "mlp"}}]
    runs: Any = [SimpleNamespace(background=SimpleNamespace(tables=tables)) for tables in odd]
    rows = {row.key: row.values for row in of_configurations(runs)}
    assert rows["model.use"] == ("{}", "[1]", "mlp")


def test_whether_runs_equal_one_device_is_a_row_of_words(tmp_path: Path) -> None:
    runs = [
        written(tmp_path / "runs", name, verified=outcome)
        for name, outcome in (("a", "equal"), ("b", "unchecked"))
    ]
    runs.append(written(tmp_path / "runs", "old"))
    row = row_of(side_by_side(*runs), "verified")
    assert row.label == "One device" and not row.best and not any(row.differences)
    assert [row.cell(place) for place in range(3)] == ["equal", "not verified", "–"]
    assert row.more(0) == "largest difference 6e-16" and "do not fit" in row.more(1) and row.more(2) == ""
    out = rankdeck_here("compare", *(run.path for run in runs), code=0).out
    assert "One device" in out and "largest difference 6e-16" in " ".join(out.split())
    assert "\nB: Two steps of the model on one device do not fit the memory\n" in out, "below the table"
    assert not [row for row in side_by_side(runs[2]).rows if row.key == "verified"], "nobody checked"
