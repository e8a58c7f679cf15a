"""RUN and RUN@ATTEMPT name what a person means, and words say what there is where nothing is called so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError, RankdeckError, RunNotFoundError
from rankdeck.compare.run_ref import RunRef, check_run_count, find_run_ref, parse_run_ref
from rankdeck.run_dir import Labels, write_labels
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def write_resumed_run(runs: Path, name: str = "night") -> WrittenRun:
    run = WrittenRun(runs, name)
    run.start(steps=10)
    run.start(steps=10, attempt=1)
    run.end("completed")
    return run


def test_a_run_or_one_attempt_can_be_named(runs: Path) -> None:
    run = write_resumed_run(runs)
    assert find_run_ref("night", runs) == RunRef(run.path)
    assert find_run_ref("night@0", runs) == RunRef(run.path, 0)
    assert find_run_ref(f"{run.path}@1", runs) == RunRef(run.path, 1)
    assert find_run_ref("last@1", runs) == RunRef(run.path, 1)
    for at in (RunRef(run.path), RunRef(run.path, 1)):
        assert parse_run_ref(str(at)) == at


def test_a_run_name_may_contain_an_at_sign(runs: Path) -> None:
    run, other = write_resumed_run(runs), write_resumed_run(runs, "other")
    write_labels(other.path, Labels(name="night@1"))
    assert find_run_ref("night@1", runs) == RunRef(other.path)
    assert find_run_ref("night@0", runs) == RunRef(run.path, 0)
    folder = other.path.rename(other.path.with_name("mine@0"))
    assert find_run_ref(str(folder), runs) == RunRef(folder) == parse_run_ref(str(folder))
    assert find_run_ref(f"{folder}@0", runs) == RunRef(folder, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("night@2", "has no attempt 2"),
        ("night@" + "9" * 30, "has no attempt 999"),
        ("day@0", 'no run called "day"'),
        ("night@x", 'no run called "night@x"'),
        ("@0", 'no run called "@0"'),
    ],
)
def test_missing_runs_and_attempts_are_errors(runs: Path, text: str, message: str) -> None:
    write_resumed_run(runs)
    with pytest.raises(RankdeckError, match=message):
        find_run_ref(text, runs)


def test_the_error_lists_the_existing_attempts(runs: Path) -> None:
    write_resumed_run(runs)
    with pytest.raises(ConfigError) as missing:
        find_run_ref("night@7", runs)
    assert missing.value.advice == "The run's attempts are 0 and 1."
    once = WrittenRun(runs, "once")
    once.start()
    once.end()
    with pytest.raises(ConfigError) as missing:
        find_run_ref("once@1", runs)
    assert (
        missing.value.advice
        == f"The run was never resumed: {once.dir.name}@0 is the same as {once.dir.name}."
    )
    write_resumed_run(runs)
    with pytest.raises(RunNotFoundError, match="matches 2 runs"):
        find_run_ref("night@0", runs)


@pytest.mark.parametrize(
    ("number", "message"),
    [(1, "A comparison needs more than one run"), (9, "9 runs are listed, but at most 8")],
)
def test_two_to_eight_runs_can_be_compared(number: int, message: str) -> None:
    runs = [RunRef(Path(f"/runs/{index}")) for index in range(number)]
    with pytest.raises(ConfigError, match=message):
        check_run_count(runs)
    check_run_count([RunRef(Path("/runs/1"), 0), RunRef(Path("/runs/1"), 1)])
    with pytest.raises(ConfigError, match="is listed twice"):
        check_run_count([runs[0], runs[0]])
