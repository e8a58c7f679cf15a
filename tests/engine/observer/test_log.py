"""`rankdeck.log`: found in any environment while observed, harmless everywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankdeck
from rankdeck import events
from tests.helpers.logging_script import expected_values, logging_run
from tests.helpers.observed_process import INJECT, ObservedProcess, observe_script


def test_log_does_nothing_outside_a_run() -> None:
    rankdeck.log(loss=0.5, step=3)
    rankdeck.log({"train/loss": 0.5})
    assert "_rankdeck_observer" not in sys.modules


def test_an_unknown_name_of_the_package_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'no_such_name'"):
        _ = rankdeck.no_such_name


def test_values_become_curves_under_their_names() -> None:
    values = logging_run().logged_values("rankdeck")
    assert values["loss"] == list(enumerate(expected_values()["losses"]))
    assert values["accuracy"] == [(0, 0.5), (1, 1.5), (2, 2.5)]
    assert values["train/loss"] == [(9, 1.0)]
    assert set(values) == {"loss", "accuracy", "train/loss"}  # neither texts nor truth values


def test_logging_a_non_mapping_is_reported_and_the_script_continues() -> None:
    assert logging_run().status == 0
    assert "not a mapping" in logging_run().disabled_parts()["rankdeck.log"]


def test_each_logged_value_has_a_time_and_a_step_count() -> None:
    metrics = [event for event in logging_run().events_of_type(events.Metrics) if event.through == "rankdeck"]
    times, after = (
        [t for event in metrics for t in event.times],
        [step for event in metrics for step in event.after],
    )
    assert times and times == sorted(times)
    assert after == sorted(after) and after[-1] == 3


# Who never steps an optimizer.


def _logged_values(process: ObservedProcess) -> dict[int, dict[str, list[float | None]]]:
    """rank -> name -> values, of all that was told."""
    by_rank: dict[int, dict[str, list[float | None]]] = {}
    for rank in process.ranks():
        for event in process.events_of_type(events.Metrics, rank):
            for name, values in event.values.items():
                by_rank.setdefault(rank, {}).setdefault(name, []).extend(values)
    return by_rank


def test_a_process_without_an_optimizer_logs_while_it_runs(tmp_path: Path) -> None:
    """It has no torch either. It waits until some lines are there; its end writes the others."""
    script = """
import glob, os, rankdeck, sys, threading
for value in (3, 2, 1):
    rankdeck.log(loss=value)
while not any(os.path.getsize(file) for file in glob.glob("run/events/*")): threading.Event().wait(0.01)
rankdeck.log({"loss": 0.5}, accuracy=0.9)
print("torch" in sys.modules)
"""
    process = observe_script(script, tmp_path / "script", RANK="3", WORLD_SIZE="4", timeout_s=30)
    assert (process.stdout, process.stderr, process.status) == ("False\n", "", 0)
    assert _logged_values(process) == {3: {"loss": [3.0, 2.0, 1.0, 0.5], "accuracy": [0.9]}}
    assert {type(event) for event in process.events(3)} == {events.Metrics}, "it is no rank that began"


_TRAINS = """
import os, rankdeck, threading, torch
def train(steps):
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(steps): weight.sum().backward(); optimizer.step()
def until(rank, text):
    file = f"run/events/rank-{rank}.0.jsonl"
    while not os.path.exists(file) or text not in open(file).read(): threading.Event().wait(0.01)
"""


@pytest.mark.slow
def test_of_two_processes_with_one_rank_the_training_one_keeps_it(tmp_path: Path) -> None:
    script = """
rankdeck.log(by_parent=1)
until(0, "by_parent")
child = os.fork()
if child == 0:
    train(3)
    until(0, "rank_started")
    rankdeck.log(by_child=2)
    raise SystemExit
until(0, "rank_started")
rankdeck.log(by_parent=3)
os.waitpid(child, 0)
rankdeck.log(by_parent=4)
"""
    process = observe_script(_TRAINS + script, tmp_path / "script", timeout_s=60)
    assert (process.stdout, process.stderr, process.status) == ("", "", 0)
    values = _logged_values(process)
    assert values[0] == {"by_parent": [1.0], "by_child": [2.0]}
    assert values[1] == {"by_parent": [3.0, 4.0]}
    assert (
        len(process.events_of_type(events.RankStarted)),
        process.events_of_type(events.RankStarted, 1),
    ) == (
        1,
        [],
    )


def test_multiprocessing_children_write_all_logged_values(tmp_path: Path) -> None:
    script = """
import multiprocessing, rankdeck
def work():
    rankdeck.log(done=1)
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
"""
    process = observe_script(script, tmp_path / "script", timeout_s=60)
    assert (process.stderr, process.status, _logged_values(process)) == ("", 0, {0: {"done": [1.0, 1.0]}})


# Where nothing else of ours is.


def _run_bare(code: str, folder: Path, *, observed: bool) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has neither torch nor this package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if observed:
        environment.update(PYTHONPATH=str(INJECT), RANKDECK_RUN=str(folder), RANKDECK_OBSERVE="light")
    python = getattr(sys, "_base_executable", sys.executable)
    return subprocess.run(
        [python, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_observed_script_can_import_rankdeck_without_installing_it(tmp_path: Path) -> None:
    code = "import rankdeck; rankdeck.log(loss=1.0, step=2); print(rankdeck.log.__name__, dir(rankdeck)[-1])"
    done = _run_bare(code, tmp_path, observed=True)
    assert (done.stdout, done.stderr, done.returncode) == ("log log\n", "", 0)
    assert "ModuleNotFoundError" in _run_bare(code, tmp_path, observed=False).stderr


def test_a_user_module_named_rankdeck_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "rankdeck.py").write_text("mine = 1\n")
    done = _run_bare("import rankdeck; print(rankdeck.mine)", tmp_path, observed=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
