"""A run as arrays, read from what its processes wrote; nothing is started here."""

from __future__ import annotations

import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankdeck
from rankdeck import events
from rankdeck.base.errors import ConfigError, Problem, RankdeckError, RunNotFoundError, TrainingError
from tests.helpers.observed_run import observed_run
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def written(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path / "rankdeck-runs")
    run.start(2, device_infos(2), steps=6)
    return run


def write_steps(run: WrittenRun, first: int, losses: list[float | None], attempt: int = 0) -> None:
    for rank in range(2):
        run.writer(f"rank-{rank}", attempt).write(events.Restored(rank=rank, step=first - 1))
        run.write_steps(rank, first, losses, attempt=attempt)


def test_arrays_grow_with_the_run_and_unknown_values_are_nan(written: WrittenRun) -> None:
    run = rankdeck.open_run(written.path)
    assert run.is_running and len(run.steps) == len(run.loss) == 0
    assert run.memory.shape == (0, 2)
    write_steps(written, 1, [2.0, None, 1.0])
    written.write_memory(1, 2, {1: {"parameters": MIB}})
    assert run.steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(run.loss, [2.0, np.nan, 1.0])
    np.testing.assert_array_equal(run.lr, [1e-3] * 3)
    np.testing.assert_allclose(run.samples_per_s, [3200.0] * 3)
    assert run.memory[1].tolist()[1] == MIB and np.isnan(run.memory).sum() == 5
    assert repr(run) == f"<Run {written.dir.name}: running, 3 steps, loss 1.0000>"
    written.end()
    assert run.wait().outcome == "completed" and run.check() is run


def test_retrained_steps_replace_older_ones(written: WrittenRun) -> None:
    write_steps(written, 1, [4.0, 3.0, 2.0])
    for step in (1, 2, 3):
        written.write_memory(0, step, {0: {"parameters": step * MIB}})
        written.writer("rank-0").write(events.Evaluation(step=step, loss=float(step), samples=1, seconds=0.1))
    written.start(2, device_infos(2), steps=6, attempt=1)
    write_steps(written, 3, [1.0], attempt=1)
    written.end()
    run = rankdeck.open_run(written.path)
    assert run.loss.tolist() == [4.0, 3.0, 1.0]
    np.testing.assert_array_equal(run.memory[:, 0], [MIB, 2 * MIB, np.nan])
    held_out = run.metrics["held-out loss"]
    assert (held_out.steps.tolist(), held_out.values.tolist()) == ([1, 2], [1.0, 2.0])


def test_logged_values_are_read_exactly(tmp_path: Path) -> None:
    value = 0.1 + 0.2
    logged = [
        events.Metrics(
            rank=0,
            through=through,
            steps=[step],
            times=[0.0],
            after=[3],
            values={"loss": [value], through: [1.0]},
        )
        for through, step in (("wandb", 70), ("rankdeck", None))
    ]
    dir_ = observed_run(tmp_path, tmp_path / "train.py", more=logged)
    metrics = rankdeck.open_run(dir_.path).metrics
    assert metrics["loss (wandb)"].steps.tolist() == [70]
    assert metrics["loss (wandb)"].values.tolist() == [value]
    assert metrics["loss (rankdeck)"].steps.tolist() == [3] and "rankdeck" in metrics
    with pytest.raises(ConfigError) as raised:
        rankdeck.open_run(dir_.path).weights()
    assert "the script has to save them" in str(raised.value.advice)


def test_the_html_of_a_run_is_escaped(written: WrittenRun) -> None:
    write_steps(written, 1, [2.0, 1.0])
    bad = Problem("odd", "<script>alert(1)</script> & more", severity="warning")
    written.writer("supervisor").write(events.ProblemRaised(problem=bad))
    written.end()
    html = rankdeck.open_run(written.path)._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in html and "<script" not in html
    assert "2.0000 to 1.0000" in html and "currentColor" in html
    assert not re.search(r"(?:color|background)\s*:", html), "a colour reads in one theme only"


def test_a_loss_of_an_earlier_step_is_shown_with_its_step(tmp_path: Path) -> None:
    losses = [2.0, None, 1.0, None]
    run = rankdeck.open_run(observed_run(tmp_path, tmp_path / "train.py", num_steps=4, losses=losses).path)
    assert repr(run).endswith(", 4 steps, loss 1.0000 at step 3>")
    assert "2.0000 to 1.0000 at step 3" in run._repr_html_()


def test_large_event_files_are_read_completely(tmp_path: Path) -> None:
    count = 150_000  # six of them are more than one reading takes
    many = events.Metrics(
        rank=0,
        through="rankdeck",
        steps=[None] * count,
        times=[0.0] * count,
        after=[3] * count,
        values={"one": [0.123456789] * count},
    )
    run = rankdeck.open_run(observed_run(tmp_path, tmp_path / "train.py", more=[many] * 6).path)
    assert run._dir.events_folder.joinpath("rank-0.0.jsonl").stat().st_size > 16 << 20
    assert len(run.metrics["one"].values) == 6 * count and len(run.steps) == 12


def test_the_loss_curve_stays_within_its_frame(written: WrittenRun) -> None:
    write_steps(written, 1, [float(step % 7) for step in range(300)])
    html = rankdeck.open_run(written.path)._repr_html_()
    width, height = (float(re.search(f"{name}='(\\d+)'", html)[1]) for name in ("width", "height"))  # type: ignore[index]
    points = [tuple(map(float, pair.split(","))) for pair in re.search("points='(.+?)'", html)[1].split()]  # type: ignore[index]
    assert len(points) == 200 and all(0 <= x <= width and 0 <= y <= height for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_a_final_nan_loss_is_left_out_of_the_table(written: WrittenRun) -> None:
    write_steps(written, 1, [2.0, None])
    assert "<th style='text-align:left'>loss</th>" not in rankdeck.open_run(written.path)._repr_html_()


def test_only_check_raises_for_a_failed_run(written: WrittenRun) -> None:
    write_steps(written, 1, [2.0])
    written.writer("supervisor").write(events.ProblemRaised(problem=Problem("killed", "rank 1 was killed.")))
    written.end("failed", 1)
    run = rankdeck.open_run(written.path)
    assert run.wait().outcome == "failed"
    with pytest.raises(TrainingError, match="rank 1 was killed"):
        run.check()


def test_wait_times_out_and_leaves_the_run_running(written: WrittenRun) -> None:
    run = rankdeck.open_run(written.path)
    began_s = time.monotonic()
    with pytest.raises(RankdeckError, match=r"did not end within 0\.1 s"):
        run.wait(0.1)
    assert run.is_running and time.monotonic() - began_s >= 0.1
    written.end()


def test_notebook_progress_updates_one_output(written: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    class Handle:
        update = staticmethod(drawn.append)

    def display(html: str, display_id: bool) -> Handle:
        assert display_id
        drawn.append(html)
        return Handle()

    shell: Any = types.SimpleNamespace(kernel=object())
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    write_steps(written, 1, [2.0, 1.5, 1.0])
    written.end()
    rankdeck.open_run(written.path).wait(progress=True)
    assert "starting" in drawn[0]
    assert "step 3/6" in drawn[-1] and "loss 1.0000" in drawn[-1] and "value='0.5000'" in drawn[-1]
    drawn.clear()
    shell.kernel = None  # IPython in a terminal
    rankdeck.open_run(written.path).wait(progress=True)
    assert drawn == []


def test_logs_come_from_the_newest_attempt(written: WrittenRun) -> None:
    for name, text in {"rank-1.0.out": "old", "rank-1.1.out": "new\n", "rank-1.1.err": "oops"}.items():
        (written.dir.logs_folder / name).write_text(text)
    written.end()
    run = rankdeck.open_run("last", runs=written.path.parent)
    assert run.logs(1) == "new\noops"
    with pytest.raises(ConfigError, match="no log for rank 5"):
        run.logs(5)
    with pytest.raises(RunNotFoundError) as raised:
        rankdeck.open_run("nothing-like-it", runs=written.path.parent)
    assert any("Latest runs:" in note for note in raised.value.__notes__)
    assert len(list(run.events())) == 1


def test_the_problems_include_the_findings_about_a_script(tmp_path: Path) -> None:
    script = WrittenScript(tmp_path / "rankdeck-runs")
    script.start_script(1)
    script.observe_rank(0)
    script.write_step_line(0, 1, [1.0] * 10)
    anomaly = events.Anomaly(rank=0, code="gradients-not-cleared", step=2, line="/w/train.py:7")
    script.writer("rank-0").write(anomaly)
    failed = Problem("failed", "It failed.", severity="error")
    script.writer("supervisor").write(events.ProblemRaised(problem=failed))
    problems = rankdeck.open_run(script.path).problems
    assert [problem.code for problem in problems] == ["failed", "gradients-not-cleared"]
    assert problems[1].evidence[0].location == "/w/train.py:7"
