"""What a script logged itself becomes curves under its names, equal to what it logged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.run.metrics import MAX_NAMES, MAX_POINTS
from rankdeck.run.run_state import RunState, read_run_state
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WrittenScript]:
    run = WrittenScript(tmp_path / "runs")
    run.start_script()
    yield run
    run.lose()


def metric_points(state: RunState, name: str) -> list[tuple[float, float]]:
    steps, _, values = state.metrics[name].points()
    return list(zip(steps.tolist(), values.tolist(), strict=True))


def test_metrics_are_over_the_steps_of_the_script(run: WrittenScript) -> None:
    run.write_logged(
        0, steps=[10, 20], through="transformers", loss=[0.1, 0.30000000000000004], eval=[None, 7.0]
    )
    state = read_run_state(run.dir)
    assert metric_points(state, "loss") == [(10, 0.1), (20, 0.30000000000000004)]
    assert metric_points(state, "eval") == [(20, 7.0)]
    metric = state.metrics["eval"]
    assert (metric.through, metric.rank, metric.last, metric.step, metric.count) == (
        "transformers",
        0,
        7.0,
        20,
        1,
    )
    assert metric.curve.last_y == 7.0 and metric.curve.last_x == 20


@pytest.mark.parametrize("second", [[None, None], [1, 2], [3, 1]])
def test_without_increasing_steps_metrics_are_over_observed_steps(
    run: WrittenScript, second: list[int | None]
) -> None:
    run.write_logged(0, steps=[1, 2], after=[5, 6], loss=[4.0, 3.0])
    run.write_logged(0, steps=second, after=[7, 8], loss=[2.0, 1.0])
    assert metric_points(read_run_state(run.dir), "loss") == [(5, 4.0), (6, 3.0), (7, 2.0), (8, 1.0)]


def test_without_observed_steps_metrics_are_over_their_count(run: WrittenScript) -> None:
    run.write_logged(0, steps=[None, None], after=[0, 0], loss=[4.0, 3.0])
    run.write_logged(0, steps=[None], after=[0], loss=[2.0], accuracy=[0.5])
    state = read_run_state(run.dir)
    assert metric_points(state, "loss") == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert metric_points(state, "accuracy") == [(1, 0.5)]
    assert (state.metrics["loss"].step, state.metrics["loss"].curve.last_x) == (3, 3)
    run.write_logged(0, steps=[None], after=[7], loss=[1.0])
    assert metric_points(read_run_state(run.dir), "loss") == [(0, 4.0), (0, 3.0), (0, 2.0), (7, 1.0)]


def test_the_lowest_rank_of_a_metric_is_shown(run: WrittenScript) -> None:
    run.write_logged(1, steps=[1], loss=[9.0], only_there=[8.0])
    run.write_logged(0, steps=[1], loss=[4.0])
    state = read_run_state(run.dir)
    assert {name: (metric.rank, metric.last) for name, metric in state.metrics.items()} == {
        "loss": (0, 4.0),
        "only_there": (1, 8.0),
    }


def test_a_name_in_two_loggers_is_two_metrics(run: WrittenScript) -> None:
    run.write_logged(0, steps=[1], through="tensorboard", loss=[4.0], lr=[0.1])
    run.write_logged(0, steps=[1], through="rankdeck", loss=[5.0])
    assert {name: metric.last for name, metric in read_run_state(run.dir).metrics.items()} == {
        "loss (tensorboard)": 4.0,
        "lr": 0.1,
        "loss (rankdeck)": 5.0,
    }


def test_a_restart_replaces_logged_values(run: WrittenScript) -> None:
    run.write_logged(0, steps=[1, 2, 3], loss=[4.0, 3.0, 2.0])
    run.start_script(attempt=1)
    run.write_logged(0, steps=[2, 3], loss=[30.0, 20.0], attempt=1)
    state = read_run_state(run.dir)
    assert metric_points(state, "loss") == [(1, 4.0), (2, 30.0), (3, 20.0)]
    assert state.metrics["loss"].count == 3
    assert metric_points(read_run_state(run.dir, attempt=0), "loss") == [(1, 4.0), (2, 3.0), (3, 2.0)]


def test_names_over_the_limit_are_cut_and_counted(run: WrittenScript) -> None:
    for step in range(3):
        run.write_logged(0, steps=[step], **{f"loss at {step}/{index}": [1.0] for index in range(400)})
    run.write_logged(0, steps=[3], **{"x" * 10_000: [1.0]})
    state = read_run_state(run.dir)
    assert len(state.metrics) == MAX_NAMES
    assert state.script.num_cut_names == 3 * 400 - MAX_NAMES + 1
    full_state = read_run_state(run.dir, max_rows=None)  # for an export, or Python
    assert len(full_state.metrics) == 3 * 400 + 1 and full_state.script.num_cut_names == 0


def test_a_long_metric_keeps_new_points_and_a_whole_curve(run: WrittenScript) -> None:
    number = 2 * MAX_POINTS
    run.write_logged(0, steps=list(range(number)), loss=[float(step) for step in range(number)])
    state = read_run_state(run.dir)
    assert len(state.metrics["loss"].points()[0]) == MAX_POINTS and state.metrics["loss"].count == number
    assert state.metrics["loss"].curve.first_x == 0
    assert len(read_run_state(run.dir, max_rows=None).metrics["loss"].points()[0]) == number


@pytest.mark.parametrize(
    ("columns", "refused"),
    [
        ({"steps": [1, 2], "times": [1.0], "after": [1], "values": {"loss": [1.0, 2.0]}}, 1),
        ({"steps": [], "times": [], "after": [], "values": {"loss": [1.0]}}, 1),
        ({"steps": [10**400], "times": [1.0], "after": [-(10**400)], "values": {"loss": [1.0]}}, 0),
        ({"steps": [1], "times": [1e308], "after": [1], "values": {"loss": [1e308], "": [-1e308]}}, 0),
        ({"steps": [1], "times": [1.0], "after": [1], "values": {"loss": []}}, 1),
    ],
)
def test_invalid_columns_are_rejected(run: WrittenScript, columns: dict[str, object], refused: int) -> None:
    run.writer("rank-0").write(events.Metrics(rank=0, through="x", **columns))  # type: ignore[arg-type]
    run.write_logged(0, steps=[5], through="x", loss=[0.5])
    state = read_run_state(run.dir)
    assert state.num_rejected == refused and state.metrics["loss"].last == 0.5
    for metric in state.metrics.values():
        assert math.isfinite(metric.points()[0][-1])
