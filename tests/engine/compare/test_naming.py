"""RUN and RUN@ATTEMPT name what a person means, and words say what there is where nothing is called so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError, RankdeckError, RunNotFoundError
from rankdeck.compare.naming import RunAt, check_number, find, parse
from rankdeck.rundir import Labels, write_labels
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def resumed(runs: Path, name: str = "night") -> WrittenRun:
    run = WrittenRun(runs, name)
    run.begin(steps=10)
    run.begin(steps=10, attempt=1)
    run.end("completed")
    return run


def test_a_run_is_named_whole_or_by_one_of_its_attempts(runs: Path) -> None:
    run = resumed(runs)
    assert find("night", runs) == RunAt(run.path)
    assert find("night@0", runs) == RunAt(run.path, 0)
    assert find(f"{run.path}@1", runs) == RunAt(run.path, 1)
    assert find("last@1", runs) == RunAt(run.path, 1)
    for at in (RunAt(run.path), RunAt(run.path, 1)):
        assert parse(str(at)) == at


def test_a_name_that_holds_an_at_is_still_a_name(runs: Path) -> None:
    run, other = resumed(runs), resumed(runs, "other")
    write_labels(other.path, Labels(name="night@1"))
    assert find("night@1", runs) == RunAt(other.path)
    assert find("night@0", runs) == RunAt(run.path, 0)
    folder = other.path.rename(other.path.with_name("mine@0"))
    assert find(str(folder), runs) == RunAt(folder) == parse(str(folder))
    assert find(f"{folder}@0", runs) == RunAt(folder, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("night@2", "has no attempt 2"),
        ("night@" + "9" * 30, "has no attempt 999"),
        ("day@0", 'no run called "day"'),
        ("night@x", 'no run called "night@x"'),
        ("@0", 'no run called "@0"'),
    ],
)
def test_what_is_not_there_is_said_in_words(runs: Path, text: str, said: str) -> None:
    resumed(runs)
    with pytest.raises(RankdeckError, match=said):
        find(text, runs)


def test_the_attempts_that_there_are_are_named(runs: Path) -> None:
    resumed(runs)
    with pytest.raises(ConfigError) as missing:
        find("night@7", runs)
    assert missing.value.advice == "It has the attempts 0 and 1."
    once = WrittenRun(runs, "once")
    once.begin()
    once.end()
    with pytest.raises(ConfigError) as missing:
        find("once@1", runs)
    assert missing.value.advice == f"It was never resumed: {once.dir.name}@0 is the same as {once.dir.name}."
    resumed(runs)
    with pytest.raises(RunNotFoundError, match="names 2 runs"):
        find("night@0", runs)


@pytest.mark.parametrize(
    ("number", "said"), [(1, "cannot be compared with itself"), (9, "These are 9 runs; at most 8")]
)
def test_two_to_eight_runs_are_compared(number: int, said: str) -> None:
    runs = [RunAt(Path(f"/runs/{place}")) for place in range(number)]
    with pytest.raises(ConfigError, match=said):
        check_number(runs)
    check_number([RunAt(Path("/runs/1"), 0), RunAt(Path("/runs/1"), 1)])
    with pytest.raises(ConfigError, match="named twice"):
        check_number([runs[0], runs[0]])
