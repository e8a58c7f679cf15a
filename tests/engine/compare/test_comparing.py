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
from rankdeck.compare.bar_charts import DASHES, LABEL_HEIGHT, label_heights, space_labels, ticks
from rankdeck.compare.curves import AXES, loss_curve, step_axis
from rankdeck.compare.differences import config_differences
from rankdeck.compare.formatting import format_difference, format_step_time, shorten_home
from rankdeck.compare.run_metrics import LoadedRun, MetricValue, load_run
from rankdeck.compare.run_ref import MAX_RUNS, RunRef
from rankdeck.compare.table import Comparison, ComparisonRow, compare_runs
from rankdeck.run.summary_builder import summarize
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript


def write_run(
    runs: Path,
    name: str,
    losses: Sequence[float | None] = (4.0, 3.0, 2.0, 1.0),
    *,
    step_s: float = 0.5,
    peaks: Sequence[int] = (300, 100, 100, 100),
    config: Mapping[str, Any] | None = None,
    strategy: str = "dp",
    verified: str = "",
    **start_fields: Any,
) -> WrittenRun:
    run = WrittenRun(
        runs, name, {"strategy": {"use": strategy}, "devices": {"use": f"cpu:{len(peaks)}"}, **(config or {})}
    )
    kind = start_fields.pop("kind", "virtual")
    run.start(1, device_infos(len(peaks), kind), steps=len(losses), strategy=strategy, **start_fields)
    if verified:
        run.writer("rank-0").write(VERIFIED[verified])
    run.write_steps(0, 1, losses, count=32.0, step_s=step_s)
    run.write_memory(0, 1, {device: {"parameters": peak * MIB} for device, peak in enumerate(peaks)})
    run.end()
    return run


def compare_written(*runs: WrittenRun, baseline: int = 0) -> Comparison:
    return compare_runs([load_run(RunRef(run.path)).run for run in runs], baseline)


def find_row(comparison: Comparison, key: str) -> ComparisonRow:
    (row,) = [row for row in comparison.rows if row.key == key]
    return row


def test_metrics_equal_those_of_show(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "a")
    metrics, facts = load_run(RunRef(run.path)).run, summarize(run.dir).facts()
    assert metrics.value("step") == facts["steps"] == 4
    assert metrics.value("loss") == facts["loss"]["last"] == 1.0
    assert metrics.value("samples_per_s") == facts["samples_per_s"]
    assert metrics.value("step_s") == facts["step_s"]["median"]
    assert metrics.value("peak") == max(device["peak_bytes"] for device in facts["devices"])
    assert metrics.value("imbalance") == facts["imbalance"]["ratio"]
    assert (metrics.outcome, metrics.strategy) == (facts["outcome"], "dp")


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
def test_the_best_run_of_a_row_is_marked(
    tmp_path: Path, key: str, best: tuple[int, ...], difference: str
) -> None:
    runs = tmp_path / "runs"
    slow = write_run(runs, "a")
    fast = write_run(runs, "b", (4.0, 2.0, 1.0, 0.5), step_s=0.25, peaks=(100, 100, 100, 100), strategy="ddp")
    row = find_row(compare_written(slow, fast), key)
    assert (row.best, row.differences, row.not_ranked) == (best, ("", difference), "")
    turned = find_row(compare_written(slow, fast, baseline=1), key)
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
        ({"kind": "gpu"}, "samples_per_s", "others from a rehearsal"),
        ({"pace": "simulated"}, "step_s", "times are simulated"),
        ({"losses": (4.0, 3.0, 2.0)}, "loss", "different numbers of steps"),
        ({"losses": (4.0, 3.0, 2.0)}, "trained_s", "different numbers of steps"),
    ],
)
def test_incomparable_runs_are_not_ranked(
    tmp_path: Path, other: Mapping[str, Any], key: str, reason: str
) -> None:
    runs = tmp_path / "runs"
    row = find_row(
        compare_written(write_run(runs, "a"), write_run(runs, "b", step_s=0.1, peaks=(9, 9, 9, 9), **other)),
        key,
    )
    assert reason in row.not_ranked and row.best == () and row.differences == ("", "")
    alike = find_row(
        compare_written(
            write_run(runs, "c"), write_run(runs, "d", (4, 3, 2, 0.5), step_s=0.1, peaks=(9, 9, 9, 9))
        ),
        key,
    )
    assert not alike.not_ranked and alike.best == (1,)


def test_losses_of_different_model_sizes_are_ranked(tmp_path: Path) -> None:
    small = {"model": {"use": "mlp", "args": {"hidden": [8]}}}
    row = find_row(
        compare_written(
            write_run(tmp_path / "runs", "a"), write_run(tmp_path / "runs", "b", (4, 3, 2, 1.5), config=small)
        ),
        "loss",
    )
    assert (row.best, row.not_ranked) == ((0,), "")


def test_runs_are_compared_at_their_last_common_step(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    row = find_row(
        compare_written(write_run(runs, "a", [2.0] * 6), write_run(runs, "b", [3.0] * 3)),
        "loss_at_common_step",
    )
    assert row.label == "Loss at step 3"
    assert [metric.value if metric else None for metric in row.metric_values] == [2.0, 3.0] and row.best == (
        0,
    )


def test_equal_losses_tie_for_runs_of_different_length(tmp_path: Path) -> None:
    """An average that is smoothed by a share of the run's length would say otherwise."""
    losses = [9.0 - 0.1 * step for step in range(60)]
    long = write_run(tmp_path / "runs", "long", losses)
    row = find_row(
        compare_written(long, write_run(tmp_path / "runs", "short", losses[:20])), "loss_at_common_step"
    )
    assert row.label == "Mean loss, steps 17 to 20"
    assert [round(metric.value, 6) if metric else None for metric in row.metric_values] == [7.25, 7.25]
    assert row.best == () and row.differences == ("", "same")


def test_indistinguishable_runs_tie(tmp_path: Path) -> None:
    runs = [load_run(RunRef(write_run(tmp_path / "runs", name).path)).run for name in "abc"]

    def with_step(run: Any, value: MetricValue) -> Any:
        return replace(run, metrics={"step_s": value})

    metrics = (
        MetricValue(0.10, low=0.08, high=0.12),
        MetricValue(0.11, low=0.10, high=0.13),
        MetricValue(0.30, low=0.29, high=0.31),
    )
    three = [with_step(run, metric) for run, metric in zip(runs, metrics, strict=True)]
    assert find_row(compare_runs(three), "step_s").best == (0, 1)
    assert find_row(compare_runs(three[:2]), "step_s").best == ()
    assert find_row(compare_runs([three[0], three[2]]), "step_s").best == (0,)
    losses = [
        replace(run, metrics={"held_out": MetricValue(at)})
        for run, at in zip(runs, (6.60566, 6.60561, 6.7), strict=True)
    ]
    assert find_row(compare_runs(losses), "held_out").best == (0, 1)


def test_missing_metrics_are_unknown(tmp_path: Path) -> None:
    empty = WrittenRun(tmp_path / "runs", "empty")
    empty.start()
    empty.end("failed")
    comparison = compare_written(write_run(tmp_path / "runs", "a"), empty)
    for row in comparison.rows:
        assert (
            row.metric_values[1] is None
            and row.cell(1) == "–"
            and row.best == ()
            and row.differences[1] == ""
        )
    both = compare_written(empty, empty)
    assert both.rows == () and compare_runs(both.runs).config_differences == ()


def test_only_configuration_differences_are_listed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = write_run(runs, "a", config={"train": {"seed": 1, "optimizer": {"use": "sgd", "lr": 0.1}}})
    second = write_run(
        runs,
        "b",
        config={"train": {"seed": 2, "optimizer": {"use": "adamw", "lr": 0.1, "eps": 1e-6}}},
        strategy="ddp",
    )
    differences = {row.key: row.values for row in compare_written(first, second).config_differences}
    assert differences == {
        "train.seed": ("1", "2"),
        "train.optimizer.use": ("sgd", "adamw"),
        "train.optimizer.weight_decay": ("0.0", "0.01"),
        "train.optimizer.eps": (None, "1e-06"),
        "strategy.use": ("dp", "ddp"),
    }


def test_an_attempt_has_its_own_metrics(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", "a", {"strategy": {"use": "dp"}})
    run.start(1, device_infos(2), steps=8, strategy="dp")
    run.write_steps(0, 1, [8.0, 7.0, 6.0, 5.0, 9.0], step_s=0.5)
    run.write_memory(0, 2, {0: {"gathered": 9 * MIB}, 1: {"gathered": MIB}})
    run.writer("supervisor").write(events.RunEnded(outcome="stopped", exit_code=0, attempt=0))
    run.start(1, device_infos(2), steps=8, strategy="ddp", attempt=1)
    run.writer("rank-0", 1).write(events.Restored(rank=0, step=4))
    run.write_steps(0, 5, [4.0, 3.0, 2.0, 1.0], step_s=0.25, attempt=1)
    run.write_memory(0, 5, {0: {"parameters": 2 * MIB}, 1: {"parameters": 2 * MIB}}, attempt=1)
    run.end()
    before, after, all_attempts = (load_run(RunRef(run.path, attempt)) for attempt in (0, 1, None))
    assert [entry.run.outcome for entry in (before, after, all_attempts)] == [
        "stopped",
        "completed",
        "completed",
    ]
    assert [entry.run.strategy for entry in (before, after, all_attempts)] == ["dp", "ddp", "ddp"]
    assert [entry.run.value("step") for entry in (before, after, all_attempts)] == [5, 8, 8]
    assert [entry.run.value("loss") for entry in (before, after, all_attempts)] == [9.0, 1.0, 1.0]
    assert [entry.run.value("peak") for entry in (before, after)] == [9 * MIB, 2 * MIB]
    assert [entry.run.value("step_s") for entry in (before, after)] == [0.5, 0.25]
    assert [entry.run.name for entry in (before, all_attempts)] == ["a @0", "a"]
    steps = _curve_positions(after, "step")
    assert steps.tolist() == [5, 6, 7, 8]
    assert _curve_positions(after, "time").tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert _curve_positions(after, "samples").tolist() == [
        80,
        96,
        112,
        128,
    ]  # 16 a step, those before it counted


def _curve_positions(run: LoadedRun, by: str) -> Any:
    return loss_curve(run.state, step_axis(run.state, by)).average_x


def test_pauses_between_attempts_do_not_count(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", "a")
    run.start(1, steps=4)
    run.write_steps(0, 1, [4.0, 3.0], step_s=1.0)
    run.start(1, steps=4, attempt=1)
    run.writer("rank-0", 1).write(events.Restored(rank=0, step=2))
    run.started += 86_400
    run.write_steps(0, 3, [2.0, 1.0], step_s=1.0, attempt=1)
    run.end()
    compared_run = load_run(RunRef(run.path))
    assert _curve_positions(compared_run, "time").tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert compared_run.run.value("trained_s") == pytest.approx(4.0)
    assert _curve_positions(compared_run, "samples").tolist() == [16, 32, 48, 64]


def test_an_axis_converts_both_ways(tmp_path: Path) -> None:
    run = load_run(RunRef(write_run(tmp_path / "runs", "a", [1.0] * 40).path))
    for by, positions in (("step", [1, 40]), ("time", [0.5, 20.0]), ("samples", [16, 640])):
        axis = step_axis(run.state, by)
        assert axis.positions_of(np.array([1.0, 40.0])).tolist() == pytest.approx(positions)
        assert [axis.step_at(position) for position in positions] == pytest.approx([1, 40])
    within = loss_curve(run.state, step_axis(run.state, "time"), x_range=(5.0, 6.0))
    assert within.average_x.min() <= 5.0 and within.average_x.max() >= 6.0 and len(within.average_x) < 8


@pytest.mark.parametrize("by", AXES)
def test_a_long_axis_has_few_knots(tmp_path: Path, by: str) -> None:
    run = load_run(RunRef(write_run(tmp_path / "runs", "a", [1.0] * 3).path))
    num_steps, random = 50_000, np.random.default_rng(0)
    steps, losses = np.arange(4.0, 4 + num_steps), np.ones((2, num_steps))
    samples, step_s = random.integers(1, 64, num_steps), random.uniform(0.5, 1.5, num_steps)
    table = run.state.attempts[0].table
    ended = float(table.column("ended")[-1]) + np.cumsum(step_s)
    table.append(np.stack([steps, *losses, samples, step_s, ended]))
    axis = step_axis(run.state, by)
    assert len(axis._steps) <= 2 * 4096
    before = {"step": 1.0, "time": 0.5, "samples": 16.0}[by] * np.arange(1, 4)
    then = {"step": np.ones(num_steps), "time": step_s, "samples": samples}[by]
    exact = np.concatenate([before, before[-1] + np.cumsum(then)])
    off = np.abs(axis.positions_of(np.arange(1.0, 4 + num_steps)) - exact)
    assert off.max() < 5e-4 * exact[-1], "steps between two knots lie on a line"
    assert off[[0, -1]] == pytest.approx(0, abs=1e-6) and axis.end == pytest.approx(exact[-1])


def test_scripts_are_compared_by_their_known_metrics(tmp_path: Path) -> None:
    def script(lr: str, last: float) -> WrittenScript:
        run = WrittenScript(tmp_path / "runs", f"train {lr}", {"args": ["--lr", lr]})
        run.start_script(1)
        run.observe_rank(
            model="net:Net", num_parameters=10, dataset="data:Set", num_samples=64, wrapper="DataParallel"
        )
        run.write_step_line(0, 1, [3.0, None, None, last], step_s=0.5)
        run.end_script()
        return run

    first, second = script("0.1", 2.0), script("0.2", 1.0)
    comparison = compare_written(first, second)
    assert find_row(comparison, "loss").best == (1,)
    assert {row.key for row in comparison.config_differences} == {"script.args"}
    assert not [row for row in comparison.rows if row.key in ("samples_per_s", "peak", "sent")]
    assert step_axis(load_run(RunRef(first.path)).state, "samples").end is None
    mixed = compare_written(first, second, write_run(tmp_path / "runs", "configured"))
    assert "scripts" in find_row(mixed, "loss").not_ranked and {
        row.key for row in mixed.config_differences
    } == {"script.args"}


@pytest.mark.parametrize(
    ("unit", "value", "base", "text"),
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
def test_differences_are_formatted(unit: str, value: float, base: float, text: str) -> None:
    assert format_difference(unit, MetricValue(value), MetricValue(base)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2345, "1.23 s"), (0.9999, "1.00 s"), (0.0125, "12.5 ms"), (8.4e-4, "840 µs"), (2e-7, "0.20 µs")],
)
def test_a_step_time_has_three_digits(seconds: float, text: str) -> None:
    assert format_step_time(seconds) == text


def test_the_home_folder_is_shortened() -> None:
    home = Path("/home/me")
    assert shorten_home("/home/me/runs/a", home) == "~/runs/a"
    assert (
        shorten_home("rankdeck --runs '/home/me' --set x=/home/me/b /home/me", home)
        == "rankdeck --runs '~' --set x=~/b ~"
    )
    assert shorten_home("/home/mel/runs", home) == "/home/mel/runs"
    assert shorten_home("/root", Path("/")) == "/root"


def test_labels_are_spaced_inside_the_chart() -> None:
    positions = space_labels([10, 11, 12, 95, 99], 12, 0, 100)
    assert positions == sorted(positions) and all(b - a >= 12 - 1e-9 for a, b in pairwise(positions))
    assert positions[0] >= 0 and positions[-1] <= 100
    assert label_heights([(10, 50), (500, 51), (12, 50)], 0, 100) == [50, 51, 63]
    heights = label_heights([(0, 50), (15, 50), (17, 50)], 0, 100)
    assert all(b - a >= LABEL_HEIGHT for a, b in pairwise(sorted(heights))), "of the last two as well"
    assert ticks(0, 60, 6) == [0, 10, 20, 30, 40, 50, 60] and ticks(1.0, 1.0, 5) == [1.0]
    assert len(set(DASHES)) == len(DASHES) == MAX_RUNS and set(AXES) == {"step", "time", "samples"}


@pytest.mark.filterwarnings("ignore:overflow")
def test_infinite_times_have_no_axis(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(1)
    for step, ended in ((1, -1.7e308), (2, 1.7e308)):
        run.writer("rank-0").write(
            events.Steps(rank=0, first=step, loss_sum=[1.0], count=[1.0], ended=[ended], step_s=[0.1])
        )
    run.lose()
    state = load_run(RunRef(run.path)).state
    assert step_axis(state, "time").end is None and step_axis(state, "step").end is not None
    rankdeck_in_process("report", run.path, "--html", tmp_path / "page.html", "--by", "time", exit_code=0)


def test_an_infinite_ratio_is_not_shown() -> None:
    tiny, huge = MetricValue(5e-324), MetricValue(1e308)
    assert format_difference("bytes", huge, tiny) == ""


def test_an_invalid_configuration_is_compared_as_text() -> None:
    odd: list[Any] = [{"model": {"use": {}}}, {"model": {"use": [1]}}, {"model": {"use": "mlp"}}]
    runs: Any = [SimpleNamespace(setup=SimpleNamespace(tables=tables)) for tables in odd]
    rows = {row.key: row.values for row in config_differences(runs)}
    assert rows["model.use"] == ("{}", "[1]", "mlp")


def test_verification_is_a_row_of_text(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "runs", name, verified=outcome)
        for name, outcome in (("a", "equal"), ("b", "unchecked"))
    ]
    runs.append(write_run(tmp_path / "runs", "old"))
    row = find_row(compare_written(*runs), "verified")
    assert row.label == "One device" and not row.best and not any(row.differences)
    assert [row.cell(index) for index in range(3)] == ["equal", "not verified", "–"]
    assert (
        row.detail(0) == "largest difference 6e-16" and "do not fit" in row.detail(1) and row.detail(2) == ""
    )
    out = rankdeck_in_process("compare", *(run.path for run in runs), exit_code=0).out
    assert "One device" in out and "largest difference 6e-16" in " ".join(out.split())
    assert "\nB: Two steps of the model on one device do not fit the memory\n" in out, "below the table"
    assert not [row for row in compare_written(runs[2]).rows if row.key == "verified"], "nobody checked"
