"""A run of a person's own script summed up: what was seen of it, and nothing that was not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.base.errors import ConfigError
from rankdeck.planner.accuracy import compare, predict
from rankdeck.run.fold import read_fold
from rankdeck.run.row import read_info, row_of
from rankdeck.run.summarising import summarise
from rankdeck.rundir import find_run
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WrittenScript]:
    run = WrittenScript(tmp_path / "runs", config={"args": ["--lr", "0.1"], "ranks": 2})
    run.launch(2)
    yield run
    run.lose()


def memory(run: WrittenScript, rank: int, source: str, **by_device: dict[str, int]) -> None:
    run.writer(f"rank-{rank}").write(
        events.Memory(
            rank=rank,
            step=3,
            source=source,
            devices=[
                events.DeviceMemory(
                    device=int(name[1:]),
                    live_bytes=sum(kinds.values()),
                    peak_bytes=sum(kinds.values()),
                    live_by_kind=kinds,
                    peak_by_kind=None if source == events.OWNERS_SEEN else kinds,
                )
                for name, kinds in by_device.items()
            ],
        )
    )


def test_the_summary_tells_what_was_seen(run: WrittenScript) -> None:
    for rank in (0, 1):
        run.see(rank, world_size=2, wrapper="DistributedDataParallel", optimizer="torch.optim:AdamW")
        run.step(rank, 1, [4.0, None, 2.0, None], samples=8, wait_s=0.1)
        calls = events.Collectives(rank=rank, step=4, calls={"all_reduce": 2}, num_bytes={}, seconds={})
        run.writer(f"rank-{rank}").write(calls)
        run.writer(f"rank-{rank}").write(calls)
    run.log(0, steps=[1, 2], accuracy=[0.5, 0.75])
    run.finish()
    facts = summarise(run.dir).facts()
    assert (facts["run_source"], facts["outcome"], facts["script_status"]) == ("script", "completed", 0)
    assert facts["script"] == {
        "run": "train.py",
        "kind": "file",
        "args": ["--lr", "0.1"],
        "folder": str(run.path.parent.parent),
        "python": "/usr/bin/python3",
        "ranks": 2,
        "observe": "light",
    }
    assert (facts["strategy"], facts["options"], facts["steps_planned"]) == (None, {}, None)
    assert (facts["steps"], facts["loss"], facts["loss_step"]) == (4, {"first": 4.0, "last": 2.0}, 3)
    assert facts["steps_per_s"] == pytest.approx(2.0) and facts["samples_per_s"] == pytest.approx(32.0)
    assert facts["wait_share"] == pytest.approx(0.2)
    assert facts["first_step_s"] == pytest.approx(0.5)
    assert facts["observed"]["wrapper"] == "DistributedDataParallel"
    assert [rank["steps"] for rank in facts["observed"]["ranks"]] == [4, 4]
    assert facts["metrics"] == {"accuracy": {"last": 0.75, "step": 2, "count": 2, "through": "rankdeck"}}
    assert [rank["calls"] for rank in facts["collectives"]] == [{"all_reduce": 4}] * 2
    assert facts["notes"] == [] and facts["problems"] == []
    json.dumps(facts, allow_nan=False)


def test_what_was_not_seen_is_absent(run: WrittenScript) -> None:
    run.finish()
    facts = summarise(run.dir).facts()
    unknown = ("strategy", "samples_per_s", "steps_per_s", "wait_share", "observed", "collectives", "comm")
    assert all(facts[key] is None for key in (*unknown, "loss_step", "first_step_s", "source", "evaluation"))
    assert facts["loss"] == {"first": None, "last": None} and facts["metrics"] == {}
    assert facts["notes"] == ["no optimizer step was seen"]


def test_steps_that_were_lost_were_not_absent(run: WrittenScript) -> None:
    """A process is a rank once it has stepped; `os._exit` may follow before anything is written."""
    run.see(0)
    assert list(summarise(run.dir).facts()["notes"]) == ["no optimizer step was seen yet"]
    run.finish()
    assert summarise(run.dir).facts()["notes"] == ["it ended before its first steps were written down"]


def test_a_configured_run_has_the_same_keys(run: WrittenScript, tmp_path: Path) -> None:
    run.finish()
    configured = WrittenRun(tmp_path / "runs")
    configured.begin(1, steps=2)
    configured.steps(0, 1, [2.0, 1.0])
    configured.end()
    facts = summarise(configured.dir).facts()
    assert set(facts) == set(summarise(run.dir).facts())
    assert (facts["run_source"], facts["script"], facts["script_status"]) == ("configuration", None, None)
    assert (facts["observed"], facts["metrics"], facts["notes"]) == (None, {}, [])


def test_notes_say_what_is_off_and_what_is_apart(run: WrittenScript) -> None:
    off = {"loss": "Tensor.backward is not ours"}
    run.see(0, parts=off, skipped=1, other_optimizers={"torch.optim.sgd:SGD": 40})
    run.see(1, parts=off | {"memory": "no owners"}, not_finite=7)
    run.step(0, 1, [1.0] * 10)
    run.step(1, 1, [1.0] * 3)
    running = summarise(run.dir).facts()
    assert (running["not_finite"], running["notes"][-1][:11]) == (7, "SGD stepped")
    run.finish()
    assert summarise(run.dir).facts()["notes"] == [
        "the observer's part loss is off: Tensor.backward is not ours",
        "the observer's part memory is off on rank 1: no owners",
        "the loss of rank 1 was not finite in step 7",
        "a gradient scaler skipped 1 step",
        "SGD stepped 40 times besides the leading optimizer",
        "ranks took different numbers of steps: rank 0 10, rank 1 3",
    ]


def test_ranks_of_a_run_that_broke_were_ended_in_different_steps(run: WrittenScript) -> None:
    run.step(0, 1, [1.0] * 10)
    run.step(1, 1, [1.0] * 3)
    run.finish(1)
    assert summarise(run.dir).facts()["notes"] == []


def test_the_time_to_the_first_step_is_that_of_the_first_attempt(run: WrittenScript) -> None:
    run.step(0, 1, [1.0, 1.0])
    run.launch(2, attempt=1)
    run.step(0, 1, [1.0, 1.0], attempt=1, late_s=60.0)
    assert summarise(run.dir).facts()["first_step_s"] == pytest.approx(0.5)


def test_a_wait_for_a_loader_that_nobody_saw_is_none(run: WrittenScript) -> None:
    run.step(0, 1, [1.0] * 4, wait_s=0.0)
    assert summarise(run.dir).facts()["wait_share"] is None
    run.see(1, dataset="torch.utils.data:TensorDataset")
    run.step(1, 1, [1.0] * 4, wait_s=0.0)
    assert summarise(run.dir).facts()["wait_share"] == 0.0


def test_what_owners_hold_is_no_peak(run: WrittenScript) -> None:
    run.see(0)
    memory(run, 0, events.OWNERS_SEEN, d0={"parameters": MIB, "optimizer": 2 * MIB})
    memory(run, 1, events.OWNERS_SEEN, d1={"parameters": MIB})
    facts = summarise(run.dir).facts()
    lead = facts["devices"][0]
    assert (lead["peak_bytes"], lead["peak_by_kind"], lead["live_bytes"]) == (None, None, 3 * MIB)
    assert lead["live_by_kind"] == {"parameters": MIB, "optimizer": 2 * MIB}
    assert facts["source"] == lead["memory_source"] == events.OWNERS_SEEN and facts["imbalance"] is None
    device = read_fold(run.dir).devices[0]
    assert device.is_of_owners and len(device.memory_history) == 1 and not len(device.peak_history)


def test_a_peak_that_was_measured_stays_beside_what_owners_hold(run: WrittenScript) -> None:
    memory(run, 0, events.FOLLOWED, d0={"parameters": MIB, "activations": MIB})
    memory(run, 0, events.OWNERS_SEEN, d0={"parameters": 9 * MIB})
    facts = summarise(run.dir).facts()["devices"][0]
    assert (facts["peak_bytes"], facts["live_bytes"], facts["sampled_steps"]) == (2 * MIB, 9 * MIB, 1)


def test_a_rank_that_the_script_started_itself_has_a_device_too(run: WrittenScript) -> None:
    memory(run, 3, events.OWNERS_SEEN, d3={"parameters": MIB})
    assert [device["name"] for device in summarise(run.dir).facts()["devices"]] == ["CPU 0", "CPU 1", "CPU 3"]


def test_data_parallel_in_a_script_shows_what_its_first_device_holds_more(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs")
    run.launch(1, device_infos(3, "gpu"))
    run.see(0, wrapper="DataParallel")
    run.step(0, 1, [1.0])
    low = {"parameters": 10 * MIB, events.UNATTRIBUTED: 5 * MIB}
    lead = {"parameters": 10 * MIB, "optimizer": 20 * MIB}
    memory(run, 0, events.MEASURED_ON_GPU, d0=lead, d1=low, d2=low)
    facts = summarise(run.dir).facts()
    run.finish()
    assert facts["imbalance"] == {"device": 0, "excess_bytes": 15 * MIB, "ratio": 2.0}
    assert "DistributedDataParallel" in facts["notes"][-1]


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "train.py exited with 3."), (137, "train.py exited with 137 (SIGKILL)."), (255, "exited with 255.")],
)
def test_a_script_that_failed_says_what_it_exited_with(run: WrittenScript, status: int, words: str) -> None:
    run.finish(status)
    (problem,) = summarise(run.dir).facts()["problems"]
    assert words in problem["message"]


def test_a_folder_that_is_run_has_its_own_name(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs", config={"run": ".", "folder": "/home/me/project"})
    run.launch()
    run.finish(1)
    assert summarise(run.dir).facts()["problems"][0]["message"] == "project exited with 1."


def test_a_script_is_listed_by_its_name_and_wrapper_and_is_not_resumed(run: WrittenScript) -> None:
    run.see(0, wrapper="FullyShardedDataParallel")
    run.step(0, 1, [1.0] * 7)
    run.step(1, 1, [1.0] * 9)
    run.finish(1)
    info = read_info(run.dir)
    assert (info.title, info.strategy, info.is_script) == ("train.py", "FullyShardedDataParallel", True)
    assert (info.outcome, info.is_resumable, info.steps, info.num_devices) == ("failed", False, None, 2)
    row = row_of(read_info(run.dir))
    assert (row["strategy"], row["wrapper"], row["run_source"], row["steps"]) == (
        None,
        "FullyShardedDataParallel",
        "script",
        read_fold(run.dir).step,
    )


def test_a_script_that_has_not_begun_is_listed_and_found_too(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs", "Fine-tuning, with a name that is longer than a folder's may be")
    assert (read_info(run.dir).is_script, read_info(run.dir).strategy) == (True, "")
    assert summarise(run.dir).facts()["run_source"] == "script" and row_of(read_info(run.dir))["steps"] == 0
    title = read_info(run.dir).title
    assert find_run(title, run.path.parent).name == run.dir.name
    run.lose()


@pytest.mark.parametrize("damage", ["[script]\nrun = 3", "script = 1", "not toml", ""])
def test_a_damaged_script_is_told_and_breaks_no_list(run: WrittenScript, damage: str) -> None:
    run.dir.config_file.write_text(damage)
    assert row_of(read_info(run.dir))["outcome"] == "running" and summarise(run.dir).facts()["script"] is None


def test_what_needs_a_configuration_is_refused_in_words(run: WrittenScript) -> None:
    for ask in (run.dir.config, lambda: predict(run.dir)):
        with pytest.raises(ConfigError, match=r"a person's own script, train\.py"):
            ask()
    assert compare(run.dir) == []


def test_odd_figures_of_a_script_are_no_numbers_and_break_nothing(run: WrittenScript) -> None:
    run.see(0, wrapper_options={"bucket": [10**400, {"a": "b"}]}, num_parameters=10**400, skipped=-1)
    collectives = events.Collectives(
        rank=0,
        step=-5,
        calls={"absurd": 10**400, **{f"c{index}": 1 for index in range(300)}},
        num_bytes={},
        seconds={"x": 1e308},
    )
    for _ in range(2):
        run.writer("rank-0").write(collectives)
    run.writer("rank-0").write(events.Observed(rank=2**40, script="x"))
    facts = summarise(run.dir).facts()
    told = facts["collectives"][0]
    assert len(told["calls"]) == 100 and set(told["calls"].values()) == {2} and told["seconds"] == {}
    assert facts["unreadable"] == 1
    json.dumps(facts, allow_nan=False)


def test_a_process_that_trained_by_itself_is_noted(run: WrittenScript) -> None:
    for rank in (0, 1, 2):
        run.see(rank)
        run.step(rank, 1, [1.0, 1.0])
    notes = summarise(run.dir).facts()["notes"]
    assert [note for note in notes if "by itself" in note] == [
        "rank 2 is a process that trained by itself (pid 1002)"
    ]
