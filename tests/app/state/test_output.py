"""Output: real files of a run, tailed into lines; bounded, filtered, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run_dir import RunDir
from rankdeck_app.state.output import MAX_LINES, OutputLine, OutputModel, OutputTail, format_event
from tests.helpers.waiting import wait_until
from tests.helpers.written_script import WrittenScript


def make_steps(first: int, num: int = 1, rank: int = 0) -> events.Steps:
    return events.Steps(
        rank=rank,
        first=first,
        loss_sum=[8.84] * num,
        count=[4.0] * num,
        lr=[3e-4] * num,
        samples=[4] * num,
        step_s=[0.5] * num,
        ended=[100.0] * num,
    )


def test_a_step_line_is_readable() -> None:
    line = format_event(make_steps(3989, num=2))
    assert line is not None
    assert line.text == "step 3990 loss 2.2100 lr 3.0e-04 8 samples/s" and line.source == "rank 0"


def test_a_problem_line_has_cause_and_advice() -> None:
    event = events.ProblemRaised(problem=Problem("x", "Rank 1 ran out of memory.", advice="Try ddp.", rank=1))
    line = format_event(event)
    assert line is not None and (line.rank, line.tone) == (1, "error")
    assert line.text == "error: Rank 1 ran out of memory. Try ddp."


def test_dropped_samples_are_reported_when_training_starts() -> None:
    line = format_event(events.Phase(rank=0, phase="training", samples=70, left_out=10))
    assert line is not None
    assert line.text == 'training, 10 of 70 samples left out of each epoch (data.last = "drop")'
    complete_line = format_event(events.Phase(rank=0, phase="training", samples=70, left_out=0))
    assert complete_line is not None and complete_line.text == "training"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    for folder in ("events", "logs"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    return RunDir(tmp_path / "run")


def test_logs_and_steps_of_all_ranks_arrive_as_they_are_written(run: RunDir) -> None:
    tail = OutputTail(run.path)
    tail.start()
    lines: list[OutputLine] = []

    def has(num: int) -> bool:
        while tail.lines:
            lines.append(tail.lines.popleft())
        return len(lines) >= num

    try:
        writer = run.writer("rank-1")
        writer.write(make_steps(1, rank=1))
        wait_until(lambda: has(1), deadline_s=5)
        with (run.logs_folder / "rank-0.0.err").open("a") as log:
            log.write("ValueError: no\nhalf a li")
            log.flush()
            wait_until(lambda: has(2), deadline_s=5)
            log.write("ne\n")
        wait_until(lambda: has(3), deadline_s=5)
        writer.close()
    finally:
        tail.stop()
    assert not tail.is_alive()
    assert [(line.rank, line.text) for line in lines[1:]] == [(0, "ValueError: no"), (0, "half a line")]
    assert (lines[0].rank, lines[1].tone) == (1, "error")


def test_a_long_log_is_read_from_near_its_end(run: RunDir) -> None:
    (run.logs_folder / "rank-0.0.out").write_text("".join(f"line {index}\n" for index in range(200_000)))
    tail = OutputTail(run.path)
    tail.start()
    try:
        wait_until(lambda: bool(tail.lines), deadline_s=5)
    finally:
        tail.stop()
    lines = tail.lines
    assert lines[-1].text == "line 199999" and len(lines) <= MAX_LINES
    assert all(line.text.startswith("line ") for line in lines)


def test_unread_lines_are_bounded_to_the_newest(run: RunDir) -> None:
    tail = OutputTail(run.path)
    tail.start()
    try:
        for start in range(0, 2 * MAX_LINES, MAX_LINES // 2):
            with (run.logs_folder / "rank-0.0.out").open("a") as log:
                log.writelines(f"line {index}\n" for index in range(start, start + MAX_LINES // 2))
            last = f"line {start + MAX_LINES // 2 - 1}"
            wait_until(lambda last=last: bool(tail.lines) and tail.lines[-1].text == last, deadline_s=5)
    finally:
        tail.stop()
    assert len(tail.lines) == MAX_LINES


def test_the_model_is_bounded_and_filters_by_rank_and_text(qtbot: QtBot) -> None:
    model = OutputModel(max_lines=100)
    for start in range(0, 1000, 50):
        model.append(OutputLine(None, index % 2, f"word {index}") for index in range(start, start + 50))
    assert model.rowCount() <= 110 and model.visible_lines[-1].text == "word 999"
    model.set_filter(1, "")
    assert {line.rank for line in model.visible_lines} == {1}
    model.set_filter(None, "WORD 99")
    assert [line.text for line in model.visible_lines] == [f"word {index}" for index in range(990, 1000)]


def test_progress_bars_of_a_script_are_throttled(tmp_path: Path) -> None:
    written = WrittenScript(tmp_path / "runs")
    written.start_script()
    written.write_step_line(0, 1, [1.0] * 5)
    written.dir.logs_folder.mkdir(exist_ok=True)
    log = written.dir.logs_folder / "rank-0.0.err"
    log.write_bytes(b"\r 10%|#   |\r 20%|##  |")
    tail = OutputTail(written.path)
    tail.start()
    texts: list[str] = []

    def has(text: str) -> bool:
        while tail.lines:
            texts.append(tail.lines.popleft().text)
        return text in texts

    try:
        wait_until(lambda: has(" 20%|##  |"), deadline_s=5)
        with log.open("ab") as file:
            file.write(b"\r 90%|### |\r100%|####|\n\x1b[32mdone\x1b[0m\n")
        wait_until(lambda: has("done"), deadline_s=5)
        assert texts == ["attempt 0: script on 1 rank", " 20%|##  |", "100%|####|", "done"]
    finally:
        tail.stop()
        written.lose()


def test_lines_of_one_read_are_sorted_by_time(run: RunDir) -> None:
    tail = OutputTail(run.path)
    tail.start()
    writer = run.writer("rank-0")
    writer.write(make_steps(1))
    wait_until(lambda: tail.lines)
    for at in range(40):
        with (run.logs_folder / "rank-0.0.out").open("a") as log:
            log.write(f"print {at}\n")
        writer.write(events.Phase(rank=0, phase=f"phase {at}"))
    wait_until(lambda: len(tail.lines) == 81)
    tail.stop()
    lines = [line for line in tail.lines if line.text.startswith(("print", "phase"))]
    assert lines == sorted(lines, key=lambda line: line.t or 0.0)
