"""A share of `make faults` and `make storms`, and whether the judge sees what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.base.errors import Problem
from tests.faults.healthy import drawn, run_healthy
from tests.faults.kinds import KINDS, Drawn
from tests.faults.record import Recorded
from tests.faults.storms import run_storm
from tests.faults.trial import LEFT_S, MARK, Observation, Record, judged, marked, run_drawn, try_out
from tests.helpers import processes
from tests.helpers.waiting import scale_timeout

SEED = 20_261_124
FEW = (
    Drawn("a rank is killed by SIGKILL", "ddp, ring", "save", 20, 1),
    Drawn("os._exit(7)", "script, ddp", "loss", 25, 1),
    Drawn("a collective with different shapes", "ddp", "optimizer", 40, 0),
    # In the check before the first step.
    Drawn("user code writes end.json, then an exception", "ddp, ring", "optimizer", 1, 0),
)
# These are also tried in tests/e2e/test_faults.py and, without torch, in tests/engine/launch.
MORE = (
    Drawn("exception in backward", "pipeline-async", "backward", 30, 1),
    Drawn("supervisor killed", "single", "optimizer", 30, 0),
    Drawn("sleeps for ever", "ddp", "loss", 1, 0),
    Drawn("sleeps for ever", "ddp", "loss", 5, 1),
    Drawn("sleeps for ever, single process", "dp", "loss", 1, 0),
)


@pytest.mark.parametrize(
    "drawn",
    [*FEW, *(pytest.param(drawn, marks=pytest.mark.slow) for drawn in MORE)],
    ids=lambda drawn: f"{drawn.kind} in {drawn.job}",
)
def test_a_fault_is_told_right_and_leaves_nothing(tmp_path: Path, drawn: Drawn) -> None:
    record = run_drawn(SEED, drawn, tmp_path / "trial")
    assert not record.wrong, record


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_told_right(tmp_path: Path, name: str) -> None:
    record = try_out(SEED, KINDS[name], tmp_path / "trial")
    assert not record.wrong, record


def test_of_a_run_that_is_suspended_as_a_whole_nothing_is_told(tmp_path: Path) -> None:
    expected = ("ddp, ring", "suspended", 4.0, 3.0)
    seed = next(
        seed
        for seed in range(10_000)
        if (d := drawn(seed)) and (d.job, d.how, d.timeout_s, d.seconds) == expected
    )
    record = run_healthy(seed, tmp_path / "healthy")
    assert not record.wrong, record


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_of_healthy_runs_nothing_is_told(tmp_path: Path, seed: int) -> None:
    record = run_healthy(SEED + seed, tmp_path / "healthy")
    assert not record.wrong, record


# One kill of one run, to the bit, is in tests/e2e/test_resume.py.
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_storm_of_kills_loses_nothing(tmp_path: Path, seed: int) -> None:
    record = run_storm(seed, tmp_path / "storm", tmp_path / "undisturbed")
    assert not record.wrong and record.kills, record


KILLED = Drawn("a rank is killed by SIGKILL", "ddp", "loss", 30, 1)
CAUSE = Problem("rank-killed", "The process was killed by SIGKILL in step 30.", rank=1)
HANG = Problem("hang-suspected", "No progress for 15 s.", rank=0, severity="warning")


def make_observation(
    *errors: Problem,
    outcome: str = "failed",
    exit_code: int = 1,
    warnings: tuple[Problem, ...] = (),
    left: tuple[str, ...] = (),
    gone_s: float = 0.1,
    bad_lines: int = 0,
) -> Observation:
    return Observation(outcome, exit_code, "", [*errors], [*warnings], [*left], gone_s, bad_lines)


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        (make_observation(CAUSE), ""),
        (make_observation(CAUSE.replace_fields(rank=0)), "rank 0 is told"),
        (make_observation(CAUSE.replace_fields(rank=None)), "rank None is told"),
        (make_observation(CAUSE.replace_fields(code="communication")), "none of ('rank-killed',) was told"),
        (
            make_observation(CAUSE.replace_fields(message="Connection closed by peer.")),
            "'SIGKILL' is not told",
        ),
        (make_observation(), "0 errors were told"),
        (make_observation(CAUSE, CAUSE.replace_fields(rank=0)), "2 errors were told"),
        (make_observation(CAUSE, left=("4711 of 1, sleeping",)), "left behind"),
        (make_observation(CAUSE, gone_s=scale_timeout(LEFT_S) + 60), "gone after"),
        (make_observation(CAUSE, exit_code=0), "exit code 0"),
        (make_observation(CAUSE, outcome="lost"), "outcome lost"),
        (make_observation(CAUSE, bad_lines=1), "1 events are missing"),
    ],
)
def test_the_judge_sees_what_is_wrong(what: Observation, wrong: str) -> None:
    mistakes = judged(what, KINDS[KILLED.kind], KILLED)
    assert [mistake for mistake in mistakes if wrong in mistake] if wrong else not mistakes


def test_the_judge_takes_bad_input_of_an_optimizer_alone() -> None:
    name = "failed assertion"
    problem = Problem("optimizer", "AssertionError: the loss went up", rank=1)
    for where, code, exit_code, is_right in (
        ("optimizer", "optimizer", 2, True),
        ("optimizer", "optimizer", 1, False),
        ("optimizer", "rank-exception", 2, False),
        ("forward", "optimizer", 2, False),
        ("forward", "rank-exception", 1, True),
    ):
        drawn = Drawn(name, "ddp", where, 3, 1)
        assert (
            not judged(
                make_observation(problem.replace_fields(code=code), exit_code=exit_code), KINDS[name], drawn
            )
        ) == is_right


def test_the_judge_sees_a_false_alarm() -> None:
    calm = Drawn("slow save", "ddp", "save", 30, 1)
    done = make_observation(outcome="completed", exit_code=0, warnings=(HANG,))
    (mistake,) = judged(done, KINDS[calm.kind], calm)
    assert mistake.startswith("false alarm: ['hang-suspected of 0")


def test_whatever_a_trial_has_started_is_found(tmp_path: Path) -> None:
    with marked(tmp_path) as mark:
        command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as left:
            assert left.stdout is not None and left.stdout.readline()
            assert [process.pid for process in processes.find_marked(mark)] == [left.pid]
            left.communicate()
        assert not processes.find_marked(mark)
    assert MARK not in os.environ


def test_a_record_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"

    def opened() -> Recorded[Record]:
        return Recorded(file, Record, lambda record: f"{record.kind} {record.seed}")

    right = Record(1, "a", "ddp", "loss", 3, 0)
    opened().add(right)
    opened().add(Record(2, "a", "ddp", "loss", 3, 0, wrong=["exit code 0"]))
    with file.open("ab") as cut:
        cut.write(b'{"seed": 3, "ki')
    again = opened()
    assert "a 1" in again and "a 2" in again and "a 3" not in again
    again.retain(again.right)
    assert [*opened()] == [right]


def test_there_are_kinds_enough_and_every_class_has_some() -> None:
    assert len(KINDS) >= 45
    for name in {class_name for kind in KINDS.values() for class_name in kind.classes}:
        assert sum(name in kind.classes for kind in KINDS.values()) >= 30
