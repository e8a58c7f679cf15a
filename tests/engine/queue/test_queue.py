"""`rankdeck queue` as a user sees it, with real runs of small scripts."""

from __future__ import annotations

import json
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.cli.queue_add import parse_time
from rankdeck.queue.spool import Spool
from rankdeck.run_dir import RunDir
from tests.helpers.cli import rankdeck
from tests.helpers.queued_jobs import add_job, entry_of, read_log, wait_for_state
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("spool")


def test_entries_run_one_after_another_and_the_dispatcher_ends(spool: Spool) -> None:
    numbers = [add_job(name, "--devices", "cpu:2") for name in "abc"]
    assert numbers == [1, 2, 3]
    rankdeck("queue", "wait", exit_code=0)
    log = read_log(Path.cwd())
    assert (log.order, log.conflicts) == (["a", "b", "c"], [])
    assert [entry.state for entry in spool.entries()] == ["completed"] * 3
    wait_until(lambda: not files.is_locked(spool.dispatcher_lock), what="the dispatcher's end")
    run = RunDir(Path(entry_of(spool, 1).starts[0].run))
    assert run.environment()["queue"]["devices"] == ["cpu-slot-0", "cpu-slot-1"]


def test_a_failure_does_not_stop_the_queue_and_retries_are_limited(spool: Spool) -> None:
    failing, next_one = add_job("bad", "--retry", "2", status=7), add_job("good")
    assert rankdeck("queue", "wait", str(failing)).exit_code == 7
    rankdeck("queue", "wait", str(next_one), exit_code=0)
    assert [start.outcome for start in entry_of(spool, failing).starts] == ["failed"] * 3
    assert read_log(Path.cwd()).began[("bad", 3)] == 1


def test_held_moved_and_removed_entries(spool: Spool) -> None:
    rankdeck("queue", "pause", exit_code=0)
    first, second, third, removed = (add_job(name, "--devices", "cpu:2") for name in "abcd")
    rankdeck("queue", "hold", str(first), exit_code=0)
    rankdeck("queue", "move", str(third), "--before", str(second), exit_code=0)
    rankdeck("queue", "remove", "d", exit_code=0)
    rankdeck("queue", "resume", exit_code=0)
    rankdeck("queue", "wait", str(second), str(third), exit_code=0)
    assert read_log(Path.cwd()).order == ["c", "b"]
    listed = rankdeck("queue", "list", "--all", "--json", exit_code=0).json
    states = {row["number"]: row["state"] for row in listed}
    rankdeck("queue", "wait", exit_code=0)  # the held one is not waited for
    assert states == {first: "held", second: "completed", third: "completed", removed: "removed"}
    rankdeck("queue", "release", str(first), exit_code=0)
    rankdeck("queue", "wait", exit_code=0)
    assert read_log(Path.cwd()).order == ["c", "b", "a"]


def test_an_entry_keeps_the_environment_and_the_arguments_of_its_addition(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("show.py").write_text(
        "import os, sys; print(os.environ.get('KEPT'), os.environ.get('TERM'), sys.argv[1:])", "utf-8"
    )
    rankdeck("queue", "pause", exit_code=0)
    env = {"KEPT": "then", "TERM": "xterm"}
    rankdeck("queue", "add", "--", "run", "show.py", "--json", "--lr", "1", env=env, exit_code=0)
    monkeypatch.setenv("KEPT", "now")
    rankdeck("queue", "resume", exit_code=0)
    rankdeck("queue", "wait", exit_code=0)
    run = Path(entry_of(spool, 1).starts[0].run)
    out = "".join(file.read_text("utf-8") for file in run.glob("logs/*.out"))
    assert out == "then None ['--json', '--lr', '1']\n"
    for file in spool.entries_folder.glob("1.*"):
        assert file.stat().st_mode & 0o077 == 0, f"others can read {file.name}"


def _git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_code_that_changed_since_the_addition_is_a_warning(spool: Spool, tmp_path: Path) -> None:
    _git(Path.cwd(), "init")
    _git(Path.cwd(), "add", "job.py")
    _git(Path.cwd(), "commit", "-m", "one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own.py").write_text(
        "from torch.nn import Flatten, Linear, Sequential\n"
        "def model():\n    return Sequential(Flatten(), Linear(64, 10))\n",
        "utf-8",
    )
    (elsewhere / "own.toml").write_text('[model]\nuse = "own.py:model"\n[train]\nsteps = 1\n', "utf-8")
    _git(elsewhere, "init")
    _git(elsewhere, "add", ".")
    _git(elsewhere, "commit", "-m", "one")
    rankdeck("queue", "pause", exit_code=0)
    add_job("changed")
    rankdeck("queue", "add", elsewhere / "own.toml", "--devices", "cpu:1", exit_code=0)
    _git(Path.cwd(), "commit", "--allow-empty", "-m", "two")
    rankdeck("queue", "resume", exit_code=0)
    rankdeck("queue", "wait", exit_code=0)
    problems = [
        [problem["code"] for problem in RunDir(Path(entry.starts[0].run)).environment()["problems"]]
        for entry in spool.entries()
    ]
    assert [entry.commit is None for entry in spool.entries()] == [False, False]
    assert problems == [["code-changed"], []]


def test_a_configuration_trains_from_the_queue(spool: Spool) -> None:
    rankdeck("queue", "add", "digits-mlp", "--set", "train.steps=3", "--devices", "cpu:1", exit_code=0)
    rankdeck("queue", "wait", exit_code=0)
    summary = rankdeck("show", "last", "--json", exit_code=0).json
    assert (summary["outcome"], summary["steps"]) == ("completed", 3)
    assert entry_of(spool, 1).name.startswith("MLP")


def test_a_run_that_was_started_directly_occupies_a_slot(spool: Spool) -> None:
    command = ("run", "--observe", "none", "--devices", "cpu:2", "--nproc-per-node", "2", "--detach")
    run = rankdeck(*command, "job.py", "direct", "6", "0", exit_code=0).out.strip()
    number = add_job("waits")
    wait_until(lambda: entry_of(spool, number).waits_for, deadline_s=30, what="what it waits for")
    text = entry_of(spool, number).waits_for
    assert text.startswith(f"waiting for 1 CPU slot: CPU slot 0 is used by the run {Path(run).name}")
    rankdeck("stop", run, "--now")
    rankdeck("queue", "wait", exit_code=0)


def test_an_entry_whose_start_fails_says_why(spool: Spool) -> None:
    rankdeck("queue", "pause", exit_code=0)
    number, after = add_job("lost"), add_job("after", "--after", "1")
    Path("job.py").unlink()
    rankdeck("queue", "resume", exit_code=0)
    assert rankdeck("queue", "wait", str(number)).exit_code == 1
    assert "job.py does not exist." in entry_of(spool, number).starts[0].error
    assert "job.py does not exist." in rankdeck("queue", "show", str(number), exit_code=0).out
    wait_until(lambda: entry_of(spool, after).waits_for.startswith("cannot start: entry 1"), what="reason")
    assert rankdeck("queue", "wait", str(after)).exit_code == 1
    wait_until(lambda: not files.is_locked(spool.dispatcher_lock), what="the dispatcher's end")


def test_an_interpreter_that_is_gone_is_a_failure_with_its_reason(spool: Spool) -> None:
    rankdeck("queue", "pause", exit_code=0)
    number = add_job("gone")

    def change(entry: object) -> None:
        entry.python = "/nowhere/python"  # type: ignore[attr-defined]

    spool.update(number, change)
    rankdeck("queue", "resume", exit_code=0)
    entry = wait_for_state(spool, number, "failed")
    assert entry.starts[0].error == "/nowhere/python: No such file or directory"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "no-such-preset"], "no-such-preset"),
        (["add", "--devices", "gpu:x", "digits-mlp"], "neither a GPU index nor"),
        (["add", "--devices", "0", "digits-mlp"], "at least one device"),
        (["add", "--not-before", "later", "digits-mlp"], '"later" is not a time.'),
        (["add", "--memory", "much", "digits-mlp"], '"much" is not a size'),
        (["add", "--", "run", "nowhere.py"], "There is no script nowhere.py"),
        (["add", "--", "train", "digits-mlp", "--detach"], "cannot have the option --detach"),
        (["add", "--after", "12", "digits-mlp"], 'The queue has no entry "12".'),
        (["show", "nothing"], 'The queue has no entry "nothing".'),
        (["move", "nothing"], "Say where to move"),
        (["remove", "9"], 'The queue has no entry "9".'),
    ],
)
def test_bad_input_is_explained_and_adds_nothing(spool: Spool, arguments: list[str], message: str) -> None:
    done = rankdeck("queue", *arguments)
    assert (done.exit_code, done.out) == (2, "")
    assert message in done.err.replace("\n", " ")
    assert "Traceback" not in done.err
    assert spool.entries() == []


def test_a_time_of_day_is_the_next_one() -> None:
    now = datetime(2026, 12, 31, 23, 0)
    assert parse_time("23:30", now) - now.timestamp() == 1800
    assert parse_time("22:30", now) - now.timestamp() == 23.5 * 3600
    assert parse_time("2027-01-02 08:00", now) == datetime(2027, 1, 2, 8).timestamp()
    with pytest.raises(ConfigError):
        parse_time("25:00", now)


def test_damaged_entries_are_left_out_and_numbers_are_not_reused(spool: Spool) -> None:
    rankdeck("queue", "pause", exit_code=0)
    numbers = [add_job("a"), add_job("b")]
    (spool.entries_folder / "1.json").write_text('{"number": 1', "utf-8")
    (spool.entries_folder / "2.json").write_bytes(b"\xff\xfe")
    (spool.entries_folder / "7.json").mkdir()
    assert rankdeck("queue", "list", "--json", exit_code=0).json == []
    assert add_job("c") == max(numbers) + 1
    rankdeck("queue", "remove", "c", exit_code=0)


def test_a_listing_names_what_runs_and_what_waits(spool: Spool) -> None:
    add_job("long", "--devices", "cpu:2", seconds=5)
    waiting = add_job("next")
    wait_until(lambda: entry_of(spool, waiting).waits_for, deadline_s=30, what="what it waits for")
    lines = rankdeck("queue", "list", exit_code=0, env={"COLUMNS": "200"}).out.splitlines()
    assert lines[1].split()[:4] == ["1", "running", "long", "cpu:2"]
    assert "waiting for 1 CPU slot: CPU slot 0 is used by the run" in lines[2]
    refused = rankdeck("queue", "remove", "long")
    assert refused.exit_code == 1 and "Stop its run with: rankdeck stop" in refused.err
    rankdeck("queue", "wait", exit_code=0)
    assert json.loads(rankdeck("queue", "show", "1", "--json").out)["starts"][0]["ended_at"] <= time.time()
